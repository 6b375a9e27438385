"""A state as it travels: a small header, and a payload in chunks whose hashes stand for it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from protocol.encoding import DIGEST_SIZE, canonical_bytes, digest
from protocol.units import Epoch

CHUNK_SIZE = 1024 * 1024  # bytes
MAX_HEADER_SIZE = 32 * 1024  # bytes, of the header as canonical JSON

Hashes = bytes
"""SHA-256 of each chunk, one after another"""


@dataclass(eq=False)
class Snapshot:
    """What a donor serves. The payload must not change while anybody holds the snapshot."""

    epoch: Epoch
    header: dict[str, Any]
    """small and JSON; the same on all peers that have the same state, since the root covers it"""
    payload: Any
    """a contiguous buffer (bytes, memoryview, array): served as its bytes"""

    def __post_init__(self) -> None:
        if len(canonical_bytes(self.header)) > MAX_HEADER_SIZE:
            raise ValueError(f"the header of a snapshot may have {MAX_HEADER_SIZE} bytes")

    @cached_property
    def view(self) -> memoryview:
        return memoryview(self.payload).cast("B").toreadonly()

    @cached_property
    def hashes(self) -> Hashes:
        """Computed at the first use, at disk-like speed: call it from a thread when the payload is large."""
        view = self.view
        starts = range(0, len(view), CHUNK_SIZE)
        return b"".join(hashlib.sha256(view[start : start + CHUNK_SIZE]).digest() for start in starts)

    @cached_property
    def root(self) -> str:
        """Hexadecimal digest of everything: epoch, header, size and chunks."""
        return root_of(self.epoch, self.header, len(self.view), self.hashes)


def root_of(epoch: Epoch, header: dict[str, Any], size: int, hashes: Hashes) -> str:
    about = canonical_bytes({"chunk": CHUNK_SIZE, "epoch": epoch, "header": header, "size": size})
    return digest("state", len(about).to_bytes(8, "big") + about + hashes).hex()


def num_chunks(size: int) -> int:
    return -(-size // CHUNK_SIZE)


def chunk_range(number: int, size: int) -> tuple[int, int]:
    """First byte of a chunk, and the one after its last."""
    return number * CHUNK_SIZE, min((number + 1) * CHUNK_SIZE, size)


def chunk_hash(hashes: Hashes, number: int) -> bytes:
    return hashes[number * DIGEST_SIZE : (number + 1) * DIGEST_SIZE]
