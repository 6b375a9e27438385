"""What a peer keeps of its past commits, and what another can make of being told of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from peer.daemon.history import BYTES_PER_PARAMETER, Committed, History, gradient_snapshot, read_steps
from peer.swarm.codec import Compression
from peer.swarm.vectors import decode_vector, encode_vector, encoded_size
from protocol.encoding import canonical_bytes
from protocol.errors import RemoteProtocolError
from protocol.lineage import Lineage

SIZE = 5000
GENESIS = Lineage.genesis("ab" * 32)


def commits(count: int, compression: Compression = "uniform8") -> list[Committed]:
    """A chain of commits from the genesis on."""
    chain: list[Committed] = []
    for epoch in range(count):
        before = chain[-1].lineage if chain else GENESIS
        raw = np.random.default_rng(epoch).standard_normal(SIZE).astype(np.float32)
        mean = decode_vector(memoryview(encode_vector(raw, compression)), SIZE, compression)
        chain.append(Committed(epoch, 0, (("one", 5 + epoch), ("other", 3)), before, compression, mean))
    return chain


def with_history(chain: list[Committed], look: Callable[[History], Any]) -> Any:
    async def scenario() -> Any:
        history = History(SIZE)
        for commit in chain:
            history.add(commit)
            assert await history.at(commit.epoch) is not None
        return await look(history)

    return asyncio.run(scenario())


@pytest.mark.parametrize("compression", ["none", "float16", "uniform8"])
def test_a_gradient_is_kept_as_it_travelled(compression: Compression) -> None:
    (commit,) = commits(1, compression)
    snapshot = gradient_snapshot(commit)
    assert len(snapshot.view) == encoded_size(SIZE, compression)
    assert decode_vector(snapshot.view, SIZE, compression).tobytes() == commit.mean.tobytes()
    assert snapshot.header == commit.header


@pytest.mark.parametrize("compression", ["none", "float16", "uniform8"])
def test_the_oldest_give_way_beyond_the_size_of_a_state(compression: Compression) -> None:
    chain = commits(30, compression)

    async def look(history: History) -> tuple[int, list[int]]:
        return history.num_bytes, [commit.epoch for commit in chain if await history.at(commit.epoch) is not None]

    num_bytes, kept = with_history(chain, look)
    one = encoded_size(SIZE, compression)
    assert BYTES_PER_PARAMETER * SIZE - one < num_bytes <= BYTES_PER_PARAMETER * SIZE
    assert kept == list(range(30 - num_bytes // one, 30)), "the newest, without a gap"


def test_who_asks_is_told_what_followed_its_own_weights() -> None:
    chain = commits(20)

    async def look(history: History) -> None:
        steps = read_steps(canonical_bytes(await history.since(15, chain[15].before.digest)), 15, chain[15].before)
        assert [step.epoch for step in steps] == [15, 16, 17, 18, 19]
        assert [step.lineage for step in steps] == [commit.lineage for commit in chain[15:]]
        assert await history.since(15, GENESIS.digest) == [], "of another history"
        assert await history.since(2, chain[2].before.digest) == [], "too long ago"
        assert await history.since(20, chain[-1].lineage.digest) == [], "nothing followed yet"
        history.clear()
        assert await history.since(15, chain[15].before.digest) == []
        assert await history.at(19) is None

    with_history(chain, look)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda headers: headers[::-1],
        lambda headers: headers[:1] + headers[2:],
        lambda headers: [headers[0], {**headers[1], "attempt": 1}, *headers[2:]],
        lambda headers: [headers[0], {**headers[1], "members": [["one", 1]]}, *headers[2:]],
        lambda headers: [{**headers[0], "members": [["one"]]}],
        lambda headers: [{**headers[0], "members": [["one", True]]}],
        lambda headers: [{**headers[0], "members": "one"}],
        lambda headers: [{**headers[0], "compression": "gzip"}],
        lambda headers: [{**headers[0], "compression": ["none"]}],
        lambda headers: [{"before": GENESIS.digest}],
        lambda headers: [GENESIS.digest],
    ],
)
def test_a_tale_that_does_not_follow_from_our_weights_is_refused(spoil: Callable[[list[Any]], list[Any]]) -> None:
    listing = canonical_bytes(spoil([commit.header for commit in commits(4)]))
    with pytest.raises(RemoteProtocolError):
        read_steps(listing, 0, GENESIS)


def test_what_is_no_list_tells_of_nothing() -> None:
    for listing in (b"", b"{", b"[ ]"):
        with pytest.raises(RemoteProtocolError):
            read_steps(listing, 0, GENESIS)
    assert read_steps(b"{}", 0, GENESIS) == []


def test_other_members_lead_to_another_lineage() -> None:
    """So a tale can be checked against where the others say that they stand."""
    *_, last = commits(3)
    assert replace(last, members=(("one", 8),)).lineage != last.lineage
