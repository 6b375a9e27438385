"""Text spread over files, read as one run of bytes, a piece at a time."""

from __future__ import annotations

import bisect
import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peer.errors import DataUnavailable

BLOCK = 64 * 1024  # bytes read at a time
CACHE_BLOCKS = 256  # 16 MiB


@dataclass(frozen=True)
class Part:
    """`size` bytes of a file from `offset`."""

    path: Path
    offset: int
    size: int


class Text:
    """The bytes of parts, one after another. Opening touches no file; recently read blocks are kept."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._ends = list(itertools.accumulate(part.size for part in parts))
        self.size = self._ends[-1] if parts else 0
        self._blocks: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def read(self, start: int, length: int) -> bytes:
        """Bytes `start` up to `start + length`. Raises `DataUnavailable` if a file has gone or become shorter."""
        assert start >= 0 and start + length <= self.size
        pieces = []
        index = bisect.bisect_right(self._ends, start)
        while length > 0:
            part = self._parts[index]
            within = start - (self._ends[index] - part.size)
            piece = self._read_part(index, within, min(length, part.size - within))
            pieces.append(piece)
            start, length, index = start + len(piece), length - len(piece), index + 1
        return b"".join(pieces)

    def _read_part(self, index: int, within: int, length: int) -> bytes:
        first, last = within // BLOCK, (within + length - 1) // BLOCK
        blocks = b"".join(self._block(index, number) for number in range(first, last + 1))
        return blocks[within - first * BLOCK :][:length]

    def _block(self, index: int, number: int) -> bytes:
        key = index, number
        if key in self._blocks:
            self._blocks.move_to_end(key)
            return self._blocks[key]
        part = self._parts[index]
        expected = min(BLOCK, part.size - number * BLOCK)
        try:
            with part.path.open("rb") as file:
                file.seek(part.offset + number * BLOCK)
                block = file.read(expected)
        except OSError as error:
            raise DataUnavailable(
                f"the training text {part.path} cannot be read any more ({error.strerror}); "
                "put it back and start the peer again"
            ) from None
        if len(block) != expected:
            raise DataUnavailable(
                f"the training text {part.path} has become shorter during training; start the peer again"
            )
        self._blocks[key] = block
        if len(self._blocks) > CACHE_BLOCKS:
            self._blocks.popitem(last=False)
        return block


def split(parts: Sequence[Part], at: int) -> tuple[list[Part], list[Part]]:
    """The parts before and from byte `at` of their concatenation."""
    before: list[Part] = []
    after: list[Part] = []
    for part in parts:
        taken = max(0, min(part.size, at))
        if taken:
            before.append(Part(part.path, part.offset, taken))
        if taken < part.size:
            after.append(Part(part.path, part.offset + taken, part.size - taken))
        at -= part.size
    return before, after
