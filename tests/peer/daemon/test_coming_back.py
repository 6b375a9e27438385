"""Peers that were away, or whose links are slow: they fetch what they missed, and end bit for bit with the others."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from peer.places import CHECKPOINTS
from peer.training.checkpoint import SavedState, load_latest

pytestmark = pytest.mark.swarm


def catch_ups(peer) -> list[dict]:
    return [event for event in peer.events if event["event"] == "CaughtUp"]


def assert_only_gradients(fetched: list[dict], num_parameters: int, at_least: int) -> None:
    """Whoever missed a few epochs fetched one byte a parameter for each, and no state of twelve."""
    assert fetched and all(event["gradients"] for event in fetched), fetched
    assert sum(event["gradients"] for event in fetched) >= at_least
    for event in fetched:
        assert event["size"] < 1.1 * num_parameters * event["gradients"] < 12 * num_parameters


def test_a_suspended_peer_comes_back_by_gradients_only(swarm, assert_same_replicas) -> None:
    host, victim, other = swarm.three(target=96, grace=1.0, compression="uniform8")
    name, before = victim.started["peer"], len(catch_ups(victim))
    os.kill(victim.process.pid, signal.SIGSTOP)
    gone = host.wait_for(lambda e: e["event"] == "EpochCommitted" and e["attempt"] > 0, seconds=30)
    assert name not in gone["samples"]
    host.wait_epoch(gone["epoch"] + 3)
    os.kill(victim.process.pid, signal.SIGCONT)
    host.wait_for(lambda e: e["event"] == "EpochCommitted" and e["epoch"] > gone["epoch"] + 3 and name in e["samples"])
    assert_same_replicas(host, victim, other)
    assert_only_gradients(catch_ups(victim)[before:], victim.started["num_parameters"], at_least=3)


def test_a_restarted_peer_comes_back_by_gradients_only(swarm, assert_same_replicas) -> None:
    """Its checkpoint is a few epochs old; the epochs are long, since a start takes seconds."""
    host, victim, other = swarm.three(target=270, grace=1.0, compression="uniform8", overlap=0)
    name = victim.started["peer"]
    assert victim.stop() == 0
    left = victim.wait_event("Left")["epoch"]
    host.wait_epoch(left + 2)
    again = swarm.join(host.started["invite"], "--emulate-throughput", "36", "--state-dir", victim.started["state_dir"])
    assert again.started["peer"] == name
    host.wait_for(lambda e: e["event"] == "EpochCommitted" and e["epoch"] > left + 2 and name in e["samples"])
    assert_same_replicas(host, again, other)
    assert_only_gradients(catch_ups(again), again.started["num_parameters"], at_least=2)


def same_checkpoints(peers) -> list[SavedState]:
    """Of one and the same epoch."""
    deadline = time.monotonic() + 30
    while True:
        assert time.monotonic() < deadline, "never saw checkpoints of the same epoch"
        saved = [load_latest(Path(p.started["state_dir"]) / CHECKPOINTS, p.started["run"]) for p in peers]
        found = [state for state in saved if state is not None]
        if len(found) == len(peers) and len({state.epoch for state in found}) == 1:
            return found
        time.sleep(0.1)


@pytest.mark.netns
@pytest.mark.parametrize("place", [[0, 0, 6]], indirect=True)
def test_a_newcomer_behind_a_slow_link_comes_into_step(swarm, place) -> None:
    """A state takes 2 s here and an epoch half a second; the gradients of those epochs come after it."""
    host = swarm.host("--emulate-throughput", "60", target=48, checkpoint_every=5, compression="uniform8", **place(0))
    invite = host.started["invite"]
    swarm.join(invite, "--emulate-throughput", "36", **place(1))
    host.wait_epoch(15, peers=2, seconds=60)
    slow = swarm.join(invite, "--emulate-throughput", "12", **place(2))
    name = slow.started["peer"]
    together = host.wait_for(
        lambda e: e["event"] == "EpochCommitted" and name in e["samples"] and name not in e["guests"], 60
    )
    state, *gradients = catch_ups(slow)
    assert state["gradients"] == 0 and state["size"] == 12 * slow.started["num_parameters"]
    assert gradients and gradients[0]["gradients"] >= 2, "epochs passed meanwhile"
    assert all(event["gradients"] for event in gradients), "no state was fetched again"

    host.wait_epoch(together["epoch"] + 10)
    saved = same_checkpoints(swarm.peers)
    assert saved[0].epoch > together["epoch"]
    assert len({(found.lineage, *(v.tobytes() for v in (found.weights, found.m, found.v))) for found in saved}) == 1
