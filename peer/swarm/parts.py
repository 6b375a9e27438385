"""How the vector is divided: a contiguous part for each reducer, in pieces that travel one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peer.swarm.codec import BLOCK_ELEMENTS, PIECE_ELEMENTS, Floats
from protocol.encoding import canonical_bytes, digest
from protocol.quota import apportion
from protocol.units import PeerId

FEWEST_PIECE_ELEMENTS = 8 * 1024
PIECES = 128
"""of a vector that is not very long: the last ones come back to a slow member when it has sent all, which delays it by
the time of one piece for each reducer"""


@dataclass(frozen=True)
class Contribution:
    """One member of a round."""

    peer: PeerId
    samples: int
    """behind its sums; 0: it only receives"""
    share: int
    """of the vector that it reduces for all, relative to the other shares; 0: none"""


@dataclass(frozen=True)
class Part:
    """Elements [start, stop) of the vector, averaged by `reducer`. Not empty."""

    reducer: PeerId
    start: int
    stop: int
    piece_elements: int

    @property
    def pieces(self) -> list[slice]:
        return [
            slice(start, min(start + self.piece_elements, self.stop))
            for start in range(self.start, self.stop, self.piece_elements)
        ]


def piece_length(size: int) -> int:
    """Elements of a piece, for a vector of `size` elements: whole blocks of the codec."""
    blocks = -(-size // (PIECES * BLOCK_ELEMENTS))
    return min(max(blocks * BLOCK_ELEMENTS, FEWEST_PIECE_ELEMENTS), PIECE_ELEMENTS)


def divide(size: int, members: Sequence[Contribution]) -> list[Part]:
    """The parts of a vector of `size` elements, in the order of members; members without a share get none.

    Whole blocks of the codec, so that encoding the whole vector again gives the numbers that came in parts.
    """
    parts, start, in_piece = [], 0, piece_length(size)
    lengths = apportion(-(-size // BLOCK_ELEMENTS), [member.share for member in members])
    for member, num_blocks in zip(members, lengths, strict=True):
        stop = min(start + num_blocks * BLOCK_ELEMENTS, size)
        if start < stop:
            parts.append(Part(member.peer, start, stop, in_piece))
        start = stop
    return parts


def terms(members: Sequence[Contribution], size: int, compression: str) -> str:
    """Digest of all that the members of a round must agree on before it begins."""
    listed = [[member.peer, member.samples, member.share] for member in members]
    return digest("all-reduce", canonical_bytes([listed, size, compression])).hex()


class PieceMean:
    """The mean of one piece: sums are added in a fixed order, divided by all samples, rounded once.

    In float64: a sum of n float32 numbers then errs by less than n·2^-53 of their magnitudes, so the mean is
    the exact one rounded to float32 unless that is a near tie, however many members there are; and adding
    costs less than receiving does.
    """

    def __init__(self, length: int) -> None:
        self._sum: NDArray[np.float64] = np.zeros(length)

    def add(self, sums: Floats) -> None:
        np.add(self._sum, sums, out=self._sum)

    def mean(self, samples: int) -> Floats:
        return np.divide(self._sum, samples, out=self._sum).astype(np.float32)
