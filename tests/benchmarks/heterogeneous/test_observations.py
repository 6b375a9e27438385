"""What each system's events mean, from fabricated ones."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.heterogeneous.processes import Said
from benchmarks.heterogeneous.setting import Setting
from benchmarks.heterogeneous.systems import ddp, hivemind, minga

TWO = Setting(speeds=(1.0, 0.5), links=(100.0, 10.0), target=60)


def said(number: int, at: float, event: str, **facts: Any) -> Said:
    return Said(number, at, {"event": event, **facts})


# minga


def committed(peer: int, at: float, epoch: int, samples: dict[str, int], **facts: Any) -> Said:
    usual = {
        "guests": {},
        "gather_seconds": 1.8,
        "wait_seconds": 0.2,
        "transfer_seconds": 0.7,
        "stale_samples": 0,
        "overruns": 0,
    }
    return said(peer, at, "EpochCommitted", epoch=epoch, samples=samples, **usual | facts)


def minga_start() -> list[Said]:
    return [
        said(0, 0.0, "Started", peer="A"),
        said(0, 0.5, "Measured", microbatch=8),
        said(1, 5.0, "Started", peer="B"),
        said(1, 5.5, "Measured", microbatch=4),
    ]


def test_minga_is_measured_two_terms_after_all_are_in() -> None:
    events = [*minga_start(), committed(0, 8.0, 1, {"A": 60})]
    events.append(said(0, 9.0, "PlanAdopted", shares=[{"peer": "A", "reduces": 0.7}, {"peer": "B", "reduces": 0.3}]))
    for epoch in range(2, 13):
        events += [committed(peer, 8.0 + epoch + peer / 100, epoch, {"A": 40, "B": 20}) for peer in (0, 1)]
    seen = minga.observation(TWO, events)
    assert [commit.epoch for commit in seen.commits] == list(range(1, 13))
    assert seen.settled == 8, "epoch 9: two terms of two epochs after all were in and the warm-up of 4 epochs was over"
    assert seen.commits[5].samples == {0: 40.0, 1: 20.0}
    assert seen.commits[0].reduces == {}
    assert seen.commits[5].reduces == {0: 0.7, 1: 0.3}
    assert seen.extras["seconds_to_join"] == pytest.approx(5.0)
    spell = next(s for s in seen.spells if s.peer == 1)
    assert (spell.compute, spell.wait, spell.transfer, spell.microbatches) == (1.8, 0.2, 0.7, 5)


def test_minga_is_not_measured_before_all_are_in() -> None:
    events = [*minga_start(), *(committed(0, 8.0 + e, e, {"A": 60}) for e in range(1, 20))]
    assert minga.observation(TWO, events).settled is None


def test_samples_of_guests_are_theirs_and_count_once() -> None:
    """Only the sponsor tells its own samples and its guest's apart; the others see their sum."""
    three = Setting(speeds=(1, 1, 0.5), links=(100, 100, 1), target=60)
    started = [*minga_start(), said(2, 5.0, "Started", peer="C")]
    events = [
        committed(0, 9.0, 4, {"A": 30, "B": 50}),
        committed(1, 9.1, 4, {"A": 30, "B": 20, "C": 30}, guests={"C": 30}),
    ]
    for order in (events, events[::-1]):
        seen = minga.observation(three, [*started, *order])
        assert seen.commits[0].samples == {0: 30.0, 1: 20.0, 2: 30.0}
        assert seen.fault is None


def test_peers_that_disagree_are_not_believed() -> None:
    events = [*minga_start(), committed(0, 9.0, 4, {"A": 30, "B": 20}), committed(1, 9.1, 4, {"A": 31, "B": 20})]
    assert "epoch 4" in (minga.observation(TWO, events).fault or "")


# DDP


def step(peer: int, number: int, began: float, ready: float, done: float, samples: int) -> Said:
    return said(peer, done, "Step", step=number, began=began, ready=ready, samples=samples, overruns=0, microbatches=4)


def test_ddp_counts_steps_that_all_have_finished() -> None:
    events = []
    for n in range(4):
        events += [
            step(0, n, 10.0 * n, 10.0 * n + 6, 10.0 * n + 9, 40),
            step(1, n, 10.0 * n, 10.0 * n + 7, 10.0 * n + 9, 20),
        ]
    events.append(step(0, 4, 40.0, 46.0, 49.0, 40))
    seen = ddp.observation((0, 1), events)
    assert len(seen.commits) == 4
    assert seen.commits[1].samples == {0: 40.0, 1: 20.0}
    assert seen.settled == 2
    fast, slow = (next(s for s in seen.spells if s.peer == peer) for peer in (0, 1))
    assert (fast.compute, fast.wait, fast.transfer) == (6.0, 1.0, 2.0)
    assert (slow.compute, slow.wait, slow.transfer) == (7.0, 0.0, 2.0)


def test_ddp_batches() -> None:
    setting = Setting()
    assert ddp.Ddp("ddp").quotas(setting) == (186, 186, 112, 28)
    assert ddp.Ddp("ddp-equal").quotas(setting) == (128, 128, 128, 128)
    without = ddp.Ddp("ddp-without-slowest")
    assert without.members(setting) == (0, 1, 2)
    assert sum(without.quotas(setting)) == 512


# hivemind


def ended(peer: int, at: float, group: str, weight: float, accepted: dict[str, float], **facts: Any) -> Said:
    usual = {"me": f"id{peer}", "size": 2, "received": 1.0, "seconds": 1.0}
    return said(peer, at, "RoundEnded", group=group, weight=weight, accepted=accepted, **usual | facts)


def whole_round(epoch: int, at: float) -> list[Said]:
    """Each of two peers reduces a half, and accepts everything."""
    return [
        said(0, at - 2, "Averaging", epoch=epoch),
        said(1, at - 2, "Averaging", epoch=epoch),
        ended(0, at, f"group{epoch}", 40.0, {"id0": 0.5, "id1": 0.5}),
        ended(1, at + 0.1, f"group{epoch}", 20.0, {"id0": 0.5, "id1": 0.5}),
    ]


def test_hivemind_counts_what_reducers_accepted() -> None:
    events = [said for epoch in range(7) for said in whole_round(epoch, 10.0 * epoch + 10)]
    lost = [
        said(0, 78.0, "Averaging", epoch=7),
        ended(0, 80.0, "group7", 40.0, {"id0": 0.5, "id1": 0.0}),
        ended(1, 80.1, "group7", 20.0, {"id0": 0.5, "id1": 0.5}, received=0.5),
    ]
    seen = hivemind.observation([*events, *lost], now=200.0, peers=2)
    assert seen.commits[3].samples == {0: 40.0, 1: 20.0}
    assert seen.commits[-1].samples == {0: 40.0, 1: 10.0}, "half of the slower peer's vector was not accepted"
    assert seen.extras["complete_rounds"] == "2 of 3"
    assert seen.extras["claimed_samples_per_s"] == pytest.approx(6.0)


def test_rounds_that_not_all_have_reported_wait_with_all_that_follow() -> None:
    events = [said for epoch in range(3) for said in whole_round(epoch, 10.0 * epoch + 10)]
    late = [s for s in events if not (s.peer == 1 and s.event.get("group") == "group1")]
    assert len(hivemind.observation(late, now=31.0, peers=2).commits) == 1
    assert len(hivemind.observation(late, now=100.0, peers=2).commits) == 3


def test_blocked_time_is_transfer_while_a_round_runs_and_waiting_otherwise() -> None:
    events = [
        ended(0, 10.0, "g", 1.0, {}, seconds=3.0),
        said(0, 11.0, "Microbatch", epoch=1, compute=0.2, blocked=6.0, overruns=0),
    ]
    (spell,) = hivemind.observation(events, now=20.0, peers=2).spells
    assert (spell.compute, spell.wait, spell.transfer) == (0.2, 3.0, 3.0)


def test_an_expert_delays_averaging_only_where_epochs_are_long() -> None:
    assert hivemind.tuning_of("hivemind", Setting(target=512)) == "sync"
    assert hivemind.tuning_of("hivemind", Setting(target=2048)) == "delayed"
    assert hivemind.tuning_of("hivemind-default", Setting(target=2048)) == "default"
