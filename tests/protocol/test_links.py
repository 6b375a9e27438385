from hypothesis import given
from hypothesis import strategies as st

from protocol.links import DEFAULT_LINK, Link, links_of
from protocol.records import Ballot, LinkSeen
from protocol.signing import SigningKey

RUN = "ab" * 32
PEERS = sorted(SigningKey(bytes([n]) * 32).peer_id for n in range(6))
A, B, C, D = PEERS[:4]

Sight = tuple[int, int]


def ballot(peer: str, seen: dict[str, Sight] | None = None) -> Ballot:
    links = [LinkSeen(peer=other, up=up, down=down) for other, (up, down) in sorted((seen or {}).items()) if up or down]
    return Ballot(run=RUN, peer=peer, expires=0, term=1, epoch=1, throughput=1, links=links)


def link_of(peer: str, *ballots: Ballot) -> Link:
    return links_of([*ballots, ballot(peer)] if all(b.peer != peer for b in ballots) else ballots)[peer]


def test_of_a_link_that_nobody_saw_nothing_is_known() -> None:
    assert links_of([ballot(A)]) == {A: Link(DEFAULT_LINK, DEFAULT_LINK, 0)}


def test_own_word_counts_only_where_nobody_else_saw() -> None:
    own = ballot(A, {A: (7, 8)})
    assert link_of(A, own) == Link(7, 8, 0)
    assert link_of(A, own, ballot(B, {A: (5, 0)})) == Link(5, 8, 1)
    assert link_of(A, own, ballot(B, {A: (5, 3)})) == Link(5, 3, 1)
    assert link_of(A, own, ballot(B, {A: (5, 0)}), ballot(C, {A: (0, 4)})) == Link(5, 4, 2)


def test_the_lower_median_of_observers() -> None:
    seen = [ballot(B, {A: (10, 1)}), ballot(C, {A: (20, 2)}), ballot(D, {A: (90, 3)})]
    assert link_of(A, *seen[:2]) == Link(10, 1, 2)
    assert link_of(A, *seen) == Link(20, 2, 3)


def test_an_observer_with_a_slow_link_is_in_the_way() -> None:
    slow = {B: (5, 5), C: (20, 20)}  # as A sees them
    seen = [ballot(A, slow), ballot(B, {A: (5, 5)}), ballot(C, {A: (19, 19)})]
    assert link_of(A, *seen) == Link(19, 19, 2)
    assert link_of(A, *seen, ballot(D, {A: (90, 90)})) == Link(90, 90, 3)
    assert link_of(A, ballot(A, slow), ballot(B, {A: (1, 1)}), seen[2]) == Link(19, 19, 2)  # or is busy besides
    assert link_of(A, ballot(A, slow | {D: (90, 90)}), ballot(D, {A: (3, 3)}), seen[2]) == Link(3, 3, 2)


def test_nobody_is_believed_to_have_seen_more_than_its_own_link_can_do() -> None:
    liar = ballot(B, {A: (10**6, 10**6)})
    assert link_of(A, ballot(A, {B: (8, 8), C: (8, 8)}), liar, ballot(C, {A: (5, 5)})) == Link(5, 5, 2)
    assert link_of(A, ballot(A, {B: (8, 8)}), liar) == Link(10, 10, 1)


def test_only_peers_with_a_ballot_have_a_link() -> None:
    assert set(links_of([ballot(A, {B: (1, 1)})])) == {A}
    assert links_of([]) == {}


def test_the_slower_direction() -> None:
    assert Link(5, 9, 1).slower == Link(9, 5, 1).slower == 5


rates = st.integers(0, 100)
sights = st.dictionaries(st.sampled_from(PEERS), st.tuples(rates, rates))
swarms = st.dictionaries(st.sampled_from(PEERS), sights, min_size=2)


@given(swarms, st.tuples(rates, rates))
def test_a_lie_about_oneself_changes_nothing_where_an_observer_exists(
    swarm: dict[str, dict[str, Sight]], lie: Sight
) -> None:
    liar = min(swarm)
    honest = links_of([ballot(peer, seen) for peer, seen in swarm.items()])
    lying = links_of([ballot(peer, seen | {liar: lie} if peer == liar else seen) for peer, seen in swarm.items()])
    seen = [swarm[peer][liar] for peer in swarm if peer != liar and liar in swarm[peer]]
    if any(up for up, _ in seen):
        assert lying[liar].up == honest[liar].up
    if any(down for _, down in seen):
        assert lying[liar].down == honest[liar].down
    for peer in set(swarm) - {liar}:
        assert lying[peer] == honest[peer]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=4), st.integers(1, 10**6))
def test_what_one_liar_among_observers_can_do(honest: list[int], lie: int) -> None:
    observers = PEERS[1:]
    cast = [ballot(peer, {A: (rate, rate)}) for peer, rate in zip(observers, [*honest, lie], strict=False)]
    up = link_of(A, *cast).up
    assert up <= max(honest)
    if len(honest) >= 2:
        assert up >= min(honest)
