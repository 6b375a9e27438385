"""What is compared, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from protocol.lanes import SLOW_LANE_CODEC
from protocol.manifest import Compression

Lane = Literal["sums", "nesterov", "added", "absent"]
"""What a peer in the slow lane does: hands in sums of gradients, as minga's do; or makes local optimizer steps, and
hands in how far it came, for an outer step of Nesterov's kind or to be added; or nothing"""

MOST_COMPACT: Compression = "uniform4"
CADENCE = 4
"""epochs between a guest's hand-ins: what a link of 2 Mbit/s gets here at an epoch a second"""


@dataclass(frozen=True)
class Variant:
    name: str
    overlap: int = 1
    compression: Compression = MOST_COMPACT
    """in the step lane"""
    lane: Lane | None = None
    """what the last peer does in the slow lane; None: it is in the step lane too"""
    cadence: int = CADENCE
    slow_codec: Compression = SLOW_LANE_CODEC
    bar: float | None = None
    """its held-out loss may be at most this part above that of exact training; None: it only stands beside"""


EXACT = Variant("exact", overlap=0, compression="none")
BITS = Variant("4 bits, not overlapped", overlap=0, bar=0.01)
OVERLAPPED = Variant("overlapped, 4 bits", bar=0.01)
SLOW_LANE = Variant("overlapped, one in the slow lane", lane="sums", bar=0.02)
NESTEROV = Variant("the same by local steps, outer Nesterov", lane="nesterov")
ADDED = Variant("the same by local steps, added", lane="added")
ABSENT = Variant("the same without that peer", lane="absent")
VARIANTS = (EXACT, BITS, OVERLAPPED, SLOW_LANE, NESTEROV, ADDED, ABSENT)


def seeds_of(variant: Variant, seeds: int) -> range:
    """What only stands beside is run once."""
    return range(seeds if variant == EXACT or variant.bar is not None else 1)


def variant_of(name: str) -> Variant:
    return next(variant for variant in VARIANTS if variant.name == name)
