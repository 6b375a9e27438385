"""Averaging over a group of peers: the sum of all sums divided by the number of all samples, the same bits for all.

A round is known by its key. Peers begin it at slightly different times, so what comes for a round that is not
here yet is held for a while, unread; what comes for one that is over is told so. A member whose round fails
tells all others why before it closes its streams: else they would blame each other for the closing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from peer.swarm.blame import described, failure_in
from peer.swarm.butterfly import WIRE_NAME, Butterfly
from peer.swarm.codec import CODECS, Compression, Floats
from peer.swarm.errors import RoundFailed
from peer.swarm.node import Node
from peer.swarm.pace import Arrival, Departures, Saw, SawDrop, Traffic, report_arrivals, report_departure
from peer.swarm.parts import Contribution
from peer.swarm.stream import Header, Stream
from protocol.errors import LocalProtocolError
from protocol.units import PeerId

__all__ = ["AllReduce", "AllReduceReport", "Contribution"]

MAX_KEY_LENGTH = 200  # characters
MAX_HELD = 256  # streams for rounds that have not begun here
MAX_REMEMBERED = 64  # rounds that are over
TELL_SECONDS = 1.0  # to tell the others of a failure
DEPARTURE_SECONDS = 60.0  # for a member to receive what is on its way, after the round is over here
DONE: Header = {"over": "the round is over", "blamed": []}


@dataclass(frozen=True)
class AllReduceReport:
    mean: Floats
    """shape and order of the sums; the same bits on all members"""
    residual: Floats | None
    """what this member's encoding lost, in units of sums, to be given to the next round if this one counts; None:
    nothing"""
    bytes_sent: int
    bytes_received: int
    seconds: float


class AllReduce:
    """All rounds of one node. `start` once; then any number of rounds, also at the same time."""

    def __init__(
        self,
        node: Node,
        *,
        patience_seconds: float,
        saw_up: Saw | None = None,
        saw_down: Saw | None = None,
        saw_drop: SawDrop | None = None,
    ) -> None:
        """`saw_…` are told what rounds show of the links of others (see `peer.swarm.pace`)."""
        self._node = node
        self._patience = patience_seconds
        self._saw_up, self._saw_down, self._saw_drop = saw_up, saw_down, saw_drop
        self._running: dict[str, Butterfly] = {}
        self._over: OrderedDict[str, Header] = OrderedDict()
        self._begun = asyncio.Condition()
        self._held = 0

    async def start(self) -> None:
        """Let others open streams to this peer."""
        await self._node.serve(WIRE_NAME, self._accept)

    async def run(
        self,
        key: str,
        members: Sequence[Contribution],
        sums: Floats,
        compression: Compression,
        residual: Floats | None = None,
        pace_seconds: float | None = None,
    ) -> AllReduceReport:
        """One round: all members call this with the same key, members (in the same order) and compression.

        `sums` is a float32 vector, the sum over this peer's samples; it must not change before the round ends,
        and counts as zero if this peer has no samples. `residual`, of the same shape, is what the last round that
        counted has reported: it enters with the sums (without samples, it stays for later). Neither is written to.
        After `pace_seconds`, the others do not wait long for a member that alone is behind.
        Raises `RoundFailed`, on every member within about
        `patience_seconds` of a fault; `LocalProtocolError` for arguments that can be no round.
        """
        self._check(key, members, sums, compression, residual)
        begin = time.monotonic()
        round_ = Butterfly(self._node, key, members, sums, compression, residual, self._patience, pace_seconds)
        self._running[key] = round_
        outcome: Header = {"over": "this peer left the round", "blamed": []}
        try:
            await self._announce()
            await round_.run()
            outcome = DONE
            if self._saw_up is not None:
                report_arrivals(round_.arrivals, round_.traffic, self._saw_up)
        except RoundFailed as failure:
            outcome = described(failure, "over")
            self._report_pace(round_, failure)
            await self._tell(key, round_, failure)
            await self._own_fault()
            raise
        finally:
            round_.close(failed=outcome != DONE)
            del self._running[key]
            self._remember(key, outcome)
        sent, received = round_.num_bytes
        return AllReduceReport(round_.mean, round_.residual, sent, received, time.monotonic() - begin)

    def _check(
        self,
        key: str,
        members: Sequence[Contribution],
        sums: Floats,
        compression: Compression,
        residual: Floats | None,
    ) -> None:
        peers = [member.peer for member in members]
        problem = None
        if not 0 < len(key) <= MAX_KEY_LENGTH or key in self._running or key in self._over:
            problem = f"the key {key[:60]!r} is empty, too long, or was used before"
        elif len(set(peers)) != len(peers) or self._node.peer_id not in peers:
            problem = "members must be different peers, this one among them"
        elif any(member.samples < 0 for member in members) or not any(member.samples for member in members):
            problem = "nobody contributes a sample"
        elif any(member.share < 0 for member in members) or not any(member.share for member in members):
            problem = "nobody has a share to reduce"
        elif sums.dtype != np.float32 or sums.ndim != 1 or not len(sums) or compression not in CODECS:
            problem = "sums must be a float32 vector, and the compression a known one"
        elif residual is not None and (residual.dtype != np.float32 or residual.shape != sums.shape):
            problem = "the residual must be like the sums"
        if problem:
            raise LocalProtocolError(f"no such round can be: {problem}")

    async def _announce(self) -> None:
        async with self._begun:
            self._begun.notify_all()

    async def _tell(self, key: str, round_: Butterfly, failure: RoundFailed) -> None:
        message: Header = {"key": key, **described(failure, "failed")}
        await asyncio.gather(
            *(
                self._node.call(peer, WIRE_NAME, message, timeout=TELL_SECONDS)
                for peer in round_.others
                if peer != failure.reported_by
            ),
            return_exceptions=True,
        )

    def _report_pace(self, round_: Butterfly, failure: RoundFailed) -> None:
        """What a round has shown of links that it could not wait for."""
        if failure.is_pace and self._saw_drop is not None:
            for peer in set(failure.blamed) & set(round_.arrivals):
                self._saw_drop(peer, round_.watch.rate(peer))

    async def _own_fault(self) -> None:
        """If it is our own daemon that has died, then all others seem to be gone: they are not to blame."""
        await asyncio.wait((self._node.died,), timeout=0.1)
        if self._node.died.done():
            raise RoundFailed((), self._node.died.result())

    def _remember(self, key: str, outcome: Header) -> None:
        self._over[key] = outcome
        while len(self._over) > MAX_REMEMBERED:
            self._over.popitem(last=False)

    async def _accept(self, peer: PeerId, stream: Stream) -> None:
        header, _ = await stream.receive(0, self._patience)
        came = time.monotonic()
        key = header.get("key")
        if not isinstance(key, str) or len(key) > MAX_KEY_LENGTH:
            return
        round_ = await self._round(key)
        if round_ is None:
            await stream.send(self._over.get(key, {"over": "no such round here", "blamed": []}))
        elif peer not in round_.others:
            return
        elif "failed" in header:
            round_.told(failure_in(header, "failed", peer, round_.members))
            await stream.send({})
        else:
            round_.welcome(peer, header, stream, came)
            await round_.attended[peer].wait()
            arrival, departures, traffic = round_.arrivals.get(peer), round_.departures, round_.traffic
            del round_  # whoever leaves slowly shall not keep its vectors here
            if arrival is not None and not departures.are_void:
                await self._see_off(stream, arrival, departures, traffic)

    async def _see_off(self, stream: Stream, arrival: Arrival, departures: Departures, traffic: Traffic) -> None:
        """Wait until a member has closed its stream, because it has all means, or until the round has failed."""
        last = time.monotonic()
        await stream.finish(DEPARTURE_SECONDS)
        now = time.monotonic()
        if self._saw_down is not None and not departures.are_void and now - last < DEPARTURE_SECONDS:
            report_departure(stream.peer, arrival, now, departures, traffic, self._saw_down)

    async def _round(self, key: str) -> Butterfly | None:
        """The round with this key; if it is neither here nor over, wait for it, but not for long."""
        if key not in self._running and key not in self._over and self._held < MAX_HELD:
            self._held += 1
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._patience), self._begun:
                        await self._begun.wait_for(lambda: key in self._running or key in self._over)
            finally:
                self._held -= 1
        return self._running.get(key)
