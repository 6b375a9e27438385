from __future__ import annotations

import asyncio
import socket

from peer.training import wire

MESSAGES = [{"do": "a"}, {"is": "b", "text": "ö" * 100_000, "numbers": [1, 2.5, None]}]


def test_messages_arrive_whole_and_in_order():
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(b"".join(wire.encode(message) for message in MESSAGES[:1]))
            assert wire.receive(theirs) == MESSAGES[0]
        assert wire.receive(theirs) is None


def test_stream_reads_in_pieces_and_ends():
    async def read():
        reader = asyncio.StreamReader()
        for byte in b"".join(map(wire.encode, MESSAGES)) + b"\0\0":
            reader.feed_data(bytes([byte]))
        reader.feed_eof()
        return [await wire.read(reader) for _ in range(3)]

    assert asyncio.run(read()) == [*MESSAGES, None]
