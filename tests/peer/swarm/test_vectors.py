from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.swarm.codec import CODECS, PIECE_ELEMENTS, Compression, MalformedPiece
from peer.swarm.errors import PeerMisbehaves
from peer.swarm.stream import Stream
from peer.swarm.vectors import decode_vector, encode_vector, encoded_size, receive_vector, send_vector
from protocol import shares

ALL: tuple[Compression, ...] = ("none", "float16", "uniform8", "uniform4")
TOLERANCE = {"none": 0.0, "float16": 2.0**-11, "uniform8": 1 / 250, "uniform4": 1 / 13}
SIZES = [1, 300, PIECE_ELEMENTS, 3 * PIECE_ELEMENTS + 7]


def random_vector(size: int) -> np.ndarray:
    return np.random.default_rng(size).standard_normal(size).astype(np.float32)


@pytest.mark.parametrize("compression", ALL)
@pytest.mark.parametrize("size", [*SIZES, 150 * PIECE_ELEMENTS + 1])
def test_a_vector_as_bytes(compression: Compression, size: int) -> None:
    vector = random_vector(size)
    data = encode_vector(vector, compression)
    assert len(data) == encoded_size(size, compression)
    decoded = decode_vector(memoryview(data), size, compression)
    assert np.abs(decoded - vector).max() <= TOLERANCE[compression] * np.abs(vector).max()
    for wrong in (data[:-1], data + b"\0", b""):
        with pytest.raises(MalformedPiece):
            decode_vector(memoryview(wrong), size, compression)


@given(st.integers(1, 10**8), st.sampled_from(ALL))
def test_sizes_are_those_of_the_codec_and_little_more(size: int, compression: Compression) -> None:
    width = {"none": 4, "float16": 2, "uniform8": 1 + 2 / 256, "uniform4": 1 / 2 + 2 / 64}[compression]
    found = encoded_size(size, compression)
    assert width * size <= found <= width * size + 4 * (size / (8 * 1024) + 1)
    planned = shares.encoded_size(size, compression)
    assert planned <= 1.02 * width * size + 5
    assert size < 8 * 1024 or 0.999 * found <= planned


class Pair:
    """Two ends of one stream after the other."""

    def __init__(self, company: Any) -> None:
        self.company = company
        self.inbound: asyncio.Queue[tuple[Stream, asyncio.Event]] = asyncio.Queue()

    async def serve(self) -> None:
        async def accept(_: str, stream: Stream) -> None:
            done = asyncio.Event()
            await self.inbound.put((stream, done))
            await done.wait()

        await self.company.nodes[1].serve("vectors", accept)

    async def open(self) -> tuple[Stream, Stream, asyncio.Event]:
        sender = await self.company.nodes[0].open(self.company.nodes[1].peer_id, "vectors")
        return sender, *await self.inbound.get()


@pytest.fixture(scope="module")
def pair(company: Any) -> Pair:
    found = Pair(company)
    company.runner.run(found.serve())
    return found


@pytest.mark.swarm
@pytest.mark.parametrize("compression", ALL)
def test_both_sides_have_the_same_afterwards(company: Any, pair: Pair, compression: Compression) -> None:
    async def scenario() -> None:
        for size in SIZES:
            sender, receiver, done = await pair.open()
            vector = random_vector(size)
            decoded, received = await asyncio.gather(
                send_vector(sender, vector, compression), receive_vector(receiver, size, compression)
            )
            assert received.vector.tobytes() == decoded.tobytes()
            assert np.abs(decoded - vector).max() <= TOLERANCE[compression] * np.abs(vector).max()
            if encoded_size(size, compression) < 64 * 1024:
                assert received.rate == 0
            elif size == SIZES[-1]:
                assert 1e6 < received.rate <= 1.25e9
            sender.close()
            done.set()

    company.runner.run(scenario())


@pytest.mark.swarm
@pytest.mark.parametrize("what", ["number", "short", "step", "infinite"])
def test_nonsense_is_refused(company: Any, pair: Pair, what: str) -> None:
    async def scenario() -> None:
        sender, receiver, done = await pair.open()
        body = bytes(CODECS["uniform8"].encode(random_vector(300)))
        header = {"piece": 1 if what == "number" else 0}
        match what:
            case "short":
                body = body[:-1]
            case "step":
                body = b"\0\0" + body[2:]
            case "infinite":
                body = b"\x80\x7f" + body[2:]
        await sender.send(header, body)
        with pytest.raises(PeerMisbehaves):
            await receive_vector(receiver, 300, "uniform8")
        sender.close()
        done.set()

    company.runner.run(scenario())


@pytest.mark.slow  # measures speed, which a busy machine spoils
@pytest.mark.netns
@pytest.mark.swarm
def test_the_rate_is_that_of_the_link(swarm: Any) -> None:
    async def scenario() -> None:
        size = 400_000
        async with swarm.linked(0, 5) as (nodes, _):
            received: asyncio.Queue[float] = asyncio.Queue()

            async def accept(_: str, stream: Stream) -> None:
                await received.put((await receive_vector(stream, size, "uniform8")).rate)

            await nodes[0].serve("vectors", accept)
            found = []
            for _ in range(3):
                stream = await nodes[1].open(nodes[0].peer_id, "vectors")
                await send_vector(stream, random_vector(size), "uniform8")
                found.append(await received.get())
                stream.close()
            assert sorted(found)[1] == pytest.approx(5 * 125_000, rel=0.2)

    asyncio.run(scenario())
