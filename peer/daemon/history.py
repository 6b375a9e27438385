"""The latest commits, each with its averaged gradient as it travelled: whoever missed some epochs replays them.

A gradient of 8 bits is a twelfth of a state, so a peer that was away for a few epochs fetches little, and a newcomer
fetches after its state what the others committed meanwhile.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from peer.swarm.codec import CODECS, Compression
from peer.swarm.snapshot import Snapshot
from peer.swarm.vectors import decode_vector, encode_vector, encoded_size
from protocol.encoding import decode_canonical
from protocol.errors import RemoteProtocolError
from protocol.lineage import Counted, Lineage
from protocol.units import Epoch

Vector = npt.NDArray[np.float32]

BYTES_PER_PARAMETER = 12
"""of the whole history: a state's size, since who lacks more fetches a state. Whose link brings a gradient within an
epoch has after its state missed less than that."""
MAX_LISTING_SIZE = 1024 * 1024
"""bytes"""


@dataclass(frozen=True)
class Step:
    """From epoch e to e + 1: all but the gradient."""

    epoch: Epoch
    attempt: int
    members: tuple[Counted, ...]
    """whose samples entered the average"""
    before: Lineage
    compression: Compression
    """in which the averaged gradient travelled, so that it can travel so again without a loss"""

    @property
    def lineage(self) -> Lineage:
        return self.before.after(self.epoch, self.attempt, self.members)

    @property
    def header(self) -> dict[str, Any]:
        """That of its snapshot."""
        return {
            "before": self.before.digest,
            "attempt": self.attempt,
            "members": [list(member) for member in self.members],
            "compression": self.compression,
        }

    @classmethod
    def parse(cls, epoch: Epoch, before: Lineage, header: Any) -> Step:
        """Of weights of `before`. Raises `RemoteProtocolError` for a header that can be none of theirs."""
        match header:
            case {"before": before.digest, "attempt": int(attempt), "members": list(members), "compression": str(name)}:
                compression = next((codec for codec in CODECS if codec == name), None)
                counted = tuple((m[0], m[1]) for m in members if isinstance(m, list) and len(m) == 2)
                typed = all(isinstance(peer, str) and type(samples) is int for peer, samples in counted)
                if compression is not None and typed and len(counted) == len(members):
                    return cls(epoch, attempt, counted, before, compression)
        raise RemoteProtocolError("a commit lacks a field, has one of the wrong type, or follows another")


@dataclass(frozen=True)
class Committed(Step):
    """What changed a replica from epoch e to e + 1."""

    mean: Vector
    """the averaged gradient"""


class History:
    """Of one replica, without a gap, up to its present epoch or empty."""

    def __init__(self, num_parameters: int) -> None:
        self._max_bytes = BYTES_PER_PARAMETER * num_parameters
        self._kept: dict[Epoch, asyncio.Future[Snapshot]] = {}
        """oldest first; encoded by a thread, as nobody shall wait for it"""

    def add(self, commit: Committed) -> None:
        """Keep the commit by which the replica has just gone on. The oldest ones give way."""
        encoding = asyncio.get_running_loop().run_in_executor(None, gradient_snapshot, commit)
        self._kept[commit.epoch] = encoding
        encoding.add_done_callback(lambda _: self._trim())

    def clear(self) -> None:
        """The replica is of another history now."""
        self._kept.clear()

    async def at(self, epoch: Epoch) -> Snapshot | None:
        """The gradient by which the replica went on from `epoch`."""
        encoding = self._kept.get(epoch)
        return await asyncio.shield(encoding) if encoding is not None else None

    async def since(self, epoch: Epoch, lineage: str) -> list[dict[str, Any]]:
        """Headers of all commits since the weights of `lineage` at `epoch`; none if it does not reach back to them."""
        encodings = [encoding for at, encoding in self._kept.items() if at >= epoch] if epoch in self._kept else []
        headers = [(await asyncio.shield(encoding)).header for encoding in encodings]
        return headers if headers and headers[0]["before"] == lineage else []

    @property
    def num_bytes(self) -> int:
        """Of all gradients that are encoded."""
        return sum(len(encoding.result().view) for encoding in self._kept.values() if encoding.done())

    def _trim(self) -> None:
        while self.num_bytes > self._max_bytes:
            del self._kept[next(iter(self._kept))]


def gradient_snapshot(commit: Committed) -> Snapshot:
    """An averaged gradient as it is served: what it was made of, and its bytes, as small as they came."""
    compression = commit.compression
    encoded = encode_vector(commit.mean, compression)
    if not np.array_equal(decode_vector(memoryview(encoded), len(commit.mean), compression), commit.mean):
        compression = "none"  # float16 has a scale for each piece, and parts begin within one
        encoded = encode_vector(commit.mean, compression)
    return Snapshot(commit.epoch, {**commit.header, "compression": compression}, encoded)


def read_steps(listing: bytes, epoch: Epoch, lineage: Lineage) -> list[Step]:
    """The commits since weights of `lineage` at `epoch`, each of which follows from the one before it.

    Raises `RemoteProtocolError`.
    """
    headers = decode_canonical(listing, MAX_LISTING_SIZE)
    steps: list[Step] = []
    for header in headers if isinstance(headers, list) else []:
        steps.append(Step.parse(epoch + len(steps), steps[-1].lineage if steps else lineage, header))
    return steps


def gradient_size(num_parameters: int, step: Step) -> int:
    """Bytes of its gradient."""
    return encoded_size(num_parameters, step.compression)
