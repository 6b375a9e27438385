"""A round of the butterfly all-reduce without the network: the same numbers as `peer/swarm/butterfly.py`, bit for bit.

`tests/benchmarks/convergence` compares it with rounds of real nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from peer.swarm.codec import CODECS, Compression, Floats
from peer.swarm.parts import Contribution, Part, PieceMean, divide


class Averaging:
    """All members of one group, with what encoding has kept back of each."""

    def __init__(self, num_members: int, compression: Compression) -> None:
        self._codec, self._is_lossy = CODECS[compression], compression != "none"
        self.residuals: list[Floats | None] = [None] * num_members

    def run(self, members: Sequence[Contribution], sums: Sequence[Floats]) -> Floats:
        """The mean that all members get; `sums` are not written to. Everybody has samples."""
        owed = [own.copy() if kept is None else own + kept for own, kept in zip(sums, self.residuals, strict=True)]
        mean = np.empty_like(owed[0])
        total = sum(member.samples for member in members)
        for part in divide(mean.size, members):
            for piece in part.pieces:
                self._reduce(part, piece, members, owed, total, mean)
        if self._is_lossy:
            self.residuals = list(owed)
        return mean

    def _reduce(
        self,
        part: Part,
        piece: slice,
        members: Sequence[Contribution],
        owed: Sequence[Floats],
        total: int,
        mean: Floats,
    ) -> None:
        sum_of_all = PieceMean(piece.stop - piece.start)
        reducer = owed[0]
        for member, own in zip(members, owed, strict=True):
            if member.peer == part.reducer:
                sum_of_all.add(own[piece])
                reducer = own
            else:
                decoded = self._codec.decode(self._codec.encode(own[piece]), piece.stop - piece.start)
                sum_of_all.add(decoded)
                if self._is_lossy:
                    own[piece] -= decoded
        exact = sum_of_all.mean(total)
        mean[piece] = self._codec.decode(self._codec.encode(exact), len(exact))
        if self._is_lossy:
            reducer[piece] = (exact - mean[piece]) * np.float32(total)
