"""What rounds show of links: in figures, and over emulated links."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.policy.link import LinkBook, Seen
from peer.swarm.allreduce import AllReduce
from peer.swarm.pace import (
    MAX_RATE,
    MIN_BYTES,
    MIN_SECONDS,
    Arrival,
    Departures,
    Traffic,
    report_arrivals,
    report_departure,
)
from peer.swarm.parts import Contribution

MBIT = 125_000.0
KIB = 1024


class Seeing:
    def __init__(self) -> None:
        self.seen: dict[str, tuple[float, bool]] = {}

    def __call__(self, peer: str, rate: float, at_least: bool) -> None:
        assert peer not in self.seen
        self.seen[peer] = rate, at_least


def arrival(rate: float, num_bytes: int, piece: int = 8 * KIB, came: float = 0.0, begin: float = 0.0) -> Arrival:
    """Pieces that come at `rate` from `came` on, read from `begin` on."""
    found = Arrival(came)
    now = begin
    for sent in range(piece, num_bytes + 1, piece):
        there = came + sent / rate
        found.note(now, max(now, there), piece)
        now = max(now, there)
    return found


# me and b reduce half each, d nothing, all have samples.
MEMBERS = [Contribution("me", 1, 1), Contribution("b", 1, 1), Contribution("d", 1, 0)]
TRAFFIC = Traffic("me", MEMBERS, {"me": 500_000, "b": 500_000})


def test_a_rate_is_scaled_to_all_that_the_link_carries() -> None:
    assert TRAFFIC.up("d", with_means=True) == 2  # its sums go to us and to b
    assert TRAFFIC.up("b", with_means=True) == 3  # its sums and half of the means come to us, the other means go to d
    assert TRAFFIC.up("b", with_means=False) == 1
    assert TRAFFIC.down("d") == 1_000_000
    assert TRAFFIC.down("b") == 1_500_000


def test_a_connection_that_carries_less_ends_sooner() -> None:
    """While 100 come to us, 100 of 400 go to b."""
    traffic = Traffic("me", MEMBERS, {"me": 100, "b": 400})
    assert traffic.up("d", with_means=True) == 2
    assert traffic.down("d") == 200


def test_without_samples_only_means_are_sent() -> None:
    members = [*MEMBERS[:2], Contribution("d", 0, 0)]
    traffic = Traffic("me", members, {"me": 100, "b": 100})
    assert traffic.up("d", with_means=True) == 0
    assert traffic.up("b", with_means=True) == 3
    assert traffic.down("b") == 200  # means of ours and our sums; nothing from d


def test_the_slow_one_is_seen_as_it_is_and_the_fast_one_at_least() -> None:
    seeing = Seeing()
    report_arrivals({"b": arrival(20 * MBIT, 500_000), "d": arrival(2.5 * MBIT, 500_000)}, TRAFFIC, seeing)
    assert seeing.seen["d"] == (pytest.approx(5 * MBIT, rel=0.01), False)
    assert seeing.seen["b"] == (pytest.approx(20 * MBIT, rel=0.01), True)


def test_whoever_is_slow_but_not_the_slowest_sends_no_means_meanwhile() -> None:
    members = [*MEMBERS, Contribution("e", 1, 0)]
    traffic = Traffic("me", members, {"me": 500_000, "b": 500_000})
    arrivals = {
        "b": arrival(10 * MBIT, 500_000),
        "d": arrival(2.5 * MBIT, 500_000),
        "e": arrival(50 * MBIT, 500_000),
    }
    seeing = Seeing()
    report_arrivals(arrivals, traffic, seeing)
    assert seeing.seen["b"] == (pytest.approx(10 * MBIT, rel=0.01), False)
    assert seeing.seen["d"] == (pytest.approx(5 * MBIT, rel=0.01), False)


def test_equally_fast_ones_may_be_held_up_by_our_own_link() -> None:
    seeing = Seeing()
    report_arrivals({"b": arrival(20 * MBIT, 500_000), "d": arrival(18 * MBIT, 500_000)}, TRAFFIC, seeing)
    assert all(at_least for _, at_least in seeing.seen.values())


def test_a_single_other_is_seen_as_it_is() -> None:
    seeing = Seeing()
    traffic = Traffic("me", MEMBERS[:2], {"me": 500_000, "b": 500_000})
    report_arrivals({"b": arrival(20 * MBIT, 500_000)}, traffic, seeing)
    assert seeing.seen == {"b": (pytest.approx(40 * MBIT, rel=0.01), False)}


@pytest.mark.parametrize("early", [0.05, 0.3])
def test_what_came_before_the_round_does_not_look_fast(early: float) -> None:
    """It is read in no time: the rate is that of the rest."""
    found = arrival(8 * MBIT, 500_000, came=0.0, begin=early)
    assert found.is_measured
    assert found.least_rate <= 8 * MBIT
    assert found.rate == pytest.approx(8 * MBIT, rel=0.05)


def test_what_was_all_there_is_at_least_as_fast_as_it_can_have_been() -> None:
    seeing = Seeing()
    arrivals = {"b": arrival(20 * MBIT, 500_000), "d": arrival(2.5 * MBIT, 500_000, begin=2.0)}
    report_arrivals(arrivals, TRAFFIC, seeing)
    rate, at_least = seeing.seen["d"]
    assert at_least
    assert rate == pytest.approx(500_000 / 2.0, rel=0.05)


def test_waiting_for_others_between_reads_is_not_the_members_fault() -> None:
    found, now = Arrival(0.0), 0.0
    for _ in range(20):
        found.note(now, now + 0.01, 16 * KIB)
        now += 0.5
    assert found.rate == pytest.approx(16 * KIB / 0.01)


def test_very_fast_links_are_clamped_and_small_parts_say_nothing() -> None:
    seeing = Seeing()
    report_arrivals({"b": arrival(1e12, 100_000_000), "d": arrival(2 * MBIT, MIN_BYTES // 2)}, TRAFFIC, seeing)
    assert seeing.seen == {"b": (MAX_RATE, True)}
    assert arrival(1e12, 5 * MIN_BYTES).rate == pytest.approx(5 * MIN_BYTES / MIN_SECONDS)


def test_whoever_reduces_little_says_nothing() -> None:
    seeing = Seeing()
    traffic = Traffic("me", MEMBERS, {"me": 100_000, "b": 500_000})
    report_arrivals({"b": arrival(MBIT, 100_000), "d": arrival(10 * MBIT, 100_000)}, traffic, seeing)
    departures = Departures(2)
    departures.mean_is_ready(0.0)
    report_departure("b", Arrival(0.0), 10.0, departures, traffic, seeing)
    assert not seeing.seen


def depart(num_others: int, last_mean: float, leaving: dict[str, float], came_of_d: float = 0.0) -> Seeing:
    seeing, departures = Seeing(), Departures(num_others)
    for now in (1.0, 1.0 + last_mean / 2, 1.0 + last_mean):
        departures.mean_is_ready(now)
    for peer, seconds in leaving.items():
        came = came_of_d if peer == "d" else 0.0
        report_departure(peer, Arrival(came), 1.0 + seconds, departures, TRAFFIC, seeing)
    return seeing


def test_whoever_has_all_means_much_later_is_held_up_by_its_own_link() -> None:
    assert depart(2, 0.9, {"b": 1.0, "d": 4.0}).seen == {"b": (500_000, True), "d": (250_000, False)}
    assert depart(2, 0.9, {"b": 1.0, "d": 1.2}).seen["d"][1]


def test_a_single_other_is_compared_with_the_making_of_means() -> None:
    assert not depart(1, 1.0, {"b": 3.0}).seen["b"][1]
    assert depart(1, 1.0, {"b": 1.1}).seen["b"][1]


def test_whoever_came_late_has_not_been_slow() -> None:
    assert depart(2, 0.5, {"b": 1.0, "d": 4.0}, came_of_d=4.0).seen["d"] == (1_000_000, True)


@given(st.floats(0.1, 60), st.floats(1.6, 100), st.integers(8, 64))
def test_a_slow_link_is_recognised_at_any_speed(mbits: float, factor: float, pieces: int) -> None:
    size = pieces * 16 * KIB
    traffic = Traffic("me", MEMBERS, {"me": size, "b": size})
    seeing = Seeing()
    arrivals = {
        "b": arrival(mbits * factor * MBIT, size, 16 * KIB),
        "d": arrival(mbits * MBIT, size, 16 * KIB),
    }
    report_arrivals(arrivals, traffic, seeing)
    assert seeing.seen["d"] == (pytest.approx(2 * mbits * MBIT, rel=0.01), False)


@pytest.mark.slow  # measures speed, which a busy machine spoils
@pytest.mark.netns
@pytest.mark.swarm
def test_a_link_that_changes_shows_within_four_rounds(swarm: Any, tools: Any) -> None:
    async def scenario() -> None:
        async with swarm.linked(100, 100, 20) as (nodes, network):
            book = LinkBook()
            changing = nodes[2].peer_id
            clock = asyncio.get_running_loop().time

            def saw_up(peer: str, rate: float, at_least: bool) -> None:
                book.saw_up(peer, rate, clock(), at_least=at_least)

            book.saw_up(changing, 20 * MBIT, clock())
            reducers = [AllReduce(nodes[0], patience_seconds=20, saw_up=saw_up)]
            reducers += [AllReduce(node, patience_seconds=20) for node in nodes[1:]]
            for reducer in reducers:
                await reducer.start()
            members = [Contribution(n.peer_id, 5, share) for n, share in zip(nodes, (5, 5, 1), strict=True)]
            sums = np.ones(500_000, np.float32)

            async def up_after_rounds(name: str, count: int) -> float:
                for number in range(count):
                    rounds = (r.run(f"{name} {number}", members, sums, "uniform8") for r in reducers)
                    await asyncio.gather(*rounds)
                return book.seen(clock()).get(changing, Seen(0, 0)).up / MBIT

            assert 12 < await up_after_rounds("before", 2) < 30
            network.limit(2, 2)
            assert 1.0 < await up_after_rounds("slow", 4) < 3.5
            network.limit(2, 100)
            assert await up_after_rounds("again", 4) > 7

    asyncio.run(scenario())
