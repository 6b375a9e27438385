"""PyTorch DistributedDataParallel on gloo, with what an expert can set by hand.

Quotas in proportion to the known speeds, gradients weighted exactly, small buckets so that sending overlaps with the
last backward pass, and float16 on the wire. A step ends when everybody's gradients have gone around the ring.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from benchmarks.heterogeneous.measure import Commit, Observation, Spell
from benchmarks.heterogeneous.processes import Said
from benchmarks.heterogeneous.setting import Setting
from benchmarks.heterogeneous.systems import Stage

START_SECONDS = 180.0
SETTLING_STEPS = 2
"""not measured: DDP arranges its buckets anew after the first"""


class Ddp:
    def __init__(self, name: str) -> None:
        self.name = name
        self.remarks: tuple[str, ...] = ()

    def start(self, stage: Stage) -> None:
        members = self.members(stage.setting)
        quotas = self.quotas(stage.setting)
        for rank, peer in enumerate(members):
            task = {
                "rank": rank,
                "peer": peer,
                "world": len(members),
                "master": stage.network.address(members[0]),
                "rate": stage.setting.rates[peer],
                "quota": quotas[rank],
                "target": stage.setting.target,
                "float16": self.name != "ddp-equal",
            }
            command = [sys.executable, "-m", "benchmarks.heterogeneous.systems.ddp_peer", json.dumps(task)]
            stage.processes.start(peer, stage.network.command(peer, command), {"TMPDIR": str(stage.directory)})

    def observe(self, stage: Stage) -> Observation:
        return observation(self.members(stage.setting), stage.processes.said())

    def patience_seconds(self, setting: Setting) -> float:
        """The gradients go through the slowest link several times in the first steps."""
        transfer = 100e6 * 8 / (setting.slowest_mbits * 1e6)
        return START_SECONDS + transfer + 5 * SETTLING_STEPS * setting.epoch_seconds / min(setting.speeds)

    def members(self, setting: Setting) -> tuple[int, ...]:
        """The peers that take part, by rank."""
        left_out = setting.slowest_link if self.name == "ddp-without-slowest" else None
        return tuple(peer for peer in setting.peers if peer != left_out)

    def quotas(self, setting: Setting) -> tuple[int, ...]:
        """Samples of each member in a step."""
        members = self.members(setting)
        if self.name != "ddp-equal":
            return setting.quotas(members)
        share, rest = divmod(setting.target, len(members))
        return tuple(share + (rank < rest) for rank in range(len(members)))


def observation(members: Sequence[int], said: Sequence[Said]) -> Observation:
    """Commits are the steps that all members have finished."""
    steps: dict[int, dict[int, Said]] = {}
    for s in said:
        if s.name == "Step":
            steps.setdefault(int(s.event["step"]), {})[s.peer] = s
    commits: list[Commit] = []
    spells: list[Spell] = []
    for number in sorted(steps):
        by_peer = steps[number]
        if len(by_peer) < len(members):
            break
        all_ready = max(s.event["ready"] for s in by_peer.values())
        samples = {peer: float(s.event["samples"]) for peer, s in by_peer.items()}
        commit = Commit(number, max(s.at for s in by_peer.values()), samples)
        commits.append(commit)
        spells += [
            Spell(
                peer=peer,
                at=commit.at,
                compute=s.event["ready"] - s.event["began"],
                wait=all_ready - s.event["ready"],
                transfer=max(0.0, s.at - all_ready),
                overruns=s.event["overruns"],
                microbatches=s.event["microbatches"],
            )
            for peer, s in by_peer.items()
        ]
    settled = SETTLING_STEPS if len(commits) > SETTLING_STEPS else None
    return Observation(tuple(commits), tuple(spells), settled)
