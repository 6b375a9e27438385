from hypothesis import given
from hypothesis import strategies as st

from protocol.lineage import Lineage
from protocol.round_views import accusation_stands, stronger_history, to_blame

ALL = frozenset("abcd")


def test_a_minority_excludes_nobody() -> None:
    assert not accusation_stands("a", "d", ALL, set("d"), set("abc"), mutual=False)
    assert accusation_stands("a", "d", ALL, set("bcd"), set("abc"), mutual=False)
    assert accusation_stands("a", "d", ALL, set("cd"), set("ab"), mutual=False), "who is told first gives way"


@given(st.sets(st.sampled_from("abcd")), st.sets(st.sampled_from("abcd")))
def test_of_two_that_accuse_each_other_one_gives_way(with_a: set[str], with_d: set[str]) -> None:
    mine, theirs = {"a", *with_a - {"d"}}, {"d", *with_d - {"a"}}
    a_gives_way = accusation_stands("a", "d", ALL, theirs, mine, mutual=True)
    d_gives_way = accusation_stands("d", "a", ALL, mine, theirs, mutual=True)
    assert a_gives_way != d_gives_way


OURS = Lineage("55" * 32, 100)


def test_more_members_are_stronger_than_more_samples() -> None:
    assert stronger_history("ab", OURS, {"c": Lineage("aa" * 32, 10**9)}) == ()
    assert stronger_history("a", OURS, {"b": Lineage("11" * 32, 0), "c": Lineage("11" * 32, 0)}) == ("b", "c")


def test_among_equals_more_samples_then_the_digest() -> None:
    assert stronger_history("a", OURS, {"b": Lineage("11" * 32, 101)}) == ("b",)
    assert stronger_history("a", OURS, {"b": Lineage("11" * 32, 99)}) == ()
    assert stronger_history("a", OURS, {"b": Lineage("66" * 32, 100)}) == ("b",)
    assert stronger_history("a", OURS, {"b": Lineage("44" * 32, 100)}) == ()
    assert stronger_history("a", OURS, {"b": Lineage("66" * 32, 200), "c": Lineage("77" * 32, 300)}) == ("c",)


def test_who_is_blamed_by_most() -> None:
    assert to_blame([]) is None
    assert to_blame([("a", "c"), ("b", "c"), ("c", "a")]) == "c"
    assert to_blame([("b", "a"), ("c", "a"), ("a", "c")]) == "a"


def test_a_single_complaint_means_the_larger_id_of_the_two() -> None:
    assert to_blame([("a", "c")]) == to_blame([("c", "a")]) == to_blame([("a", "c"), ("c", "a")]) == "c"


def test_saying_it_twice_does_not_count_twice() -> None:
    assert to_blame([("c", "a"), ("c", "a")]) == "c"
    assert to_blame([("a", "a")]) is None
