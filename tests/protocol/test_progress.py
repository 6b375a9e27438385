from hypothesis import given
from hypothesis import strategies as st

from protocol.progress import quorum_epoch

epochs = st.integers(0, 10**9)


def test_the_median_by_weight() -> None:
    assert quorum_epoch({"a": 5, "b": 7, "c": 9}, {"a": 1, "b": 1, "c": 1})[0] == 7
    assert quorum_epoch({"a": 5, "b": 7, "c": 9}, {"a": 1, "b": 1, "c": 3})[0] == 9
    assert quorum_epoch({"a": 5, "b": 6}, {"a": 1, "b": 1})[0] == 5, "half is not enough to go on"


def test_who_has_no_weight_does_not_count() -> None:
    assert quorum_epoch({"a": 5, "newcomer": 0, "stranger": 10**9}, {"a": 1, "newcomer": 0}) == (
        5,
        "100 % of the weight has reached epoch 5",
    )


def test_nobody_has_spoken() -> None:
    assert quorum_epoch({}, {"a": 1})[0] is None
    assert quorum_epoch({"a": 3}, {})[0] is None


def test_the_reason_names_who_is_ahead_and_behind() -> None:
    reached, reason = quorum_epoch({"peer-a": 1, "peer-b": 5, "peer-c": 9}, {"peer-a": 1, "peer-b": 8, "peer-c": 1})
    assert reached == 5
    assert reason == "90 % of the weight has reached epoch 5; ahead: …peer-c; behind: …peer-a"


names = st.text("abcdef", min_size=1, max_size=3)
honest = st.dictionaries(names, st.tuples(epochs, st.integers(1, 10**6)), min_size=1)


@given(honest, epochs, st.integers(0, 10**9))
def test_a_liar_with_less_than_half_moves_nothing_beyond_the_others(
    others: dict[str, tuple[int, int]], claim: int, weight: int
) -> None:
    whole = sum(w for _, w in others.values())
    weight = min(weight, whole - 1)
    said = {peer: epoch for peer, (epoch, _) in others.items()} | {"liar": claim}
    weights = {peer: w for peer, (_, w) in others.items()} | {"liar": weight}
    reached, _ = quorum_epoch(said, weights)
    spoken = [epoch for epoch, _ in others.values()]
    assert reached is not None
    assert min(spoken) <= reached <= max(spoken)


@given(st.sets(names, min_size=2), epochs, epochs)
def test_a_liar_with_less_than_a_third_does_not_move_a_swarm_in_step(peers: set[str], epoch: int, claim: int) -> None:
    said = dict.fromkeys(peers, epoch) | {"liar": claim}
    weights = dict.fromkeys(peers, 3) | {"liar": 2}
    assert quorum_epoch(said, weights)[0] == epoch
