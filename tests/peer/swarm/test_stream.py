from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator

import pytest

from peer.swarm.errors import PeerGone, PeerMisbehaves, PeerSilent
from peer.swarm.stream import READ_STEP, Stream


@contextlib.asynccontextmanager
async def stream_and_socket() -> AsyncIterator[tuple[Stream, socket.socket]]:
    """A stream, and the bare other end of it."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    stream = Stream("somebody", *await asyncio.open_unix_connection(sock=ours))
    try:
        yield stream, theirs
    finally:
        stream.close()
        theirs.close()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def two_streams() -> AsyncIterator[tuple[Stream, Stream]]:
    ours, theirs = socket.socketpair()
    here = Stream("there", *await asyncio.open_unix_connection(sock=ours))
    there = Stream("here", *await asyncio.open_unix_connection(sock=theirs))
    try:
        yield here, there
    finally:
        here.close()
        there.close()
        await asyncio.sleep(0)


def frame(header: bytes, body: bytes = b"", *, body_size: int | None = None) -> bytes:
    size = len(body) if body_size is None else body_size
    return len(header).to_bytes(4, "big") + size.to_bytes(8, "big") + header + body


def test_frames_arrive_as_they_were_sent() -> None:
    async def scenario() -> None:
        async with two_streams() as (here, there):
            large = bytes(range(256)) * 8192  # more than any buffer on the way
            sending = asyncio.create_task(here.send({"a": [1, "ü"], "b": {}}, large))
            assert await there.receive(len(large)) == ({"a": [1, "ü"], "b": {}}, large)
            await sending
            await here.send({})
            await there.send({"back": True}, memoryview(b"xyz"))
            assert await there.receive() == ({}, b"")
            assert await here.receive(3) == ({"back": True}, b"xyz")
            assert here.bytes_sent == there.bytes_received > len(large)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"\x00\x01\x00\x01" + bytes(8), "announces a message of 65537"),
        (frame(b"{}", body_size=101), r"announces a message of 2 \+ 101 bytes"),
        (frame(b"{}", body_size=2**63), "announces a message"),
        (frame(b"not json"), "sends a header that is not a canonical JSON"),
        (frame(b'{"a": 1}'), "canonical"),
        (frame(b"[1]"), "no object"),
        (frame(b"{" * 100), "canonical|nested"),
    ],
)
def test_what_is_no_frame_is_refused_before_it_is_read(data: bytes, complaint: str) -> None:
    async def scenario() -> None:
        async with stream_and_socket() as (stream, other):
            other.send(data)
            with pytest.raises(PeerMisbehaves, match=complaint):
                await stream.receive(100, timeout=5)

    asyncio.run(scenario())


@pytest.mark.parametrize("sent", [b"", b"\x00", frame(b"{}")[:13], frame(b"{}", b"ab")[:-1]])
def test_a_stream_that_ends_early_is_noticed(sent: bytes) -> None:
    async def scenario() -> None:
        async with stream_and_socket() as (stream, other):
            other.send(sent)
            other.shutdown(socket.SHUT_WR)
            with pytest.raises(PeerGone):
                await stream.receive(100, timeout=5)

    asyncio.run(scenario())


def test_silence_is_not_waited_for_longer_than_allowed() -> None:
    async def scenario() -> None:
        async with stream_and_socket() as (stream, other):
            other.send(frame(b"{}", bytes(100_000))[:-1])
            begin = time.monotonic()
            with pytest.raises(PeerSilent, match=r"has sent nothing for 0\.3 s"):
                await stream.receive(100_000, timeout=0.3)
            assert 0.25 < time.monotonic() - begin < 3

    asyncio.run(scenario())


def test_a_slow_link_is_no_fault() -> None:
    async def scenario() -> None:
        async with stream_and_socket() as (stream, other):
            data = frame(b"{}", bytes(6 * READ_STEP))
            receiving = asyncio.create_task(stream.receive(6 * READ_STEP, timeout=1.0))
            for start in range(0, len(data), READ_STEP // 2):
                await asyncio.get_running_loop().sock_sendall(other, data[start : start + READ_STEP // 2])
                await asyncio.sleep(0.15)  # all of it takes longer than the limit on silence
            assert (await receiving)[1] == bytes(6 * READ_STEP)

    asyncio.run(scenario())


def test_a_peer_that_never_reads_is_noticed_within_the_limit() -> None:
    async def scenario() -> None:
        async with stream_and_socket() as (stream, _):
            begin = time.monotonic()
            with pytest.raises(PeerSilent, match="has not read anything"):
                await stream.send({}, bytes(50_000_000), timeout=0.5)
            assert 0.4 < time.monotonic() - begin < 3

    asyncio.run(scenario())


def test_sending_to_a_closed_stream_fails() -> None:
    async def scenario() -> None:
        async with stream_and_socket() as (stream, other):
            other.close()
            with pytest.raises(PeerGone):
                for _ in range(3):
                    await stream.send({}, bytes(1_000_000), timeout=5)

    asyncio.run(scenario())


def test_finish_waits_until_the_other_side_closes_but_not_for_ever() -> None:
    async def scenario() -> None:
        async with stream_and_socket() as (stream, other):
            begin = time.monotonic()
            await stream.finish(timeout=0.2)
            assert time.monotonic() - begin > 0.15
            finishing = asyncio.create_task(stream.finish(timeout=30))
            other.send(b"rest")
            await asyncio.sleep(0.05)
            assert not finishing.done()
            other.shutdown(socket.SHUT_WR)
            await asyncio.wait_for(finishing, 5)

    asyncio.run(scenario())


def test_a_header_that_is_too_large_is_our_own_mistake() -> None:
    async def scenario() -> None:
        async with stream_and_socket() as (stream, _):
            with pytest.raises(ValueError, match="over the 65536 allowed"):
                await stream.send({"x": "y" * 70_000})

    asyncio.run(scenario())
