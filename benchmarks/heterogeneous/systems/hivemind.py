"""`hivemind.Optimizer`: tuned by hand, or with its defaults. What counts is what its reducers really accepted."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.heterogeneous.measure import Commit, Observation, Spell, in_one_commit_an_epoch
from benchmarks.heterogeneous.processes import Said
from benchmarks.heterogeneous.setting import Setting
from benchmarks.heterogeneous.systems import Stage
from benchmarks.heterogeneous.workload import NUM_PARAMETERS

START_SECONDS = 240.0
SETTLING_EPOCHS = 4
"""not measured: at first peers fall out of step and fetch the state anew"""
REPORT_SECONDS = 45.0
"""within which every member tells how a round ended, or is not going to"""
UNLIMITED_MBITS = 1000.0
GRADIENT_BYTES = NUM_PARAMETERS
"""as 8-bit numbers"""
PART_BYTES = 2**19
"""that hivemind sends at once"""
MATCHMAKING_SECONDS = 3.0
DELAYED_FROM = 2.0
"""times an averaging, which an epoch lasts at least where averaging is delayed"""


class Hivemind:
    def __init__(self, name: str) -> None:
        self.name = name
        self.remarks: tuple[str, ...] = (
            "hivemind's 8-bit codec is used with a one-line correction: version 1.1.12 fails silently with numpy 2.4 "
            "or later, and then averages nothing while it reports success",
            "hivemind's samples count by the share of the vector that its reducers accepted; "
            "`claimed_samples_per_s` is what it reports itself",
        )

    def start(self, stage: Stage) -> None:
        setting = stage.setting
        tuning = tuning_of(self.name, setting)
        for peer in setting.peers:
            task = {
                "peer": peer,
                "peers": len(setting.speeds),
                "address": stage.network.address(peer),
                "rate": setting.rates[peer],
                "mbits": setting.links[peer] or UNLIMITED_MBITS,
                "target": setting.target,
                "directory": str(stage.directory),
                "tuning": tuning,
                "part_seconds": transfer_seconds(PART_BYTES, setting),
            }
            command = [sys.executable, "-m", "benchmarks.heterogeneous.systems.hivemind_peer", json.dumps(task)]
            environment = {"TMPDIR": str(stage.directory), "HIVEMIND_COLORS": "False"}
            stage.processes.start(peer, stage.network.command(peer, command), environment)

    def observe(self, stage: Stage) -> Observation:
        seen = observation(stage.processes.said(), time.monotonic(), len(stage.setting.speeds))
        return replace(seen, extras={**seen.extras, "tuning": tuning_of(self.name, stage.setting)})

    def patience_seconds(self, setting: Setting) -> float:
        """A newcomer may fetch the state several times."""
        return START_SECONDS + transfer_seconds(100e6, setting) + 10 * setting.epoch_seconds


def tuning_of(name: str, setting: Setting) -> str:
    """`sync`, `delayed` or `default`.

    Delayed averaging hides the all-reduce, but breaks down where the next epoch ends before all are done with it:
    groups split, and members fall out of step. So an expert uses it only for epochs that are long enough.
    """
    kind = name.partition("-")[2]
    if kind:
        return kind
    averaging = transfer_seconds(2 * GRADIENT_BYTES, setting) + MATCHMAKING_SECONDS
    return "delayed" if setting.epoch_seconds >= DELAYED_FROM * averaging else "sync"


def transfer_seconds(size: float, setting: Setting) -> float:
    """Of so many bytes through the slowest link."""
    return size * 8 / (setting.slowest_mbits * 1e6)


@dataclass
class Round:
    """One all-reduce of gradients, as its members tell."""

    epoch: int
    size: int
    """members of the group"""
    ends: dict[int, Said]
    """by member"""

    @property
    def at(self) -> float:
        return min(s.at for s in self.ends.values())

    def is_complete(self, peers: int) -> bool:
        """All `peers` were in it, everybody's vector was accepted as a whole, and everybody got the whole result."""
        accepted = self.accepted()
        return len(self.ends) == peers and all(
            s.event["received"] > 0.999 and accepted.get(s.event["me"], 0.0) > 0.999 for s in self.ends.values()
        )

    def accepted(self) -> dict[str, float]:
        """The share of each member's vector that the reducers together accepted, by hivemind's name of the member."""
        shares: dict[str, float] = {}
        for s in self.ends.values():
            for member, share in s.event["accepted"].items():
                shares[member] = shares.get(member, 0.0) + share
        return shares

    def commit(self) -> Commit:
        accepted = self.accepted()
        samples = {p: s.event["weight"] * accepted.get(s.event["me"], 0.0) for p, s in self.ends.items()}
        return Commit(self.epoch, self.at, samples)


def observation(said: Sequence[Said], now: float, peers: int) -> Observation:
    """What the peers tell, of which there are `peers`.

    Rounds whose members have not all reported yet are left out, with all that follow them.
    """
    rounds = []
    for candidate in _rounds(said):
        if len(candidate.ends) < candidate.size and now - candidate.at < REPORT_SECONDS:
            break
        rounds.append(candidate)
    commits = in_one_commit_an_epoch([found.commit() for found in rounds])
    settled = SETTLING_EPOCHS if len(commits) > SETTLING_EPOCHS else None
    extras = {}
    if settled is not None:
        counted = [found for found in rounds if found.at > commits[settled].at]
        seconds = commits[-1].at - commits[settled].at
        if counted and seconds:
            claimed = sum(s.event["weight"] for found in counted for s in found.ends.values())
            complete = sum(found.is_complete(peers) for found in counted)
            extras = {
                "claimed_samples_per_s": claimed / seconds,
                "complete_rounds": f"{complete} of {len(counted)}",
            }
    return Observation(commits, tuple(_spells(said)), settled, extras)


def _rounds(said: Sequence[Said]) -> list[Round]:
    """All rounds, by when they ended. A round's epoch is the one for which its members had begun to average."""
    begun: dict[int, int] = {}
    rounds: dict[str, Round] = {}
    for s in sorted(said, key=lambda s: s.at):
        if s.name == "Averaging":
            begun[s.peer] = int(s.event["epoch"])
        elif s.name == "RoundEnded":
            found = rounds.setdefault(s.event["group"], Round(0, int(s.event["size"]), {}))
            found.ends[s.peer] = s
            found.epoch = max(found.epoch, begun.get(s.peer, 0))
    return sorted(rounds.values(), key=lambda found: found.at)


def _spells(said: Sequence[Said]) -> list[Spell]:
    """A spell a microbatch: its computing, then what the optimizer's step blocked, split by whether a round ran."""
    running: dict[int, list[tuple[float, float]]] = {}
    for s in said:
        if s.name == "RoundEnded":
            running.setdefault(s.peer, []).append((s.at - s.event["seconds"], s.at))
    spells = []
    for s in said:
        if s.name == "Microbatch":
            blocked = (s.at - s.event["blocked"], s.at)
            transfer = sum(_overlap(blocked, span) for span in running.get(s.peer, []))
            wait = max(0.0, s.event["blocked"] - transfer)
            spells.append(_spell(s, wait, min(transfer, s.event["blocked"])))
    return spells


def _spell(s: Said, wait: float, transfer: float) -> Spell:
    event: Mapping[str, float] = s.event
    return Spell(s.peer, s.at, event["compute"], wait, transfer, int(event["overruns"]), 1)


def _overlap(a: tuple[float, float], b: tuple[float, float]) -> float:
    return max(0.0, min(a[1], b[1]) - max(a[0], b[0]))
