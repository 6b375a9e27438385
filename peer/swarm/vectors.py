"""A whole vector from one peer to another, in encoded pieces: as one block of bytes, or on a stream that is open."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from peer.swarm.codec import CODECS, Compression, Floats, MalformedPiece
from peer.swarm.errors import PeerMisbehaves
from peer.swarm.parts import piece_length
from peer.swarm.stream import Stream

SILENCE_SECONDS = 15.0
ENOUGH_BYTES = 64 * 1024
MAX_RATE = 1.25e9  # bytes per second


@dataclass(frozen=True)
class Received:
    vector: Floats
    rate: float
    """bytes per second between the first piece and the last; 0 if that was too little to tell"""


def encode_vector(vector: Floats, compression: Compression) -> bytes:
    """All pieces of `vector`, one after the other."""
    codec = CODECS[compression]
    return b"".join(codec.encode(vector[piece]) for piece in _pieces(len(vector)))


def decode_vector(data: memoryview, size: int, compression: Compression) -> Floats:
    """`size` numbers from what `encode_vector` made. Raises `MalformedPiece` for anything else."""
    codec = CODECS[compression]
    if len(data) != encoded_size(size, compression):
        raise MalformedPiece(f"of {len(data)} bytes, which {size} numbers do not take")
    vector = np.empty(size, dtype=np.float32)
    at = 0
    for piece in _pieces(size):
        num_bytes = codec.size(piece.stop - piece.start)
        vector[piece] = codec.decode(data[at : at + num_bytes], piece.stop - piece.start)
        at += num_bytes
    return vector


def encoded_size(size: int, compression: Compression) -> int:
    """Bytes of `size` numbers."""
    codec = CODECS[compression]
    return sum(codec.size(piece.stop - piece.start) for piece in _pieces(size))


async def send_vector(stream: Stream, vector: Floats, compression: Compression) -> Floats:
    """Send `vector` piece by piece; returns it as the other side decodes it. Raises a `StreamFailed` error."""
    codec = CODECS[compression]
    decoded = np.empty_like(vector)
    for number, piece in enumerate(_pieces(len(vector))):
        encoded = codec.encode(vector[piece])
        decoded[piece] = codec.decode(encoded, piece.stop - piece.start)
        await stream.send({"piece": number}, encoded, SILENCE_SECONDS)
    return decoded


async def receive_vector(stream: Stream, size: int, compression: Compression) -> Received:
    """Receive `size` float32 numbers. Raises a `StreamFailed` error, also for what is malformed or not finite."""
    codec = CODECS[compression]
    vector = np.empty(size, dtype=np.float32)
    first = last = 0.0
    num_bytes = 0
    for number, piece in enumerate(_pieces(size)):
        expected = codec.size(piece.stop - piece.start)
        header, body = await stream.receive(expected, SILENCE_SECONDS)
        if header != {"piece": number} or len(body) != expected:
            raise PeerMisbehaves(stream.peer, f"does not send piece {number} of a vector when it should")
        last = time.monotonic()
        first = first or last
        num_bytes += len(body) if number else 0
        try:
            values = codec.decode(body, piece.stop - piece.start)
        except MalformedPiece as error:
            raise PeerMisbehaves(stream.peer, f"sends a piece {error}") from None
        if not np.isfinite(values).all():
            raise PeerMisbehaves(stream.peer, "sends numbers that are not finite")
        vector[piece] = values
    is_enough = num_bytes >= ENOUGH_BYTES and last > first
    return Received(vector, min(num_bytes / (last - first), MAX_RATE) if is_enough else 0.0)


def _pieces(size: int) -> list[slice]:
    length = piece_length(size)
    return [slice(start, min(start + length, size)) for start in range(0, size, length)]
