"""Windows and numbers, from fabricated observations whose right answers are known."""

from __future__ import annotations

import pytest

from benchmarks.heterogeneous.measure import (
    Commit,
    Length,
    Observation,
    Spell,
    Window,
    choose_window,
    control_traffic,
    failed,
    in_one_commit_an_epoch,
    judged,
    measured,
    overrun,
)
from benchmarks.heterogeneous.meter import Reading, between
from benchmarks.heterogeneous.setting import Setting

TWO = Setting(speeds=(1.0, 0.5), links=(100.0, 10.0), target=60)


def commits(count: int, seconds: float, rare_every: int = 1) -> list[Commit]:
    """Peer 0 has 40 samples in each, peer 1 has 20 for each epoch, handed in only now and then."""
    return [
        Commit(i, i * seconds, {0: 40.0} | ({1: 20.0 * rare_every} if i % rare_every == 0 else {}))
        for i in range(count)
    ]


def steady_readings(until: float) -> list[Reading]:
    """Peer 0 sends 1000 and receives 500 bytes a second, peer 1 the opposite; one processor is busy."""
    return [
        Reading(float(t), (1000.0 * t, 500.0 * t), (500.0 * t, 1000.0 * t), float(t)) for t in range(int(until) + 1)
    ]


def test_a_window_is_long_enough_in_seconds_and_in_epochs() -> None:
    assert choose_window(commits(20, 1.0), 4, Length(5.0, 3)) == Window(4, 9)
    assert choose_window(commits(20, 10.0), 4, Length(5.0, 3)) == Window(4, 7)
    assert choose_window(commits(6, 1.0), 4, Length(5.0, 3)) is None


def test_a_window_holds_whole_cycles_of_a_peer_that_hands_in_rarely() -> None:
    window = choose_window(commits(40, 1.0, rare_every=8), 3, Length(10.0, 3))
    assert window == Window(8, 24)


def test_a_peer_that_never_comes_back_does_not_keep_a_window_open_for_ever() -> None:
    one_visit = [Commit(i, float(i), {0: 40.0} | ({1: 20.0} if i == 6 else {})) for i in range(40)]
    window = choose_window(one_visit, 4, Length(10.0, 3))
    assert window == Window(4, 29)


def test_counts_speed_bytes_and_shares() -> None:
    seen = Observation(
        commits=tuple(commits(12, 2.0, rare_every=2)),
        spells=tuple(
            Spell(peer, 2.0 * i, compute=1.5, wait=0.5, transfer=1.0, overruns=0, microbatches=5)
            for peer in (0, 1)
            for i in range(12)
        ),
        settled=2,
    )
    result = measured(TWO, "system", seen, Window(2, 10), steady_readings(24))
    assert result["samples_per_s"] == pytest.approx(30.0)  # 8 epochs of 60 samples in 16 s
    assert result["samples_by_peer"] == [320, 160]
    assert result["seconds_per_epoch"] == pytest.approx(2.0)
    assert result["epochs"] == 8
    assert result["bytes_per_sample"] == pytest.approx(1500 / 30)
    assert result["bytes_per_sample_slowest_link"] == pytest.approx(1500 / 30)
    assert result["time_share"] == pytest.approx({"compute": 0.75, "wait": 0.25, "transfer": 0.5})
    assert result["busy_cores"] == pytest.approx(1.0)
    assert result["control_bytes_per_s"] is None  # averages leave no quiet time
    assert result["void"] is None


def test_control_traffic_is_what_passes_between_averages() -> None:
    """20 s an epoch: 1000 bytes/s all the time, and 10**6 bytes within the last 4 s of it."""
    at = [20.0 * i for i in range(4)]

    def sent(now: float) -> float:
        return 1000 * now + 10**6 * sum(min(1.0, max(0.0, (now - end + 4) / 4)) for end in at)

    readings = [Reading(t / 2, (sent(t / 2),) * 2, (0.0, 0.0), 0.0) for t in range(121)]
    made = [Commit(i, when, {0: 40.0}) for i, when in enumerate(at)]
    spells = [Spell(0, when, 15.0, 0.0, 4.0, 0, 10) for when in at]
    assert control_traffic(made, spells, readings) == pytest.approx(1000)
    assert control_traffic(made[:1], spells, readings) is None


def test_efficiency_is_of_what_the_devices_do_alone() -> None:
    result = {**failed("system", ""), "void": None, "samples_per_s": 54.0}
    told = judged(TWO, result, before=(40.0, 20.0), after=(39.8, 20.2))
    assert told["solo_samples_per_s"] == pytest.approx(60.0)
    assert told["efficiency"] == pytest.approx(0.9)
    assert told["void"] is None


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_device_that_is_too_slow_alone_makes_the_run_void(when: str) -> None:
    speeds = {"before": (40.0, 20.0), "after": (40.0, 20.0)} | {when: (40.0, 19.0)}
    told = judged(TWO, {**failed("s", ""), "void": None, "samples_per_s": 50.0}, **speeds)
    assert f"peer 1 did 19.00 instead of 20 samples/s {when}" in told["void"]


def test_a_failure_stays_void_and_has_no_efficiency() -> None:
    told = judged(TWO, failed("system", "peer 0 ended"), (40.0, 20.0), (40.0, 20.0))
    assert told["efficiency"] is None
    assert told["void"] == "peer 0 ended"


def test_late_devices_make_a_run_void() -> None:
    def spells(late: int) -> list[Spell]:
        return [Spell(0, 1.0, 1, 0, 0, late, 40), Spell(1, 1.0, 1, 0, 0, 0, 40)]

    assert overrun(spells(4)) is None
    assert "peer 0 was late in 5 of 40" in (overrun(spells(5)) or "")


def test_a_fault_of_the_observation_makes_it_void() -> None:
    seen = Observation(tuple(commits(12, 2.0)), settled=2, fault="peers disagree")
    assert measured(TWO, "s", seen, Window(2, 10), steady_readings(24))["void"] == "peers disagree"


def test_averages_of_split_groups_are_one_epoch() -> None:
    split = [Commit(3, 10.0, {0: 8.0, 1: 2.0}), Commit(3, 11.0, {2: 4.0, 1: 1.0}), Commit(4, 15.0, {0: 8.0})]
    assert in_one_commit_an_epoch(split) == (Commit(3, 11.0, {0: 8.0, 1: 3.0, 2: 4.0}), Commit(4, 15.0, {0: 8.0}))


def test_counters_are_interpolated() -> None:
    readings = [Reading(0.0, (0.0,), (0.0,), 0.0), Reading(10.0, (100.0,), (50.0,), 5.0)]
    traffic = between(readings, 2.5, 7.5)
    assert traffic.sent == pytest.approx((50.0,))
    assert traffic.received == pytest.approx((25.0,))
    assert traffic.busy_cores == pytest.approx(0.5)
