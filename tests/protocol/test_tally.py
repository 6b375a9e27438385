"""From ballots to a plan. Links are in bytes per second, throughputs in samples per 1000 seconds."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.encoding import canonical_bytes, decode_canonical
from protocol.lanes import predict
from protocol.links import Link, links_of
from protocol.plan import MAX_GROUP_SIZE, Plan
from protocol.quota import apportion
from protocol.reasons import Verdict
from protocol.records import Ballot, LinkSeen
from protocol.shares import WHOLE
from protocol.signing import SigningKey
from protocol.tally import tally

RUN = "ab" * 32
PEERS = sorted(SigningKey(bytes([n]) * 32).peer_id for n in range(8))
PARAMETERS = 1_100_000
Sights = dict[str, tuple[int, int]]


def ballot(
    peer: str,
    throughput: int,
    seen: Sights | None = None,
    *,
    epoch: int = 7,
    term: int = 2,
    run: str = RUN,
    expires: int = 0,
    in_step: bool = True,
) -> Ballot:
    links = [LinkSeen(peer=other, up=up, down=down) for other, (up, down) in sorted((seen or {}).items())]
    return Ballot(
        run=run,
        peer=peer,
        expires=expires,
        term=term,
        epoch=epoch,
        throughput=throughput,
        in_step=in_step,
        links=links,
    )


def result(
    *ballots: Ballot,
    absent: dict[str, int] | None = None,
    target: int = 512,
    max_peers: int = 64,
    overlap: int = 1,
    previous: Plan | None = None,
) -> tuple[Plan | None, Verdict]:
    return tally(
        RUN,
        2,
        ballots,
        absent or {},
        target,
        max_peers,
        num_parameters=PARAMETERS,
        overlap=overlap,
        compression="auto",
        previous=previous,
    )


def planned(*ballots: Ballot, **options: Any) -> Plan:
    plan, _ = result(*ballots, **options)
    assert plan is not None
    return plan


def quotas(plan: Plan) -> dict[str, int]:
    step = {member.peer: member.quota for group in plan.groups for member in group.members}
    return step | {member.peer: member.quota for member in plan.slow}


A, B, C, D, E = PEERS[:5]
SPEEDS = dict(zip((A, B, C, D), (40_000, 40_000, 24_000, 6_000), strict=True))
LINKS = dict(zip((A, B, C, D), (12_500_000, 12_500_000, 2_500_000, 625_000), strict=True))


def four_peers(links: dict[str, int] = LINKS) -> list[Ballot]:
    """Everybody has seen everybody else."""
    return [
        ballot(peer, speed, {other: (rate, rate) for other, rate in links.items() if other != peer})
        for peer, speed in SPEEDS.items()
    ]


def test_a_plan_of_four_unequal_peers() -> None:
    plan, verdict = result(*four_peers())
    assert plan is not None
    assert quotas(plan) == {A: 186, B: 186, C: 112, D: 28}
    assert [(member.peer, member.share) for member in plan.groups[0].members] == [
        (A, WHOLE // 2),
        (B, WHOLE // 2),
        (C, 0),
        (D, 0),
    ]
    assert plan.slow == ()
    assert plan.compression == "uniform4"
    # 512 samples at 110 samples/s take 4.6545 s; and a tenth, and a fifth of a second
    assert plan.deadline_milliseconds == 5320
    assert (
        verdict.reason
        == "4 peers share 512 samples in proportion to throughput; a round of 4 peers (uniform4) takes 0.95 s of the "
        "epoch's 4.7 s"
    )
    assert verdict.of_peer[D] == (
        "step lane: its 5 Mbit/s carry the 593 kB of a round in 0.95 s of the epoch's 4.7 s; "
        "below 1.1 Mbit/s it would go to the slow lane"
    )


def test_who_cannot_keep_pace_goes_to_the_slow_lane() -> None:
    plan, verdict = result(*four_peers(), target=128)
    assert plan is not None
    assert [plan.lane_of(peer) for peer in (A, B, C, D, E)] == ["step", "step", "step", "slow", None]
    assert quotas(plan) == {A: 46, B: 46, C: 28, D: 7} | {A: 47, C: 28, B: 46, D: 7}
    (slow,) = plan.slow
    assert (slow.peer, slow.throughput, slow.cadence, slow.sponsors) == (D, 6_000, 2, (A, B))
    assert verdict.of_peer[D] == (
        "slow lane every 2 epochs: with its 5 Mbit/s, a round would need 0.95 s of the epoch's 1.2 s, "
        "of which 70 % are allowed; from 5.8 Mbit/s on it would step with the others"
    )
    assert verdict.reason.endswith("; 1 is in the slow lane")


def test_the_reasons_of_exact_training() -> None:
    plan, verdict = result(*four_peers(), overlap=0)
    assert plan is not None
    assert verdict.of_peer[C] == (
        "step lane: its 20 Mbit/s carry the 1.1 MB of a round in 0.45 s of the epoch's 4.7 s, "
        "and 0.45 s of waiting for the round come after it"
    )
    assert "for which all would wait" in verdict.of_peer[D]


def test_a_lone_peer_has_nothing_to_transfer() -> None:
    plan, verdict = result(ballot(A, 5))
    assert plan is not None
    assert quotas(plan) == {A: 512}
    assert verdict == Verdict(
        "1 peer gathers 512 samples in proportion to throughput",
        {A: "step lane: it is alone there, with nothing to transfer"},
    )


def test_ballots_that_do_not_count() -> None:
    cast = [ballot(A, 5), ballot(B, 5, term=1), ballot(C, 5, run="cd" * 32), ballot(D, 5, epoch=7)]
    assert quotas(planned(*cast, absent={D: 7})) == {A: 512}
    plan, verdict = result(ballot(D, 5), absent={D: 7})
    assert plan is None
    assert verdict.reason == "no ballot counts for term 2; left out: 1 not back since exclusion"
    assert "has not come back" in verdict.of_peer[D]
    assert set(quotas(planned(ballot(A, 5), ballot(D, 5, epoch=8), absent={D: 7}))) == {A, D}
    assert result()[0] is None


def test_what_those_see_whose_ballots_do_not_count_does_not_count() -> None:
    sight = ballot(B, 5, {A: (1, 1)})
    assert planned(ballot(A, 5), ballot(C, 5)).lane_of(A) == "step"
    assert planned(ballot(A, 5), ballot(C, 5), sight).lane_of(A) == "slow"
    assert planned(ballot(A, 5), ballot(C, 5), sight, absent={B: 9}).lane_of(A) == "step"


def test_the_fastest_are_taken_and_equals_by_id() -> None:
    plan, verdict = result(ballot(A, 1), ballot(B, 9), ballot(C, 5), ballot(D, 5), max_peers=2)
    assert plan is not None
    assert set(quotas(plan)) == {B, C}
    assert verdict.reason.endswith("; left out: 2 over the limit of peers")
    assert verdict.of_peer[D].startswith("left out: faster peers")


def test_who_is_too_slow_for_a_sample_is_left_out() -> None:
    plan, verdict = result(ballot(A, 1_000_000), ballot(B, 1), target=100)
    assert plan is not None
    assert quotas(plan) == {A: 100}
    assert verdict.reason.endswith("; left out: 1 too slow for a single sample")
    assert "too slow for a single sample" in verdict.of_peer[B]


def test_who_is_at_work_keeps_its_place_though_its_ballot_is_late() -> None:
    before = planned(ballot(A, 60), ballot(B, 30), ballot(C, 10))
    plan, verdict = result(ballot(A, 60), ballot(C, 20, {B: (10**6, 10**6)}), previous=before)
    assert plan is not None
    assert quotas(plan) == {A: 279, B: 140, C: 93}
    assert verdict.of_peer[B].endswith("(its ballot was not seen in time)")
    shares = {member.peer: member.share for member in plan.groups[0].members}
    assert shares[B] < shares[A]  # what others have seen of its link counts
    assert set(quotas(planned(ballot(A, 60), ballot(C, 20), previous=before, absent={B: 3}))) == {A, C}


def test_who_is_in_the_slow_lane_needs_a_ballot_to_stay() -> None:
    newcomer = ballot(E, 40, in_step=False)
    before = planned(ballot(A, 60), newcomer)
    assert before.lane_of(E) == "slow"
    assert set(quotas(planned(ballot(A, 60), previous=before))) == {A}


def test_of_two_ballots_of_a_peer_the_later_counts() -> None:
    early, late = ballot(A, 5, expires=1), ballot(A, 9, expires=2)
    assert planned(early, late) == planned(late, early) == planned(late)


def test_the_step_lane_is_bounded_and_the_slow_lane_takes_the_others() -> None:
    peers = [SigningKey(n.to_bytes(32, "big")).peer_id for n in range(MAX_GROUP_SIZE + 10)]
    plan = planned(*(ballot(peer, 100) for peer in peers), target=10_000, max_peers=10_000)
    assert len(plan.groups[0].members) == MAX_GROUP_SIZE
    assert len(plan.slow) == 10


def test_guests_keep_their_sponsors() -> None:
    cast = four_peers()
    before = planned(*cast, target=128)
    # another link becomes the fastest, which does not matter to the guest
    now = four_peers(LINKS | {C: 100_000_000})
    assert planned(*now, target=128).slow[0].sponsors[0] == C
    assert planned(*now, target=128, previous=before).slow[0].sponsors == before.slow[0].sponsors


def test_a_plan_keeps_who_just_fits() -> None:
    """5 Mbit/s need 0.95 s, which is between 70 and 90 % of an epoch of 128 samples."""
    before = planned(*four_peers())
    assert before.lane_of(D) == "step"
    assert planned(*four_peers(), target=128).lane_of(D) == "slow"
    assert planned(*four_peers(), target=128, previous=before).lane_of(D) == "step"


def test_who_is_not_in_step_is_called_into_it_first() -> None:
    cast = four_peers()
    newcomer = ballot(E, 40_000, in_step=False)
    plan = planned(*cast, newcomer)
    assert plan.lane_of(E) == "slow"
    assert [(member.peer, member.promote) for member in plan.slow] == [(E, True)]
    assert planned(*cast, newcomer.model_copy(update={"in_step": True})).lane_of(E) == "step"
    slow = planned(*(one.model_copy(update={"in_step": one.peer != D}) for one in cast), target=128).slow
    assert [(member.peer, member.promote) for member in slow] == [(D, False)]


rates = st.integers(1, 10**9) | st.sampled_from([625_000, 1_250_000, 12_500_000])
sights = st.dictionaries(st.sampled_from(PEERS), st.tuples(rates, rates), max_size=8)
ballots = st.lists(
    st.builds(
        ballot,
        st.sampled_from(PEERS),
        st.integers(1, 10**12) | st.just(50_000),
        sights,
        expires=st.integers(0, 2),
        epoch=st.integers(0, 9),
        in_step=st.booleans(),
    ),
    min_size=1,
    max_size=12,
)
targets, limits, overlaps = st.integers(1, 10_000), st.integers(1, 8), st.sampled_from([0, 1])


@given(ballots, ballots, st.randoms(use_true_random=False), targets, limits, overlaps)
def test_the_order_of_ballots_does_not_matter(
    earlier: list[Ballot], cast: list[Ballot], order: random.Random, target: int, limit: int, overlap: int
) -> None:
    previous = planned(*earlier)
    mixed = list(cast)
    order.shuffle(mixed)
    options: dict[str, Any] = {"target": target, "max_peers": limit, "overlap": overlap, "previous": previous}
    assert result(*cast, **options) == result(*mixed, **options)
    assert planned(*cast, **options).digest == planned(*mixed, **options).digest


@given(ballots, ballots, targets, limits, overlaps)
def test_what_every_plan_keeps(
    earlier: list[Ballot], cast: list[Ballot], target: int, limit: int, overlap: int
) -> None:
    previous = planned(*earlier)
    plan, verdict = result(*cast, target=target, max_peers=limit, overlap=overlap, previous=previous)
    assert plan is not None
    assert Plan.from_data(decode_canonical(canonical_bytes(plan.to_data()))) == plan
    members = plan.groups[0].members
    known = {one.peer for one in cast} | {member.peer for member in previous.groups[0].members}
    assert set(quotas(plan)) == set(plan.weights) <= known
    assert len(plan.weights) == len(members) + len(plan.slow) <= limit
    assert sum(quotas(plan).values()) == target
    assert sum(member.share for member in members) == WHOLE
    assert list(quotas(plan).values()) == list(apportioned(plan, target))
    for peer, quota in quotas(plan).items():
        # at its measured speed every member ends before the deadline
        assert quota * 10**6 <= (plan.deadline_milliseconds - 200 + 1) * plan.weights[peer] + 10**6
    # everybody who voted or is at work has a lane, or a reason for having none
    assert set(verdict.of_peer) == known
    for peer, reason in verdict.of_peer.items():
        assert reason.split(" ")[0] == (plan.lane_of(peer) or "left")


def apportioned(plan: Plan, target: int) -> list[int]:
    by_peer = sorted(plan.weights.items())
    exact = dict(zip(sorted(plan.weights), apportion(target, [rate for _, rate in by_peer]), strict=True))
    return [exact[peer] for peer in quotas(plan)]


@given(st.lists(st.tuples(st.integers(1, 10**6), rates), min_size=2, max_size=8), sights, targets, overlaps)
def test_a_lie_about_ones_own_link_changes_nothing(
    some: list[tuple[int, int]], lie: Sights, target: int, overlap: int
) -> None:
    peers = PEERS[: len(some)]
    seen = {peer: (rate, rate) for peer, (_, rate) in zip(peers, some, strict=True)}
    honest = [
        ballot(peer, speed, {other: rates for other, rates in seen.items() if other != peer})
        for peer, (speed, _) in zip(peers, some, strict=True)
    ]
    own = {peer: sight for peer, sight in lie.items() if peer == peers[0]} or {peers[0]: (10**9, 10**9)}
    others = {seen.peer: (seen.up, seen.down) for seen in honest[0].links}
    lying = [ballot(peers[0], some[0][0], others | own), *honest[1:]]
    options: dict[str, Any] = {"target": target, "overlap": overlap}
    assert result(*honest, **options) == result(*lying, **options)


@given(ballots, targets, overlaps)
def test_the_prediction_is_that_of_the_plan(cast: list[Ballot], target: int, overlap: int) -> None:
    """Never more than all gather, and all of it where links are no matter."""
    plan = planned(*cast, target=target, overlap=overlap)
    gathered = target * 10**9 // max(1, target * 10**9 // sum(plan.weights.values()))
    links = links_of(one for one in cast if one.peer in plan.weights)
    assert predict(plan, links, PARAMETERS, overlap) <= gathered
    assert predict(plan, {peer: Link(10**15, 10**15, 1) for peer in links}, PARAMETERS, 1) == gathered


@pytest.mark.parametrize("target", [1, 7, 100])
def test_fewer_samples_than_peers(target: int) -> None:
    plan = planned(*(ballot(peer, 100) for peer in PEERS), target=target)
    assert sum(quotas(plan).values()) == target
    assert len(quotas(plan)) == min(target, len(PEERS))
