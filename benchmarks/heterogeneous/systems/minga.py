"""minga, run as its users run it: one `minga host`, and `minga join` with its invite for everybody else."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.heterogeneous.measure import Commit, Observation, Spell
from benchmarks.heterogeneous.processes import Said
from benchmarks.heterogeneous.setting import Setting
from benchmarks.heterogeneous.systems import Stage
from benchmarks.heterogeneous.workload import NUM_PARAMETERS, WARMUP_EPOCHS, run_toml
from protocol.manifest import AveragingSection

START_SECONDS = 120.0
MAX_NOTICES = 20
SETTLING_TERMS = 2
"""that pass after everybody's samples were in a commit, before anything is measured"""
STATE_BYTES = 12 * NUM_PARAMETERS
"""that a newcomer fetches: weights and two moments"""
HOST = 0
"""the peer that founds the run"""


class Minga:
    def __init__(self, name: str, *, exact: bool) -> None:
        self.name, self._exact = name, exact
        self.remarks: tuple[str, ...] = ()

    def start(self, stage: Stage) -> None:
        toml = stage.directory / "run.toml"
        toml.write_text(run_toml(stage.setting, exact=self._exact))
        self._start(stage, HOST, ["host", str(toml)])
        started = stage.processes.wait_for(HOST, "Started", START_SECONDS)
        for peer in stage.setting.peers:
            if peer != HOST:
                self._start(stage, peer, ["join", started.event["invite"]])

    def observe(self, stage: Stage) -> Observation:
        return observation(stage.setting, stage.processes.said())

    def patience_seconds(self, setting: Setting) -> float:
        """Three times as long as the state takes through the slowest link, and the first epochs."""
        transfer = STATE_BYTES * 8 / (setting.slowest_mbits * 1e6)
        return START_SECONDS + 3 * transfer + 20 * setting.epoch_seconds

    def _start(self, stage: Stage, peer: int, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-m", "peer", *arguments, "--json", "--device", "cpu", "--name", f"peer {peer}"]
        command += ["--bind", stage.network.address(peer)]
        command += ["--emulate-throughput", f"{stage.setting.rates[peer]:g}"]
        home = stage.directory / f"home-{peer}"
        stage.processes.start(peer, stage.network.command(peer, command), {"MINGA_HOME": str(home)})


def observation(setting: Setting, said: Sequence[Said]) -> Observation:
    """What the peers' events tell."""
    numbers = {str(s.event["peer"]): s.peer for s in said if s.name == "Started"}
    commits = _commits(said, numbers)
    joined_at = _joined_at(said, numbers, len(setting.speeds))
    settled = None
    if joined_at is not None:
        pause = SETTLING_TERMS * AveragingSection().term_epochs
        position = max(
            sum(commit.at <= joined_at for commit in commits), sum(c.epoch <= WARMUP_EPOCHS for c in commits)
        )
        position += pause
        settled = position if position < len(commits) else None
    first_join = min((s.at for s in said if s.name == "Started" and s.peer != HOST), default=None)
    extras: dict[str, Any] = {"stale_samples": _stale(said), "notices": _notices(said)}
    if joined_at is not None and first_join is not None:
        extras["seconds_to_join"] = joined_at - first_join
    return Observation(
        tuple(commits), tuple(_spells(said, numbers, commits)), settled, extras, _disagreement(said, numbers)
    )


def _commits(said: Sequence[Said], numbers: Mapping[str, int]) -> list[Commit]:
    """Each epoch once: its samples as peers agree on them, at the median of the moments at which they committed it."""
    moments: dict[int, list[float]] = {}
    samples: dict[int, dict[str, int]] = {}
    for s in said:
        if s.name == "EpochCommitted":
            epoch, me = int(s.event["epoch"]), _id_of(s.peer, numbers)
            moments.setdefault(epoch, []).append(s.at)
            counted = samples.setdefault(epoch, _as_agreed(s.event, me))
            for guest, count in s.event["guests"].items():  # only the sponsor knows them apart
                counted[me] -= count
                counted[guest] = counted.get(guest, 0) + count
    plans = [s for s in said if s.name == "PlanAdopted" and s.peer == HOST]
    commits = []
    for epoch in sorted(moments):
        at = sorted(moments[epoch])[(len(moments[epoch]) - 1) // 2]
        counted = {numbers[peer]: float(count) for peer, count in samples[epoch].items() if peer in numbers}
        shares = next((plan.event["shares"] for plan in reversed(plans) if plan.at < at), [])
        commits.append(
            Commit(epoch, at, counted, {numbers[s["peer"]]: s["reduces"] for s in shares if s["peer"] in numbers})
        )
    return commits


def _as_agreed(event: Mapping[str, Any], me: str) -> dict[str, int]:
    """A commit's samples as the round had them: those of guests under their sponsor's name."""
    samples = dict(event["samples"])
    for guest, count in event["guests"].items():
        samples[guest] -= count
        samples[me] = samples.get(me, 0) + count
    return {peer: count for peer, count in samples.items() if count}


def _disagreement(said: Sequence[Said], numbers: Mapping[str, int]) -> str | None:
    """What two peers say differently of one commit, or None."""
    agreed: dict[int, dict[str, int]] = {}
    for s in said:
        if s.name == "EpochCommitted":
            mine = _as_agreed(s.event, _id_of(s.peer, numbers))
            if agreed.setdefault(int(s.event["epoch"]), mine) != mine:
                return f"peers disagree on the samples of epoch {s.event['epoch']}"
    return None


def _id_of(number: int, numbers: Mapping[str, int]) -> str:
    return next((peer for peer, known in numbers.items() if known == number), "")


def _spells(said: Sequence[Said], numbers: Mapping[str, int], commits: Sequence[Commit]) -> list[Spell]:
    """One for each peer and epoch, at the epoch's commit, so that none falls out of a window by a millisecond."""
    moments = {commit.epoch: commit.at for commit in commits}
    sizes = {s.peer: int(s.event["microbatch"]) for s in said if s.name == "Measured"}
    spells = []
    for s in said:
        if s.name == "EpochCommitted":
            own = s.event["samples"].get(_id_of(s.peer, numbers), 0)
            spells.append(
                Spell(
                    peer=s.peer,
                    at=moments[s.event["epoch"]],
                    compute=s.event["gather_seconds"],
                    wait=s.event["wait_seconds"],
                    transfer=s.event["transfer_seconds"],
                    overruns=s.event["overruns"],
                    microbatches=math.ceil(own / sizes.get(s.peer, 1)),
                )
            )
    return spells


def _joined_at(said: Sequence[Said], numbers: Mapping[str, int], peers: int) -> float | None:
    """When the last peer was first seen with samples in a commit."""
    seen: set[int] = set()
    for s in said:
        if s.name == "EpochCommitted":
            seen |= {numbers[peer] for peer in s.event["samples"] if peer in numbers}
            if len(seen) == peers:
                return s.at
    return None


def _stale(said: Sequence[Said]) -> int:
    """Samples that were worked with the weights of the epoch before; over the whole run."""
    return sum(int(s.event.get("stale_samples", 0)) for s in said if s.name == "EpochCommitted")


def _notices(said: Sequence[Said]) -> list[str]:
    """What the peers wanted their owners to know, the latest."""
    return [f"peer {s.peer}: {s.event['text']}" for s in said if s.name == "Notice"][-MAX_NOTICES:]
