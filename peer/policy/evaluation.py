"""Who measures the held-out loss, and how often: one peer for all, at most a hundredth of its time."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.plan import Plan
from protocol.units import PeerId

PART_OF_TIME = 100


def evaluator(plan: Plan) -> PeerId:
    """The peer of the highest throughput: for it, the same evaluation takes the least time."""
    return min(plan.step, key=lambda member: (-member.throughput, member.peer)).peer


@dataclass
class EvaluationCadence:
    """Spaces evaluations by what the last one took. Times are of any steady clock, in seconds."""

    due: float = 0.0

    def is_due(self, now: float) -> bool:
        return now >= self.due

    def finished(self, began: float, now: float) -> None:
        self.due = now + (now - began) * (PART_OF_TIME - 1)
