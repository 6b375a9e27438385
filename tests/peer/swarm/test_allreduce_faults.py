"""Rounds that fail: on every member, in time, and by the fault of whoever it was."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from peer.swarm.allreduce import AllReduce, AllReduceReport, Contribution
from peer.swarm.blame import failure_in
from peer.swarm.butterfly import BYTES_AHEAD
from peer.swarm.codec import PIECE_ELEMENTS
from peer.swarm.errors import PeerGone, RoundFailed, StreamFailed
from peer.swarm.node import Node
from peer.swarm.parts import divide, piece_length, terms
from peer.swarm.stream import READ_STEP, Stream

pytestmark = pytest.mark.swarm

PATIENCE = 1.0
SLACK = 3.0  # to tell the others, on a busy machine
SHORT = piece_length(1)  # elements of a piece of vectors that are not long
PIECE_BYTES = 4 * SHORT


class Trio:
    """Two honest members a and b, and a third peer c that the test makes misbehave."""

    def __init__(self, nodes: list[Node], reducers: list[AllReduce], key: str) -> None:
        self.a, self.b, self.c = nodes
        self.key = key
        self.reducers = dict(zip((node.peer_id for node in nodes), reducers, strict=True))
        self.tasks: list[asyncio.Task[AllReduceReport]] = []

    def members(self, *, share_of_c: int, samples_of_c: int = 5) -> list[Contribution]:
        return [
            Contribution(self.a.peer_id, 2, 1),
            Contribution(self.b.peer_id, 3, 1),
            Contribution(self.c.peer_id, samples_of_c, share_of_c),
        ]

    def begin(
        self, node: Node, members: list[Contribution], size: int, key: str = "", pace: float | None = None
    ) -> asyncio.Task[AllReduceReport]:
        sums = np.full(size, float(self.number(node)), dtype=np.float32)
        running = self.reducers[node.peer_id].run(self.key + key, members, sums, "none", pace_seconds=pace)
        task = asyncio.create_task(running)
        self.tasks.append(task)
        return task

    def number(self, node: Node) -> int:
        return 1 + [self.a, self.b, self.c].index(node)

    async def fails_for(
        self, tasks: list[asyncio.Task[AllReduceReport]], *blamed: Node, seconds: float = PATIENCE + SLACK
    ) -> list[RoundFailed]:
        begin = time.monotonic()
        found = []
        for task in tasks:
            with pytest.raises(RoundFailed) as caught:
                await asyncio.wait_for(task, 30)
            found.append(caught.value)
            assert caught.value.blamed == tuple(node.peer_id for node in blamed), caught.value.reason
        assert time.monotonic() - begin < seconds
        return found

    async def open_as_member(
        self, reducer: Node, members: list[Contribution], size: int, key: str = "", **changes: Any
    ) -> Stream:
        """What c sends first, as a member."""
        stream = await self.c.open(reducer.peer_id, "allreduce")
        samples = next(member.samples for member in members if member.peer == self.c.peer_id)
        begin = {"key": self.key + key, "terms": terms(members, size, "none"), "samples": samples}
        await stream.send(begin | changes)
        return stream


@contextlib.asynccontextmanager
async def checked(t: Trio, tools: Any) -> AsyncIterator[Trio]:
    """Ends all rounds, then checks that they have left nothing at a and b."""
    try:
        yield t
    finally:
        for task in t.tasks:
            task.cancel()
        await asyncio.gather(*t.tasks, return_exceptions=True)
    await tools.eventually(lambda: not t.a._inbound and not t.b._inbound, PATIENCE + SLACK)
    for node in (t.a, t.b):
        averager = t.reducers[node.peer_id]
        assert not averager._running and not averager._held


@contextlib.asynccontextmanager
async def trio(swarm: Any, tools: Any) -> AsyncIterator[Trio]:
    """Three peers for one test, which may end them."""
    async with swarm.nodes(3) as nodes:
        reducers = [AllReduce(node, patience_seconds=PATIENCE) for node in nodes]
        for reducer in reducers:
            await reducer.start()
        async with checked(Trio(nodes, reducers, "round"), tools) as t:
            yield t
    assert not tools.tasks()


@pytest.fixture(scope="module")
def averagers(company: Any) -> list[AllReduce]:
    found = [AllReduce(node, patience_seconds=PATIENCE) for node in company.nodes[:3]]
    for averager in found[:2]:
        company.runner.run(averager.start())
    return found


@pytest.fixture
def shared(company: Any, averagers: list[AllReduce], request: pytest.FixtureRequest) -> Trio:
    """Three peers that stay; c has no averager of its own listening."""
    return Trio(company.nodes[:3], averagers, request.node.name)


def test_a_member_that_is_dead(swarm: Any, tools: Any) -> None:
    async def scenario() -> None:
        async with trio(swarm, tools) as t:
            members = t.members(share_of_c=1)
            await tools.kill(t.c)
            await t.fails_for([t.begin(node, members, 3000) for node in (t.a, t.b)], t.c)

    asyncio.run(scenario())


def test_a_member_that_is_killed_in_the_middle(swarm: Any, tools: Any) -> None:
    async def scenario() -> None:
        async with trio(swarm, tools) as t:
            members, size = t.members(share_of_c=1), 60 * PIECE_ELEMENTS
            tasks = [t.begin(node, members, size) for node in (t.a, t.b, t.c)]
            running = t.reducers[t.c.peer_id]._running
            await tools.eventually(lambda: t.key in running and running[t.key].num_bytes[1] > PIECE_BYTES)
            await tools.kill(t.c)
            await t.fails_for(tasks[:2], t.c)
            (own,) = await t.fails_for(tasks[2:])
            assert "daemon was ended by signal 9" in own.reason

    asyncio.run(scenario())


@pytest.mark.parametrize("when", ["before", "in the middle"])
def test_a_member_that_is_frozen(swarm: Any, tools: Any, when: str) -> None:
    async def scenario() -> None:
        async with trio(swarm, tools) as t:
            members, size = t.members(share_of_c=1), 60 * PIECE_ELEMENTS
            tasks = [t.begin(node, members, size) for node in (t.a, t.b)]
            if when == "in the middle":
                own = t.begin(t.c, members, size)
                running = t.reducers[t.c.peer_id]._running
                await tools.eventually(lambda: t.key in running and running[t.key].num_bytes[1] > PIECE_BYTES)
            tools.freeze(t.c)
            # Long enough for whoever only waits for the frozen peer's means.
            await t.fails_for(tasks, t.c, seconds=1.5 * PATIENCE + SLACK)
            tools.thaw(t.c)
            if when == "in the middle":
                with pytest.raises(RoundFailed):
                    await asyncio.wait_for(own, 30)

    asyncio.run(scenario())


def test_a_member_that_never_reads(company: Any, shared: Trio, tools: Any) -> None:
    async def scenario() -> None:
        async with checked(shared, tools) as t:
            size = 40 * PIECE_ELEMENTS  # 10 MB: more than all buffers on the way
            members = t.members(share_of_c=0)
            tasks = [t.begin(node, members, size) for node in (t.a, t.b)]

            async def only_send(reducer: Node, pieces: list[slice]) -> None:
                stream = await t.open_as_member(reducer, members, size)
                with contextlib.suppress(PeerGone):
                    for number, piece in enumerate(pieces):
                        data = bytes(4 * (piece.stop - piece.start))
                        await stream.send({"piece": number}, data, timeout=60)
                    await asyncio.sleep(60)
                stream.close()

            sending = [
                asyncio.create_task(only_send(reducer, part.pieces))
                for part, reducer in zip(divide(size, members), (t.a, t.b), strict=True)
            ]
            for failure in await t.fails_for(tasks, t.c, seconds=2 * PATIENCE + SLACK):
                assert f"has not read anything for {PATIENCE} s" in failure.reason
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)

    company.runner.run(scenario())


def test_a_member_that_falls_silent(company: Any, shared: Trio, tools: Any) -> None:
    async def scenario() -> None:
        async with checked(shared, tools) as t:
            members, size = t.members(share_of_c=0), 8 * PIECE_ELEMENTS
            tasks = [t.begin(node, members, size) for node in (t.a, t.b)]
            streams = [await t.open_as_member(reducer, members, size) for reducer in (t.a, t.b)]
            await streams[0].send({"piece": 0}, bytes(PIECE_BYTES))
            for failure in await t.fails_for(tasks, t.c):
                assert f"has sent nothing for {PATIENCE} s" in failure.reason
            for stream in streams:
                stream.close()

    company.runner.run(scenario())


@pytest.mark.parametrize("is_reducer", [False, True])
def test_a_round_is_not_held_up_by_the_link_of_one_member(
    company: Any, shared: Trio, tools: Any, is_reducer: bool
) -> None:
    """It is steady, so patience does not end; but at its pace it would take longer than a round may."""
    pace, dropped = 0.4, {}

    async def scenario() -> None:
        async with checked(shared, tools) as t:
            for node in (t.a, t.b):
                t.reducers[node.peer_id]._saw_drop = lambda peer, rate: dropped.setdefault(peer, rate)
            members, size = t.members(share_of_c=int(is_reducer)), 40 * SHORT
            begin = time.monotonic()
            tasks = [t.begin(node, members, size, pace=pace) for node in (t.a, t.b)]
            streams = [await t.open_as_member(reducer, members, size) for reducer in (t.a, t.b)]
            sending = asyncio.create_task(_send_steadily(streams, pause=0.1))
            failures = await t.fails_for(tasks, t.c)
            assert pace / 3 < time.monotonic() - begin < 3 * pace
            assert all(failure.is_pace for failure in failures)
            assert set(dropped) == {t.c.peer_id}
            rate = 2 * PIECE_BYTES / 0.1  # it sends to two
            assert rate / 2 < dropped[t.c.peer_id] < 2 * rate
            sending.cancel()
            for stream in streams:
                stream.close()

    company.runner.run(scenario())


async def _send_steadily(streams: list[Stream], pause: float) -> None:
    with contextlib.suppress(StreamFailed):
        for number in range(1000):
            for stream in streams:
                await stream.send({"piece": number}, bytes(PIECE_BYTES))
            await asyncio.sleep(pause)


def test_where_all_are_slow_nobody_is_left_behind(company: Any, shared: Trio, tools: Any) -> None:
    async def scenario() -> None:
        async with checked(shared, tools) as t:
            members, size = t.members(share_of_c=0), 40 * SHORT
            task = t.begin(t.a, members, size, pace=0.2)  # b, which has samples too, does not begin
            stream = await t.open_as_member(t.a, members, size)
            await asyncio.sleep(0.4)  # both have sent nothing so far
            assert not task.done()
            stream.close()
            await t.fails_for([task], t.c)

    company.runner.run(scenario())


def test_a_slow_but_steady_member_fails_nobody(company: Any, shared: Trio, tools: Any) -> None:
    """Those who wait for means are told that the reducer waits too, however long it takes."""

    async def scenario() -> None:
        async with checked(shared, tools) as t:
            size = 8 * SHORT
            members = [
                Contribution(t.a.peer_id, 2, 1),
                Contribution(t.b.peer_id, 3, 0),
                Contribution(t.c.peer_id, 5, 0),
            ]
            tasks = [t.begin(node, members, size) for node in (t.a, t.b)]
            stream = await t.open_as_member(t.a, members, size)
            begin = time.monotonic()
            body = np.full(SHORT, 7, "<f4").tobytes()
            frames = b"".join(
                len(header).to_bytes(4, "big") + len(body).to_bytes(8, "big") + header + body
                for header in (b'{"piece":%d}' % number for number in range(8))
            )
            for start in range(0, len(frames), READ_STEP):
                stream._writer.write(frames[start : start + READ_STEP])
                await asyncio.sleep(0.15 * PATIENCE)
            assert time.monotonic() - begin > 2 * PATIENCE  # longer than b waits without a word
            for task in tasks:
                assert (await task).mean == pytest.approx((1 + 2 + 7) / 10)
            stream.close()

    company.runner.run(scenario())


async def _send_nonsense(what: str, stream: Stream) -> None:
    match what:
        case "not finite":
            piece = np.zeros(SHORT, "<f4")
            piece[-1] = np.inf
            await stream.send({"piece": 0}, piece.tobytes())
        case "too short":
            await stream.send({"piece": 0}, bytes(PIECE_BYTES - 4))
        case "too long":
            await stream.send({"piece": 0}, bytes(PIECE_BYTES + 4))
        case "another number":
            await stream.send({"piece": 1}, bytes(PIECE_BYTES))
        case "waits":  # as only reducers may
            await stream.send({"waiting": True})
        case "goes":
            stream.close()


def test_a_member_that_sends_nonsense(company: Any, shared: Trio, tools: Any) -> None:
    complaints = {
        "not finite": "not finite",
        "too short": "does not send piece 0",
        "another number": "does not send piece 0",
        "too long": "announces a message",
        "waits": "does not send piece 0",
        "goes": "has closed the connection",
    }

    async def scenario() -> None:
        async with checked(shared, tools) as t:
            members, size = t.members(share_of_c=0), 2 * PIECE_ELEMENTS
            for what, complaint in complaints.items():
                tasks = [t.begin(node, members, size, key=what) for node in (t.a, t.b)]
                streams = [await t.open_as_member(r, members, size, key=what) for r in (t.a, t.b)]
                await _send_nonsense(what, streams[0])
                for failure in await t.fails_for(tasks, t.c, seconds=SLACK):
                    assert complaint in failure.reason, what
                for stream in streams:
                    stream.close()

    company.runner.run(scenario())


def test_own_sums_that_are_not_finite(company: Any, shared: Trio, tools: Any) -> None:
    async def scenario() -> None:
        async with checked(shared, tools) as t:
            members, size = t.members(share_of_c=1), 3000
            tasks = [t.begin(node, members, size) for node in (t.a, t.b)]
            sums = np.zeros(size, dtype=np.float32)
            sums[1234] = np.nan
            own = asyncio.create_task(t.reducers[t.c.peer_id].run(t.key, members, sums, "none"))
            for failure in await t.fails_for([own, *tasks], t.c, seconds=SLACK):
                assert failure.reason == "this peer's own sums are not finite"

    company.runner.run(scenario())


def test_a_member_with_other_ideas_about_the_round(company: Any, shared: Trio, tools: Any) -> None:
    async def scenario() -> None:
        async with checked(shared, tools) as t:
            members, size = t.members(share_of_c=0), 100
            wrong: list[dict[str, Any]] = [{"samples": 6}, {"terms": "0" * 64}, {"samples": None}]
            for number, changes in enumerate(wrong):
                key = f"round {number}"
                tasks = [t.begin(node, members, size, key=key) for node in (t.a, t.b)]
                stream = await t.open_as_member(t.a, members, size, key=key, **changes)
                for failure in await t.fails_for(tasks, t.c, seconds=SLACK):
                    assert "has other ideas" in failure.reason
                stream.close()

            tasks = [t.begin(node, members, size, key="twice") for node in (t.a, t.b)]
            streams = [await t.open_as_member(t.a, members, size, key="twice") for _ in range(2)]
            for failure in await t.fails_for(tasks, t.c, seconds=SLACK):
                assert "has no place in the round" in failure.reason
            for stream in streams:
                stream.close()

    company.runner.run(scenario())


# A reducer that misbehaves.


async def _reduce_badly(how: str, stream: Stream) -> None:
    match how:
        case "not finite":
            await stream.send({"piece": 0}, np.full(50, np.nan, "<f4").tobytes())
        case "too short":
            await stream.send({"piece": 0}, bytes(196))
        case "goes":
            stream.close()
        case "silent":
            await asyncio.sleep(60)


def test_a_reducer_that_misbehaves(company: Any, shared: Trio, tools: Any) -> None:
    complaints = {
        "not finite": "not finite",
        "too short": "does not send piece 0",
        "goes": "has closed the connection",
        "silent": f"has sent nothing for {1.5 * PATIENCE} s",
    }

    async def scenario() -> None:
        async with checked(shared, tools) as t:
            members = [
                Contribution(t.a.peer_id, 2, 0),
                Contribution(t.b.peer_id, 3, 0),
                Contribution(t.c.peer_id, 0, 1),
            ]

            async def reduce(peer: str, stream: Stream) -> None:
                header, _ = await stream.receive()
                if "failed" in header:
                    await stream.send({})
                else:
                    await _reduce_badly(header["key"].removeprefix(t.key) if peer == t.a.peer_id else "silent", stream)

            await t.c.serve("allreduce", reduce)
            for how, complaint in complaints.items():
                tasks = [t.begin(node, members, 50, key=how) for node in (t.a, t.b)]
                failures = await t.fails_for(tasks, t.c, seconds=1.5 * PATIENCE + SLACK)
                assert complaint in failures[0].reason, how

    company.runner.run(scenario())


# Peers that are no members, and rounds that are not there.


def test_a_stranger_is_not_heard(company: Any, shared: Trio, tools: Any) -> None:
    async def scenario() -> None:
        async with checked(shared, tools) as t:
            members = [Contribution(t.a.peer_id, 2, 1), Contribution(t.b.peer_id, 3, 1)]
            size = 4 * PIECE_ELEMENTS
            first = t.begin(t.a, members, size)
            begin = {"key": t.key, "terms": terms(members, size, "none"), "samples": 3}
            for header in (begin, {"key": t.key, "failed": "because I say so", "blamed": [t.b.peer_id]}):
                stream = await t.c.open(t.a.peer_id, "allreduce")
                await stream.send(header)
                with pytest.raises(PeerGone):
                    # It is not answered; whoever waits for the end is let go after a while.
                    await asyncio.gather(stream.receive(0, 30), _hang_up(stream))
                stream.close()
            reports = await asyncio.gather(first, t.begin(t.b, members, size))
            for report in reports:
                assert report.mean == pytest.approx((1 + 2) / 5)

    company.runner.run(scenario())


async def _hang_up(stream: Stream) -> None:
    stream._writer.write_eof()


def test_a_round_that_is_not_there_is_waited_for_but_not_for_ever(company: Any, shared: Trio, tools: Any) -> None:
    async def scenario() -> None:
        async with checked(shared, tools) as t:
            stream = await t.c.open(t.a.peer_id, "allreduce")
            begin = time.monotonic()
            await stream.send({"key": "never", "terms": "", "samples": 1})
            answer, _ = await stream.receive(0, 20)
            assert answer == {"over": "no such round here", "blamed": []}
            assert PATIENCE - 0.1 < time.monotonic() - begin < PATIENCE + SLACK
            stream.close()

    company.runner.run(scenario())


def test_whoever_comes_too_late_learns_what_happened(company: Any, shared: Trio, tools: Any) -> None:
    async def scenario() -> None:
        async with checked(shared, tools) as t:
            members, size = t.members(share_of_c=0), 100
            await t.fails_for([t.begin(node, members, size) for node in (t.a, t.b)], t.c)
            await asyncio.sleep(PATIENCE)  # what a and b said at that time is no longer held here
            (failure,) = await t.fails_for([t.begin(t.c, members, size)], t.c, seconds=SLACK)
            assert "did not come" in failure.reason
            assert failure.reported_by in (t.a.peer_id, t.b.peer_id)

    company.runner.run(scenario())


def test_what_waits_for_a_late_member_is_bounded(company: Any, shared: Trio, tools: Any) -> None:
    async def scenario() -> None:
        async with checked(shared, tools) as t:
            members, size = t.members(share_of_c=0), 200 * PIECE_ELEMENTS
            tasks = [t.begin(node, members, size) for node in (t.a, t.b)]
            await asyncio.sleep(0.7 * PATIENCE)
            for node in (t.a, t.b):
                (inbound,) = t.reducers[node.peer_id]._running[t.key]._inbound
                assert inbound.bytes_received < BYTES_AHEAD + 3 * (4 * PIECE_ELEMENTS + 1000)
            await t.fails_for(tasks, t.c)

    company.runner.run(scenario())


def test_what_others_say_about_a_failure_is_bounded(tools: Any) -> None:
    members = [Contribution(tools.make_key(n).peer_id, 1, 1) for n in (1, 2)]
    reporter, other = members[0].peer, members[1].peer
    said = {"failed": "bad\x1b[31m" + "x" * 1000, "blamed": [other, "somebody else", 3]}
    failure = failure_in(said, "failed", reporter, members)
    assert failure.blamed == (other,)
    assert failure.reported_by == reporter
    assert failure.reason.startswith("bad[31mxxx") and len(failure.reason) < 201
    for nonsense in ({}, {"failed": 3, "blamed": "all"}, {"failed": None, "blamed": {"a": 1}}):
        assert failure_in(nonsense, "failed", reporter, members).blamed == ()
