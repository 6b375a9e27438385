"""Peers die, freeze and come back: the others go on, nobody waits beyond the grace, no update is wrong or zero."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from peer.places import CHECKPOINTS
from peer.training.checkpoint import load_latest

pytestmark = pytest.mark.swarm

GRACE = 2.0


def assert_nobody_hung(peer, after_epoch: int, epoch_seconds: float) -> None:
    for commit in peer.commits:
        if commit["epoch"] > after_epoch:
            assert commit["seconds"] <= epoch_seconds + GRACE + 2.0, commit  # 2 s: retry of the round on a busy machine


def test_kill_while_gathering(swarm, assert_same_replicas) -> None:
    host, victim, other = swarm.three(target=96, grace=GRACE)
    before = host.wait_epoch(1, peers=3)
    family = victim.family()
    assert len(family) >= 3, "a peer is a daemon, its libp2p daemon and a worker"
    victim.kill()
    _, alive = psutil.wait_procs(family, timeout=3)
    assert not alive, "a killed daemon's children end within 3 s"
    host.wait_epoch(before["epoch"] + 2, seconds=30)
    assert_same_replicas(host, other)
    assert_nobody_hung(host, before["epoch"], before["seconds"])
    assert all(sum(c["samples"].values()) > 0 for c in host.commits)


def test_kill_inside_a_round(swarm, assert_same_replicas) -> None:
    """Half of its gradient has left when the peer dies: that attempt commits nowhere, the next one without it."""
    host = swarm.host("--emulate-throughput", "60", target=96, grace=GRACE)
    other = swarm.join(host.started["invite"], "--emulate-throughput", "30")
    here = Path(__file__).parent
    program = [sys.executable, str(here / "dying_peer.py"), "4"]
    victim = swarm.join(host.started["invite"], "--emulate-throughput", "30", program=program)
    assert victim.process.wait(60) == -signal.SIGKILL, victim.story()
    died = victim.started["peer"]
    retried = host.wait_for(lambda e: e["event"] == "EpochCommitted" and e["attempt"] > 0)
    assert died not in retried["samples"]
    assert_same_replicas(host, other)
    with_it = [c for c in host.commits if died in c["samples"]]
    assert with_it and max(c["epoch"] for c in with_it) < retried["epoch"]
    assert_nobody_hung(host, with_it[-1]["epoch"], with_it[-1]["seconds"])


def test_frozen_peer_is_left_behind_and_comes_back(swarm, assert_same_replicas) -> None:
    host, victim, other = swarm.three(target=96, grace=GRACE)
    frozen = [victim.process.pid]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    name = victim.started["peer"]
    gone = host.wait_for(lambda e: e["event"] == "EpochCommitted" and e["attempt"] > 0, seconds=30)
    assert name not in gone["samples"]
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    host.wait_for(lambda e: e["event"] == "EpochCommitted" and e["epoch"] > gone["epoch"] and name in e["samples"])
    assert_same_replicas(host, victim, other)


def test_killed_worker_is_replaced(swarm) -> None:
    host = swarm.host("--emulate-throughput", "60", target=60)
    host.wait_epoch(1)
    worker = next(p for p in host.family() if "peer.training.worker" in " ".join(p.cmdline()))
    worker.kill()
    epoch = host.commits[-1]["epoch"]
    host.wait_event("Notice")
    host.wait_epoch(epoch + 3, seconds=30)
    assert all(sum(c["samples"].values()) > 0 for c in host.commits)
    assert host.stop() == 0


def test_host_may_vanish_and_a_third_joins_through_the_second(swarm) -> None:
    import json
    import subprocess

    host = swarm.host("--emulate-throughput", "60", target=60, grace=GRACE)
    second = swarm.join(host.started["invite"], "--emulate-throughput", "60")
    together = host.wait_epoch(1, peers=2)
    assert second.wait_epoch(together["epoch"], peers=2)["epoch"] == together["epoch"]
    host.kill()
    lonely = second.wait_for(
        lambda e: e["event"] == "EpochCommitted" and e["epoch"] > together["epoch"] and len(e["samples"]) == 1
    )
    shown = subprocess.run(
        [sys.executable, "-m", "peer", "invite", "--json", "--state-dir", second.started["state_dir"]],
        capture_output=True,
        text=True,
        check=True,
    )
    third = swarm.join(json.loads(shown.stdout)["invite"], "--emulate-throughput", "60")
    third.wait_for(
        lambda e: e["event"] == "EpochCommitted" and e["epoch"] > lonely["epoch"] and len(e["samples"]) == 2, 60
    )
    assert third.stop() == 0
    assert second.stop() == 0


def test_stopped_peer_resumes_where_it_was(swarm) -> None:
    """Alone in its run, a stopped peer goes on from its checkpoint."""
    host = swarm.host("--emulate-throughput", "120", target=60)
    host.wait_epoch(3)
    began = time.monotonic()
    assert host.stop() == 0
    assert time.monotonic() - began < 10
    left = host.wait_event("Left")
    again = swarm.host("--emulate-throughput", "120", target=60)
    assert again.started["run"] == host.started["run"]
    assert again.started["invite"] == host.started["invite"], "same identity, same port"
    first = again.wait_epoch(1)
    assert first["epoch"] == left["epoch"] + 1


def test_full_disk_at_a_checkpoint(swarm, small_disk: Path) -> None:
    """Training goes on, the owner is told once each time, the old checkpoint stays."""
    state = small_disk / "state"
    host = swarm.host("--emulate-throughput", "120", "--state-dir", str(state), target=40, checkpoint_every=2)
    host.wait_event("CheckpointSaved")
    kept = sorted((state / CHECKPOINTS).iterdir())
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    told = host.wait_for(lambda e: e["event"] == "Notice" and "checkpoint" in e["text"])
    assert "space" in told["text"]
    after = host.commits[-1]["epoch"]
    host.wait_epoch(after + 3)
    assert [path for path in kept if path.exists()], "an old checkpoint stays"
    assert load_latest(state / CHECKPOINTS, host.started["run"]) is not None
    filler.unlink()
    saved = host.wait_for(lambda e: e["event"] == "CheckpointSaved" and e["epoch"] > after)
    assert host.stop() == 0
    found = load_latest(state / CHECKPOINTS, host.started["run"])
    assert found is not None and found.epoch >= saved["epoch"]
