from protocol.lineage import Lineage

RUN = "ab" * 32


def test_a_history_counts_what_was_merged() -> None:
    first = Lineage.genesis(RUN)
    second = first.after(0, 0, (("a", 3), ("b", 4)))
    third = second.after(1, 2, (("a", 5),))
    assert (first.samples, second.samples, third.samples) == (0, 7, 12)
    assert len({first.digest, second.digest, third.digest}) == 3
    assert second == Lineage.genesis(RUN).after(0, 0, (("a", 3), ("b", 4)))


def test_everything_that_makes_an_update_is_in_the_digest() -> None:
    base = Lineage.genesis(RUN)
    made = [
        base.after(0, 0, (("a", 3), ("b", 4))),
        base.after(1, 0, (("a", 3), ("b", 4))),
        base.after(0, 1, (("a", 3), ("b", 4))),
        base.after(0, 0, (("a", 4), ("b", 3))),
        base.after(0, 0, (("a", 7),)),
        Lineage.genesis("cd" * 32).after(0, 0, (("a", 3), ("b", 4))),
    ]
    assert len({lineage.digest for lineage in made}) == len(made)
