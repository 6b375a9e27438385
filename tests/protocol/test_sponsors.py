import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from protocol.pace import Candidate
from protocol.signing import SigningKey
from protocol.sponsors import assign

PEERS = sorted(SigningKey(bytes([n]) * 32).peer_id for n in range(12))
STEP, GUESTS = PEERS[:4], PEERS[4:]


def step(*rates: int) -> list[Candidate]:
    return [Candidate(peer, 1, rate) for peer, rate in zip(STEP, rates, strict=False)]


def test_the_fastest_links_come_first() -> None:
    assert assign(step(1, 9, 8, 1), GUESTS[:1], {}) == {GUESTS[0]: (STEP[1], STEP[2])}


def test_one_step_member_sponsors_all_alone() -> None:
    assert assign(step(5), GUESTS[:2], {}) == {GUESTS[0]: (STEP[0],), GUESTS[1]: (STEP[0],)}


def test_equal_links_are_used_evenly() -> None:
    assigned = assign(step(5, 5, 5, 5), GUESTS, {})
    assert set(Counter(first for first, _ in assigned.values()).values()) == {2}
    assert set(Counter(peer for pair in assigned.values() for peer in pair).values()) == {4}


def test_unequal_links_are_used_in_proportion() -> None:
    assigned = assign(step(100, 100, 20, 20), GUESTS, {})
    load = Counter(first for first, _ in assigned.values())
    assert load[STEP[0]] >= 3
    assert load[STEP[1]] >= 3
    assert load[STEP[2]] + load[STEP[3]] <= 2


def test_guests_stay_with_their_sponsors() -> None:
    before = assign(step(5, 5, 5, 5), GUESTS, {})
    assert assign(step(5, 6, 4, 5), GUESTS, before) == before
    # a sponsor has gone: its guests go on with the one that stood in for it
    after = assign(step(5, 5, 5), GUESTS, before)
    for guest, (first, second) in before.items():
        if first == STEP[3]:
            assert after[guest][0] == second
        else:
            assert after[guest][0] == first


def test_a_sponsor_of_far_too_many_is_relieved() -> None:
    before = dict.fromkeys(GUESTS, (STEP[0],))
    load = Counter(first for first, _ in assign(step(5, 5, 5, 5), GUESTS, before).values())
    assert load[STEP[0]] <= 5


@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=4),
    st.sets(st.sampled_from(GUESTS)),
    st.dictionaries(st.sampled_from(PEERS), st.lists(st.sampled_from(PEERS), max_size=2)),
    st.randoms(use_true_random=False),
)
def test_everybody_has_distinct_sponsors_whatever_the_order(
    rates: list[int], guests: set[str], before: dict[str, list[str]], order: random.Random
) -> None:
    some, members = sorted(guests), step(*rates)
    assigned = assign(members, some, before)
    assert set(assigned) == guests
    for sponsors in assigned.values():
        assert len(set(sponsors)) == len(sponsors) == min(2, len(members))
        assert set(sponsors) <= {one.peer for one in members}
    order.shuffle(some)
    order.shuffle(members)
    assert assign(members, some, before) == assigned
