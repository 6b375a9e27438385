"""Weights that a peer predicts while the average that gives them is under way."""

from __future__ import annotations

import asyncio
import math
from typing import Any, cast

import numpy as np
import pytest

from peer.daemon.history import Committed
from peer.daemon.replica import Replica, Vector
from peer.training.worker_process import Worker
from protocol.manifest import parse_manifest
from protocol.signing import SigningKey

PEER = SigningKey(bytes(32)).peer_id
MANIFEST = parse_manifest({"run": {"name": "test"}, "model": {"preset": "nano"}, "host": PEER})
SAMPLES = 8


class Taker:
    """Stands for a worker: notes the orders that it gets, and takes weights when it is told to."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, int]] = []
        self.takes = asyncio.Event()

    def refresh(self, epoch: int) -> None:
        self.orders.append(("weights", epoch))

    def refresh_ahead(self, epoch: int) -> None:
        self.orders.append(("ahead", epoch))

    async def refreshed(self) -> None:
        await self.takes.wait()


def drawn(replica: Replica, number: int) -> Vector:
    return np.random.default_rng(number).standard_normal(replica.num_parameters).astype(np.float32)


def commit(replica: Replica, sums: Vector) -> Committed:
    members = ((PEER, SAMPLES),)
    return Committed(replica.epoch, 0, members, replica.lineage, "none", sums / np.float32(SAMPLES))


def show_ahead(replica: Replica, taker: Taker, sums: Vector, epoch: int) -> asyncio.Task[bool]:
    return asyncio.create_task(replica.show_ahead_to(cast(Worker, taker), sums, SAMPLES, epoch))


def predicted(replica: Replica) -> Vector:
    assert replica.arena.ahead is not None
    return replica.arena.ahead


async def until_ordered(taker: Taker, count: int) -> None:
    async with asyncio.timeout(20):
        while len(taker.orders) < count:
            await asyncio.sleep(0.001)


def test_alone_the_prediction_is_what_the_commit_gives_and_no_commit_waits_for_the_worker() -> None:
    async def scenario() -> None:
        replica, taker = Replica("ab" * 32, MANIFEST), Taker()
        await replica.apply(commit(replica, drawn(replica, 0)))
        sums, before = drawn(replica, 1), replica.weights.copy()
        showing = show_ahead(replica, taker, sums, 1)
        await until_ordered(taker, 1)
        assert taker.orders == [("ahead", 1)]
        assert replica.weights.tobytes() == before.tobytes() and np.array_equal(sums, drawn(replica, 1))
        async with asyncio.timeout(20):
            await replica.apply(commit(replica, sums))
        assert predicted(replica).tobytes() == replica.weights.tobytes() != before.tobytes()

        # The next prediction waits until this one has been taken.
        kept, following = predicted(replica).copy(), show_ahead(replica, taker, drawn(replica, 2), 2)
        await replica.apply(commit(replica, drawn(replica, 3)))
        assert not showing.done() and not following.done()
        assert np.array_equal(predicted(replica), kept)
        taker.takes.set()
        assert await showing
        assert not await following, "its epoch has been committed meanwhile"
        assert taker.orders == [("ahead", 1)]

    asyncio.run(scenario())


@pytest.mark.parametrize(("poison", "epoch"), [(math.nan, 0), (1.0, 1)])
def test_nothing_is_shown_of_another_epoch_or_a_gradient_that_is_not_finite(poison: float, epoch: int) -> None:
    async def scenario() -> None:
        replica, taker = Replica("ab" * 32, MANIFEST), Taker()
        sums = drawn(replica, 1)
        sums[5] = poison
        assert not await show_ahead(replica, taker, sums, epoch)
        assert not taker.orders

    asyncio.run(scenario())


def test_a_run_without_overlap_takes_no_memory_for_it() -> None:
    value: dict[str, Any] = MANIFEST.model_dump()
    value["averaging"]["overlap"] = 0
    assert Replica("ab" * 32, parse_manifest(value)).arena.ahead is None
