"""Where peers say that they stand, and where this one should stand by their word."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from protocol.errors import RemoteProtocolError
from protocol.plan import Plan
from protocol.progress import quorum_epoch
from protocol.units import Epoch, PeerId


@dataclass(frozen=True)
class Standing:
    """What one peer says of the run."""

    peer: PeerId
    epoch: Epoch
    lineage: str
    plan: Plan
    absent: dict[PeerId, Epoch]
    deadline: float
    """for gathering the present epoch, on our monotonic clock"""

    @classmethod
    def parse(cls, peer: PeerId, value: dict[str, Any]) -> Standing:
        """Raises `RemoteProtocolError` if a peer says nonsense."""
        match value:
            case {
                "epoch": int(epoch),
                "lineage": str(lineage),
                "plan": plan,
                "absent": dict(absent),
                "remaining_ms": int(remaining),
            } if epoch >= 0 and all(isinstance(e, int) for e in absent.values()):
                deadline = time.monotonic() + max(0, remaining) / 1000
                return cls(peer, epoch, lineage, Plan.from_data(plan), absent, deadline)
        raise RemoteProtocolError("a standing lacks a field or has one of the wrong type")


def choose_goal(standings: Sequence[Standing]) -> Standing | None:
    """The standing to reach: that of the quorum, weighted by the plan that most weight stands by."""
    if not standings:
        return None
    plans = Counter(s.plan.digest for s in standings)
    plan = max(standings, key=lambda s: (plans[s.plan.digest], s.plan.term, s.plan.digest)).plan
    weights = {m.peer: m.throughput for m in plan.step}
    epochs = {s.peer: s.epoch for s in standings if s.peer in weights}
    present = {peer: weights[peer] for peer in epochs}
    if not epochs:
        return None
    quorum, _ = quorum_epoch(epochs, present)
    assert quorum is not None  # every one of `present` has spoken
    reached = [s for s in standings if s.peer in epochs and s.epoch >= quorum]
    lineages: Counter[tuple[Epoch, str]] = Counter()
    for standing in reached:
        lineages[standing.epoch, standing.lineage] += weights[standing.peer]
    # The heaviest history at or just above the quorum; a lone peer far ahead has little weight.
    return max(reached, key=lambda s: (lineages[s.epoch, s.lineage], -s.epoch, s.peer))
