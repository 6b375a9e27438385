"""One round of the butterfly all-reduce: every reducer averages its part for everybody.

A member opens one stream to each reducer of another part. Frames on it:

    member -> reducer   {key, terms, samples}, then {piece: 0..n-1} each with the piece's sums (none without samples)
    reducer -> member   {piece: 0..n-1} each with the piece's mean; {waiting: what it has} while it waits for others

Means come back while later pieces are still being sent, so that a link carries both ways at once. The reducer takes
sums nearly as fast as they come and sends means as fast as each member takes them: what waits for slower members
waits encoded. It adds the pieces of all members in the fixed order of members, encodes the mean once, sends the same
bytes to all and keeps what they decode to, so that all members end with the same bits.

What encoding loses is sent later: it is the residual, in units of sums, which a member adds to its sums of the next
round. That is what its own pieces lose on their way to reducers and, where it reduces itself (its own sums enter as
they are there), what the mean loses, times all samples. Nothing but this member's contribution depends on it, so
members and shares may change between rounds.

Who is to blame is decided where it can be seen. A reducer sees who does not come, send, or read: it waits
`patience` seconds. A member that gets no mean may be waiting for somebody who is slow at the reducer, which
says so; so it blames the reducer only after `INDIRECT` times that long without any word.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np

from peer.swarm.blame import blaming, failure_in, first
from peer.swarm.codec import CODECS, Compression, Encoded, Floats, MalformedPiece
from peer.swarm.errors import PeerMisbehaves, PeerUnreachable, RoundFailed, short
from peer.swarm.node import Node
from peer.swarm.pace import Arrival, Departures, Traffic
from peer.swarm.pace_watch import PaceWatch
from peer.swarm.parts import Contribution, Part, PieceMean, divide, terms
from peer.swarm.stream import Header, Stream
from protocol.units import PeerId

WIRE_NAME = "allreduce"
BYTES_AHEAD = 4 * 1024 * 1024  # of the sums of each member, that a reducer holds while it waits for others
INDIRECT = 1.5
SLOW_LINK = 10.0  # times patience, to send a piece: that the reducer lives shows in what it sends
RETRY_SECONDS = 0.25  # between attempts to reach a reducer


class Butterfly:
    """The work of one member in one round. `run` once, then `close`."""

    def __init__(
        self,
        node: Node,
        key: str,
        members: Sequence[Contribution],
        sums: Floats,
        compression: Compression,
        residual: Floats | None,
        patience: float,
        pace: float | None = None,
    ) -> None:
        self.members = tuple(members)
        self.others = {member.peer: member for member in members if member.peer != node.peer_id}
        self.mean: Floats = np.empty_like(sums)
        self.arrivals: dict[PeerId, Arrival] = {}
        """of the sums of others, at this reducer"""
        self.departures = Departures(len(self.others))
        """of those who have all means of this reducer"""
        self.attended = {peer: asyncio.Event() for peer in self.others}
        """this reducer has nothing more to say to these, or the round has failed"""
        self._node, self._key, self._patience = node, key, patience
        self._codec, self._is_lossy = CODECS[compression], compression != "none"
        self._terms = terms(members, len(sums), compression)
        self._total = sum(member.samples for member in members)
        self._own = next(member for member in members if member.peer == node.peer_id)
        self._sums, self._residual = sums, residual
        self._parts = divide(len(sums), members)
        self._outbound: list[Stream] = []
        self._inbound: list[Stream] = []
        self._own_part = next((part for part in self._parts if part.reducer == node.peer_id), None)
        self.traffic = Traffic(node.peer_id, self.members, self._sizes())
        """what all members send each other"""
        self.watch = PaceWatch(node.peer_id, self.traffic, members, self.arrivals, pace)
        loop = asyncio.get_running_loop()
        self._told: asyncio.Future[RoundFailed] = loop.create_future()
        self._came: dict[PeerId, asyncio.Future[Stream]] = {peer: loop.create_future() for peer in self.others}

    async def run(self) -> None:
        """Fill `mean`. Raises `RoundFailed`; the streams stay open then, so that others can be told first."""
        working = asyncio.create_task(self._work())
        watching = asyncio.create_task(self._leave_behind()) if self.watch.pace else None
        try:
            await asyncio.wait((working, self._told), return_when=asyncio.FIRST_COMPLETED)
            if self._told.done() and not (working.done() and working.exception() is None):
                raise self._told.result()  # whoever told us closes its streams next: that is not the cause
            working.result()
        except BaseExceptionGroup as group:
            raise first(group) from None
        finally:
            tasks = [task for task in (working, watching) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        await asyncio.to_thread(self._prepare)
        async with asyncio.TaskGroup() as group:
            for part in self._parts:
                work = self._reduce(part) if part.reducer == self._own.peer else self._exchange(part)
                group.create_task(work)

    def _prepare(self) -> None:
        """`_sums` becomes what this member contributes; if encoding loses something, a copy that keeps the losses."""
        if self._residual is not None:
            self._sums = self._sums + self._residual if self._own.samples else self._residual.copy()
        elif self._is_lossy:
            self._sums = self._sums.copy() if self._own.samples else np.zeros_like(self._sums)
        if self._own.samples and not np.isfinite(self._sums).all():
            raise RoundFailed((self._own.peer,), "this peer's own sums are not finite")

    @property
    def residual(self) -> Floats | None:
        """After `run`: what this member still owes, in units of sums; None: nothing."""
        return self._sums if self._is_lossy else None if self._own.samples else self._residual

    def close(self, *, failed: bool) -> None:
        """Close the streams of the round; without a failure, the others close theirs when they have all means."""
        self.departures.are_void = failed
        for stream in self._outbound + (self._inbound if failed else []):
            stream.close()
        if failed:
            for event in self.attended.values():
                event.set()

    @property
    def num_bytes(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        streams = self._outbound + self._inbound
        return sum(s.bytes_sent for s in streams), sum(s.bytes_received for s in streams)

    def _sizes(self) -> dict[PeerId, int]:
        """Bytes of each reducer's part."""
        return {
            part.reducer: sum(self._codec.size(piece.stop - piece.start) for piece in part.pieces)
            for part in self._parts
        }

    async def _leave_behind(self) -> None:
        """End the round if the others would wait long for the link of one member."""
        peer = await self.watch.straggler()
        self.told(RoundFailed((peer,), f"the others would wait long for peer {short(peer)}", is_pace=True))

    # What others begin.

    def told(self, failure: RoundFailed) -> None:
        """Another member says that the round has failed."""
        if not self._told.done():
            self._told.set_result(failure)

    def welcome(self, peer: PeerId, header: Header, stream: Stream, came: float) -> None:
        """A member has opened its stream to this reducer at this time."""
        waited_for = self._came[peer]
        if header.get("terms") != self._terms or header.get("samples") != self.others[peer].samples:
            self.told(RoundFailed((peer,), f"peer {short(peer)} has other ideas about round {self._key}"))
        elif waited_for.cancelled():
            self._inbound.append(stream)  # the round has just failed, and will be closed
        elif waited_for.done() or self._own_part is None:
            self.told(RoundFailed((peer,), f"peer {short(peer)} opens a stream that has no place in the round"))
        else:
            self._inbound.append(stream)
            self.arrivals[peer] = Arrival(came)
            waited_for.set_result(stream)

    # As a member: one part, at its reducer.

    async def _exchange(self, part: Part) -> None:
        with blaming(part.reducer):
            stream = await self._reach(part.reducer)
            self._outbound.append(stream)
            begin: Header = {"key": self._key, "terms": self._terms, "samples": self._own.samples}
            await stream.send(begin, timeout=self._patience)
            async with asyncio.TaskGroup() as group:
                if self._own.samples:
                    group.create_task(self._send_sums(part, stream))
                group.create_task(self._receive_means(part, stream))
            stream.close()

    async def _reach(self, reducer: PeerId) -> Stream:
        """Dialling again and again: the daemon gives up at once on an address that failed a moment ago."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        while True:
            try:
                return await self._node.open(reducer, WIRE_NAME, max(deadline - loop.time(), RETRY_SECONDS))
            except PeerUnreachable:
                if loop.time() + RETRY_SECONDS >= deadline:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def _send_sums(self, part: Part, stream: Stream) -> None:
        for number, piece in enumerate(part.pieces):
            encoded = self._codec.encode(self._sums[piece])
            if self._is_lossy:
                self._sums[piece] -= self._codec.decode(encoded, piece.stop - piece.start)
            await stream.send({"piece": number}, encoded, SLOW_LINK * self._patience)
            await asyncio.sleep(0)  # the socket may take much at once; let others work too

    async def _receive_means(self, part: Part, stream: Stream) -> None:
        for number, piece in enumerate(part.pieces):
            size = self._codec.size(piece.stop - piece.start)
            header, body = await stream.receive(size, INDIRECT * self._patience)
            while "waiting" in header:
                self.watch.hear(stream.peer, header["waiting"])
                header, body = await stream.receive(size, INDIRECT * self._patience)
            if "over" in header:
                raise failure_in(header, "over", stream.peer, self.members)
            self.mean[piece] = self._checked(stream.peer, number, piece, header, body)
            self.watch.note_means(stream.peer, len(body))

    def _checked(self, peer: PeerId, number: int, piece: slice, header: Header, body: bytes) -> Floats:
        self._check_frame(peer, number, piece, header, body)
        return self._decode(peer, body, piece.stop - piece.start)

    def _check_frame(self, peer: PeerId, number: int, piece: slice, header: Header, body: bytes) -> None:
        if header != {"piece": number} or len(body) != self._codec.size(piece.stop - piece.start):
            raise PeerMisbehaves(peer, f"does not send piece {number} of the round when it should")

    def _decode(self, peer: PeerId, body: Encoded, count: int) -> Floats:
        try:
            values = self._codec.decode(body, count)
        except MalformedPiece as error:
            raise PeerMisbehaves(peer, f"sends a piece {error}") from None
        if not np.isfinite(values).all():
            raise PeerMisbehaves(peer, "sends numbers that are not finite")
        return values

    # As a reducer: one part, of all members.

    async def _reduce(self, part: Part) -> None:
        ahead = max(2, BYTES_AHEAD // self._codec.size(part.piece_elements))
        sums: dict[PeerId, asyncio.Queue[Encoded]] = {peer: asyncio.Queue(ahead) for peer in self.others}
        self.watch.waiting_sums |= sums
        means: dict[PeerId, asyncio.Queue[Encoded]] = {peer: asyncio.Queue() for peer in self.others}
        async with asyncio.TaskGroup() as group:
            for peer in self.others:
                group.create_task(self._attend(part, peer, sums[peer], means[peer]))
            for piece in part.pieces:
                mean = await self._mean_of(piece, sums)
                encoded = self._codec.encode(mean)
                self.mean[piece] = self._codec.decode(encoded, len(mean))
                if self._is_lossy:
                    self._sums[piece] += (mean - self.mean[piece]) * np.float32(self._total)
                self.departures.mean_is_ready(time.monotonic())
                for queue in means.values():
                    queue.put_nowait(encoded)
                await asyncio.sleep(0)

    async def _mean_of(self, piece: slice, sums: dict[PeerId, asyncio.Queue[Encoded]]) -> Floats:
        mean = PieceMean(piece.stop - piece.start)
        for member in self.members:
            if member.peer == self._own.peer and member.samples:
                mean.add(self._sums[piece])
            elif member.samples:
                encoded = await sums[member.peer].get()
                with blaming(member.peer):
                    mean.add(self._decode(member.peer, encoded, piece.stop - piece.start))
        if self._is_lossy and self._own.samples:
            self._sums[piece] = 0
        return mean.mean(self._total)

    async def _attend(
        self, part: Part, peer: PeerId, sums: asyncio.Queue[Encoded], means: asyncio.Queue[Encoded]
    ) -> None:
        with blaming(peer):
            try:
                async with asyncio.timeout(self._patience):
                    stream = await self._came[peer]
            except TimeoutError:
                raise RoundFailed((peer,), f"peer {short(peer)} did not come within {self._patience:.1f} s") from None
            async with asyncio.TaskGroup() as group:
                if self.others[peer].samples:
                    group.create_task(self._receive_sums(part, stream, sums))
                group.create_task(self._send_means(part, stream, means))
            self.attended[peer].set()

    async def _receive_sums(self, part: Part, stream: Stream, sums: asyncio.Queue[Encoded]) -> None:
        arrival = self.arrivals[stream.peer]
        for number, piece in enumerate(part.pieces):
            before = time.monotonic()
            header, body = await stream.receive(self._codec.size(piece.stop - piece.start), self._patience)
            arrival.note(before, time.monotonic(), len(body))
            self._check_frame(stream.peer, number, piece, header, body)
            await sums.put(body)
            await asyncio.sleep(0)  # much may be there at once; let others work too

    async def _send_means(self, part: Part, stream: Stream, means: asyncio.Queue[Encoded]) -> None:
        for number in range(len(part.pieces)):
            encoded = None
            while encoded is None:
                try:
                    async with asyncio.timeout(min(self._patience / 3, self.watch.interval)):
                        encoded = await means.get()
                except TimeoutError:
                    await stream.send({"waiting": self.watch.told()}, timeout=self._patience)
            await stream.send({"piece": number}, encoded, self._patience)
