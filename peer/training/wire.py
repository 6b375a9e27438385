"""What a daemon and its worker say to each other: small JSON objects, each after its length in 4 bytes."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

LENGTH_BYTES = 4
MAX_MESSAGE = 1 << 20  # bytes

Message = dict[str, Any]
"""Has one of the keys `do` (daemon to worker) and `is` (worker to daemon), which names its kind."""


def encode(message: Message) -> bytes:
    data = json.dumps(message).encode()
    assert len(data) <= MAX_MESSAGE
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def receive(channel: socket.socket) -> Message | None:
    """The next message of a blocking socket, None at its end."""
    header = _receive_exactly(channel, LENGTH_BYTES)
    data = header and _receive_exactly(channel, int.from_bytes(header, "big"))
    return _decode(data) if data else None


async def read(reader: asyncio.StreamReader) -> Message | None:
    """The next message of a stream, None at its end."""
    try:
        length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
        return _decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def _receive_exactly(channel: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        try:
            piece = channel.recv(size - len(data))
        except OSError:
            return None
        if not piece:
            return None
        data += piece
    return data


def _decode(data: bytes) -> Message:
    message: Message = json.loads(data)
    return message
