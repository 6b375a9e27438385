"""Lanes. Links are in Mbit/s, speeds in samples/s, as people name them."""

import random
from fractions import Fraction
from itertools import pairwise
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from protocol.lanes import SLOW_LANE_CODEC, Lanes, Work, place, predict
from protocol.links import Link
from protocol.manifest import Compression
from protocol.pace import Candidate
from protocol.plan import Group, Member, Plan, SlowMember
from protocol.shares import Crowd, encoded_size
from protocol.signing import SigningKey

RUN = "ab" * 32
PEERS = sorted(SigningKey(bytes([n]) * 32).peer_id for n in range(12))
PARAMETERS = 1_100_000


def candidates(speeds: list[float], links: list[float]) -> list[Candidate]:
    rates = [(round(speed * 1000), round(link * 125_000)) for speed, link in zip(speeds, links, strict=True)]
    return [Candidate(peer, *rate) for peer, rate in zip(PEERS, rates, strict=False)]


def work(target: int, overlap: int = 1, compression: Literal["auto"] | Compression = "auto") -> Work:
    return Work(PARAMETERS, target, overlap, compression)


def planned(lanes: Lanes) -> Plan:
    """A plan with these lanes; what else it has does not matter for the next ones."""
    step = sorted(lanes.step, key=lambda one: one.peer)
    members = tuple(Member(one.peer, one.throughput, 1, 1) for one in step)
    slow = tuple(SlowMember(one.peer, one.throughput, 1, cadence, ()) for one, cadence in lanes.slow)
    return Plan(1, (Group(members),), slow, lanes.compression, 1, 1, RUN)


def numbers(lanes: Lanes) -> tuple[list[int], dict[int, int]]:
    """Which candidates step, and the cadences of the others, by number."""
    step = sorted(PEERS.index(one.peer) for one in lanes.step)
    return step, {PEERS.index(one.peer): cadence for one, cadence in lanes.slow}


SPEEDS, LINKS = [40.0, 40, 24, 6], [100.0, 100, 20, 5]


def test_who_keeps_pace_depends_on_the_length_of_an_epoch() -> None:
    # a vector of 1.1 million parameters in 4 bits takes 0.95 s on 5 Mbit/s, and 0.24 s on 20
    assert numbers(place(candidates(SPEEDS, LINKS), work(1024), None)) == ([0, 1, 2, 3], {})
    assert numbers(place(candidates(SPEEDS, LINKS), work(256), None)) == ([0, 1, 2, 3], {})
    # epochs of 1.16, 0.58, 0.29 and 0.15 s
    assert numbers(place(candidates(SPEEDS, LINKS), work(128), None)) == ([0, 1, 2], {3: 2})
    assert numbers(place(candidates(SPEEDS, LINKS), work(64), None)) == ([0, 1, 2], {3: 4})
    assert numbers(place(candidates(SPEEDS, LINKS), work(32), None)) == ([0, 1], {2: 2, 3: 8})
    assert numbers(place(candidates(SPEEDS, LINKS), work(16), None)) == ([0, 1], {2: 4, 3: 16})


def test_a_fifth_peer_on_a_very_slow_link_harms_nobody() -> None:
    lanes = place(candidates([*SPEEDS, 24], [*LINKS, 1]), work(512), None)
    assert numbers(lanes) == ([0, 1, 2, 3], {4: 2})
    assert lanes.goodput >= 133_900  # of the 134 samples/s of all


def test_the_least_lossy_codec_whose_round_is_short() -> None:
    fast = candidates(SPEEDS, [100] * 4)
    assert place(fast, work(512), None).compression == "none"
    assert place(candidates(SPEEDS, [30] * 4), work(512), None).compression == "float16"
    assert place(candidates(SPEEDS, [20] * 4), work(512), None).compression == "uniform8"
    assert place(candidates(SPEEDS, LINKS), work(512), None).compression == "uniform4"
    assert place(candidates(SPEEDS, LINKS), work(8192), None).compression == "none"
    assert place(candidates([5], [1]), work(1), None).compression == "none"  # nothing to transfer


def test_a_codec_that_the_run_fixes() -> None:
    lanes = place(candidates(SPEEDS, LINKS), work(512, compression="none"), None)
    assert lanes.compression == "none"
    assert numbers(lanes) == ([0, 1, 2], {3: 1})  # what the slow lane transfers has 4 bits all the same


def test_the_slow_lane_does_not_overload_its_sponsor() -> None:
    # Equal links, each busy for 0.9 of an epoch with one vector: only one is left to step.
    speeds, links = [1.0] * 8, [10.0] * 8
    seconds = encoded_size(PARAMETERS, SLOW_LANE_CODEC) / 1_250_000
    lanes = place(candidates(speeds, links), work(round(8 * seconds / 0.9)), None)
    step, slow = numbers(lanes)
    assert len(step) == 1
    assert set(slow.values()) == {16}  # seven transfers in 16 epochs: 0.4 of the sponsor's time; in 8: 0.8


def test_exact_training_steps_with_whom_it_pays() -> None:
    lanes = place(candidates(SPEEDS, LINKS), work(512, overlap=0), None)
    assert numbers(lanes) == ([0, 1, 2], {3: 1})
    assert lanes.goodput >= 84_000
    assert numbers(place(candidates(SPEEDS, [100] * 4), work(512, overlap=0), None)) == ([0, 1, 2, 3], {})


def test_a_newcomer_with_a_fast_link_takes_the_place_of_a_slow_one() -> None:
    for overlap in (0, 1):
        five = candidates([10.0] * 5, [10, 10, 10, 1, 100])
        before = planned(place(five[:4], work(2048, overlap), None))
        assert before.lane_of(PEERS[3]) == "step"
        shorter = work(256, overlap)
        assert 4 in numbers(place(five, shorter, before))[0]
        assert 3 not in numbers(place(five, shorter, before))[0]


def test_a_link_that_breaks_down_and_recovers() -> None:
    for overlap in (0, 1):
        good, bad = candidates(SPEEDS, [100] * 4), candidates(SPEEDS, [100, 1, 100, 100])
        plan = planned(place(good, work(512, overlap), None))
        assert numbers(place(bad, work(512, overlap), plan))[0] == [0, 2, 3]
        plan = planned(place(bad, work(512, overlap), plan))
        assert numbers(place(good, work(512, overlap), plan)) == ([0, 1, 2, 3], {})


def test_whoever_has_most_of_the_throughput_behind_a_dead_link_is_not_left_out() -> None:
    some = [Candidate(PEERS[0], 1, 10**9), Candidate(PEERS[1], 10**9, 1000)]
    alone, both = place(some[:1], work(512), None), place(some, work(512), None)
    assert numbers(both)[0] == [0, 1]
    assert both.goodput > alone.goodput


def test_the_prediction_for_a_plan() -> None:
    lanes = place(candidates(SPEEDS, LINKS), work(128), None)
    members = tuple(Member(one.peer, one.throughput, 30, 1) for one in lanes.step)
    slow = tuple(SlowMember(one.peer, one.throughput, 38, cadence, ()) for one, cadence in lanes.slow)
    plan = Plan(1, (Group(members),), slow, lanes.compression, 1, 1, RUN)
    links = {one.peer: Link(one.rate, one.rate * 2, 1) for one in candidates(SPEEDS, LINKS)}
    assert predict(plan, links, PARAMETERS, overlap=1) == lanes.goodput
    assert 109_900 <= lanes.goodput <= 110_100
    assert predict(plan, {}, PARAMETERS, overlap=0) < lanes.goodput


# Properties: swarms with rounds from much shorter to much longer than an epoch

speeds = st.integers(1, 10**6) | st.just(50_000)
rates = st.integers(10, 10**9) | st.sampled_from([10**5, 2 * 10**5, 10**6])


def swarms_of(least: int) -> st.SearchStrategy[list[Candidate]]:
    return st.lists(st.tuples(speeds, rates), min_size=least, max_size=12).map(
        lambda some: [Candidate(peer, *one) for peer, one in zip(PEERS, some, strict=False)]
    )


swarms = swarms_of(1)
codecs = st.sampled_from(["auto", "auto", "none", "float16", "uniform8", "uniform4"])


def works_with(overlap: st.SearchStrategy[int]) -> st.SearchStrategy[Work]:
    return st.builds(Work, st.integers(1, 10**7), st.integers(1, 4096), overlap, codecs)


works, overlapped_works = works_with(st.sampled_from([0, 1])), works_with(st.just(1))


def single(some: list[Candidate], work: Work) -> int:
    """Goodput of one group of all, with the least lossy codec of which a round takes at most so much of an epoch."""
    throughput = sum(one.throughput for one in some)
    crowd = Crowd.of([one.rate for one in some])
    allowed = work.gathering_microseconds(throughput) * Fraction(35 if work.overlap else 14, 100)
    durations = [crowd.microseconds(work.size(codec)) for codec in work.codecs]
    return work.goodput(throughput, next((one for one in durations if one <= allowed), durations[-1]))


@given(swarms, works, st.randoms(use_true_random=False))
def test_everybody_is_placed_once_whatever_the_order(some: list[Candidate], work: Work, order: random.Random) -> None:
    mixed = list(some)
    order.shuffle(mixed)
    lanes = place(some, work, None)
    assert lanes == place(mixed, work, None)
    placed = [*lanes.step, *(one for one, _ in lanes.slow), *(one for one, _ in lanes.left_out)]
    assert sorted(placed, key=lambda one: one.peer) == some
    assert lanes.step


@given(swarms, swarms, works)
def test_no_plan_is_predicted_to_be_worse_than_one_group_of_all(
    some: list[Candidate], then: list[Candidate], work: Work
) -> None:
    lanes = place(some, work, None)
    assert lanes.goodput >= single(some, work)
    if work.overlap:
        assert place(then, work, planned(lanes)).goodput >= single(then, work)


def are_some_hopeless(some: list[Candidate], work: Work) -> bool:
    """Whether somebody's link, or so many guests of such a link, might be too slow even for the slow lane."""
    epoch = work.gathering_microseconds(sum(one.throughput for one in some))
    longest = work.size(SLOW_LANE_CODEC) * 10**6 // min(one.rate for one in some)
    return longest * 4 * len(some) > 700 * epoch


@given(swarms, overlapped_works)
def test_rounds_fit_and_cadences_are_the_least(some: list[Candidate], work: Work) -> None:
    lanes = place(some, work, None)
    epoch = lanes.gathering_microseconds
    assert lanes.round_microseconds <= Fraction(9, 10) * epoch or are_some_hopeless(some, work)
    vector = work.size(SLOW_LANE_CODEC)
    floor = min((cadence for _, cadence in lanes.slow), default=1)
    for one, cadence in lanes.slow:
        needed = Fraction(vector * 10**6, one.rate)
        assert cadence in {2**k for k in range(11)}
        assert needed <= Fraction(7, 10) * cadence * epoch
        # with half of the cadence, its own link or those of the sponsors would be too slow
        if cadence > floor:
            assert needed > Fraction(7, 10) * (cadence // 2) * epoch - 1


@given(swarms, works, st.data())
def test_jitter_does_not_move_peers_back_and_forth(some: list[Candidate], work: Work, data: st.DataObject) -> None:
    percents = st.integers(90, 110) | st.sampled_from([90, 110])
    previous = planned(place(some, work, None)) if data.draw(st.booleans()) else None
    lanes: list[frozenset[str]] = []
    for _ in range(6):
        jitter = data.draw(st.lists(percents, min_size=len(some), max_size=len(some)))
        # 1000 times finer than needed, so that rounding does not add to the jitter
        now = [
            Candidate(one.peer, one.throughput, one.rate * 10 * percent)
            for one, percent in zip(some, jitter, strict=True)
        ]
        finer = Work(work.num_parameters * 1000, work.target_batch_size, work.overlap, work.compression)
        previous = planned(place(now, finer, previous))
        lanes.append(frozenset(member.peer for member in previous.groups[0].members))
    changes = [lane for lane, before in zip(lanes, [None, *lanes], strict=False) if lane != before]
    assert len(changes) == len(set(changes)), "a step lane that was left came back"
    if work.overlap:
        for one in some:
            is_in = [one.peer in lane for lane in lanes]
            assert sum(now != then for now, then in pairwise(is_in)) <= 1


@given(swarms_of(9), overlapped_works, st.integers(10, 10**9))
def test_one_more_peer_moves_few_others(some: list[Candidate], work: Work, rate: int) -> None:
    *others, newcomer = some
    before = planned(place(others, work, None))
    joining = Candidate(newcomer.peer, max(1, sum(one.throughput for one in others) // 20), rate)
    after = planned(place([*others, joining], work, before))
    if are_some_hopeless([*others, joining], work):
        return
    moved = [one for one in others if before.lane_of(one.peer) != after.lane_of(one.peer)]
    assert len(moved) <= 1
