"""The history of commits that a state comes from, as one digest and one count.

Two peers hold the same weights exactly if they have the same lineage: an update follows from the weights
before it and from which samples of which members were merged. Where a partition has made two histories, the
count says which of them more work went into.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.encoding import canonical_bytes, digest
from protocol.units import Epoch, PeerId, RunId

LINEAGE_DOMAIN = "lineage"

Counted = tuple[PeerId, int]
"""a member of an attempt and its samples"""


@dataclass(frozen=True)
class Lineage:
    digest: str
    """hexadecimal SHA-256"""
    samples: int
    """merged in all commits so far"""

    @classmethod
    def genesis(cls, run: RunId) -> Lineage:
        """Of the initial weights."""
        return cls(digest(LINEAGE_DOMAIN, run.encode()).hex(), 0)

    def after(self, epoch: Epoch, attempt: int, members: Sequence[Counted]) -> Lineage:
        """Of the weights after the commit of `attempt` in `epoch`."""
        data = canonical_bytes([self.digest, epoch, attempt, [list(member) for member in members]])
        merged = sum(samples for _, samples in members)
        return Lineage(digest(LINEAGE_DOMAIN, data).hex(), self.samples + merged)
