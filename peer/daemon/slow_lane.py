"""The slow lane, from the guest's side: whose link cannot carry a round in every epoch trains at its own cadence.

It gathers all the time. Every 2^k epochs it hands its sum of gradients to a sponsor in the step lane, compressed to
8 bits with error feedback, and fetches the newer weights; both behind the gathering of the next cycle. Nobody waits
for it, and it waits for nobody. A transfer that fails keeps its sum for the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from peer import events
from peer.daemon.gathering import Harvest
from peer.daemon.replica import Vector
from peer.errors import PeerError
from peer.swarm.codec import Compression
from peer.swarm.errors import StateUnavailable
from peer.swarm.vectors import receive_vector, send_vector
from protocol.errors import ProtocolError
from protocol.units import Epoch

if TYPE_CHECKING:
    from peer.daemon.lifecycle import Daemon
    from protocol.plan import SlowMember

REQUEST_SECONDS = 10.0
RETRY_SECONDS = 1.0


class SlowLane:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._version: int | None = None
        """of our weights, as the primary sponsor counts them"""
        self._weights_from = ""
        self._owed: Vector | None = None
        """gradient sums that are not handed in yet, and what rounding has kept back"""
        self._owed_samples = 0
        self._cycle = 0
        self._label: Epoch = 0
        self._changed = asyncio.Event()
        self.bytes_sent = self.bytes_received = 0

    def _place(self) -> SlowMember | None:
        """Our place in the slow lane of the present plan."""
        return self._daemon.council.plan.slow_member(self._daemon.me)

    async def take_part(self) -> None:
        """Train at our own cadence until a plan says otherwise or the peer is to end."""
        daemon = self._daemon
        daemon.own.state = "training"
        watching = asyncio.create_task(self._watch())
        exchanging: asyncio.Task[None] | None = None
        stopping = asyncio.create_task(daemon.stopping())
        try:
            await daemon.gatherer.abandon()  # what the step lane had begun to gather ahead
            await daemon.ensure_worker()
            if not await self._ensure_weights():
                return
            while (place := self._place()) is not None and daemon.membership.is_slow() and not daemon.is_stopping:
                daemon.status.activity("gathering", f"slow lane: hands in every {place.cadence} epochs")
                self._label = max(self._label + 1, daemon.replica.epoch)
                seconds = place.cadence * daemon.council.plan.deadline_milliseconds / 1000
                quota = place.quota * place.cadence
                self._changed.clear()
                changing = asyncio.create_task(self._changed.wait())
                await daemon.ensure_worker()
                gathering = daemon.gatherer.begin(self._label, quota, seconds)
                waited = {gathering.task, stopping, changing}
                while not waited & (await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED))[0]:
                    pass
                changing.cancel()
                if not gathering.task.done():
                    daemon.worker.stop()
                self._owe(await gathering.task)
                if exchanging is None or exchanging.done():
                    exchanging = asyncio.create_task(self._exchange(place))
        finally:
            for task in (watching, stopping, exchanging):
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError, PeerError):
                        await task

    async def _watch(self) -> None:
        """Follow the epochs and plans of the step lane, and cast ballots."""
        daemon = self._daemon
        known = -1
        while True:
            place = self._place()
            asked = list(place.sponsors) if place else []
            asked = asked or sorted(m.peer for g in daemon.council.plan.groups for m in g.members)
            standings = await daemon.catchup.standings(asked[:2], after=known)
            if not standings:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            newest = max(standings, key=lambda standing: (standing.epoch, standing.peer))
            if newest.epoch > known:
                known = newest.epoch
                daemon.own.epoch, daemon.own.throughput = known, daemon.throughput()
                daemon.council.begin(known, daemon.ballot, newest.absent)
            if newest.plan.term > daemon.council.plan.term:
                daemon.council.adopt(newest.plan, "the plan that the swarm goes by")
                daemon.membership.announce()
                self._changed.set()

    def _owe(self, harvest: Harvest) -> None:
        if harvest.sums is not None:
            self._owed = harvest.sums.copy() if self._owed is None else self._owed + harvest.sums
            self._owed_samples += harvest.samples

    async def _ensure_weights(self) -> bool:
        """Have weights to train with before the first cycle."""
        daemon = self._daemon
        while not daemon.replica.has_weights and not daemon.is_stopping:
            place = self._place()
            if place is None:
                return False
            with contextlib.suppress(PeerError, ProtocolError):
                await self._fetch_weights(place)
            if not daemon.replica.has_weights:
                await asyncio.sleep(RETRY_SECONDS)
        await daemon.replica.show_to(daemon.worker)
        return True

    async def _exchange(self, place: SlowMember) -> None:
        """Hand in and fetch at the same time: the link carries both ways at once."""
        began = time.monotonic()
        await asyncio.gather(self._deposit(place), self._fetch_weights(place), return_exceptions=True)
        self._daemon.status.note_transfer(time.monotonic() - began)

    async def _deposit(self, place: SlowMember) -> None:
        daemon = self._daemon
        owed, samples = self._owed, self._owed_samples
        if owed is None or not samples:
            return
        self._owed, self._owed_samples = None, 0
        self._cycle = max(self._cycle + 1, int(time.time() * 1000))
        sponsor = place.sponsors[self._cycle % len(place.sponsors)]  # in turn, so that two observe our link
        began = time.monotonic()
        kept: Vector = owed
        try:
            stream = await daemon.node.open(sponsor, "deposit", REQUEST_SECONDS)
            try:
                await stream.send({"cycle": self._cycle, "samples": samples}, timeout=REQUEST_SECONDS)
                answer, _ = await stream.receive(0, REQUEST_SECONDS)
                if "go" not in answer:
                    raise StateUnavailable(str(answer.get("refused"))[:200])
                decoded = await send_vector(stream, owed, "uniform8")
                answer, _ = await stream.receive(0, 6 * REQUEST_SECONDS)
                if answer.get("taken") != self._cycle:
                    raise StateUnavailable("the sponsor did not take the deposit")
                self.bytes_sent += stream.bytes_sent
            finally:
                stream.close()
            kept = owed - decoded
            daemon.own.total_samples += samples
            daemon.listener(
                events.HandedIn(
                    samples=samples,
                    sponsor=sponsor,
                    epoch=daemon.own.epoch,
                    cadence=place.cadence,
                    seconds=time.monotonic() - began,
                )
            )
            samples = 0
        except (PeerError, ProtocolError) as error:
            daemon.listener(events.Notice(f"could not hand in now, so it waits for the next time: {error}"))
        self._owed = kept if self._owed is None else self._owed + kept
        self._owed_samples += samples

    async def _fetch_weights(self, place: SlowMember) -> None:
        daemon, replica = self._daemon, self._daemon.replica
        sponsor = place.sponsors[0]
        have = self._version if self._weights_from == sponsor else None
        stream = await daemon.node.open(sponsor, "weights", REQUEST_SECONDS)
        try:
            await stream.send({"have": have}, timeout=REQUEST_SECONDS)
            header, _ = await stream.receive(0, 2 * REQUEST_SECONDS)
            match header:
                case {"epoch": int(epoch), "version": int(version), "full": bool(full)}:
                    codec: Compression = "float16" if full else "uniform8"
                    received = await receive_vector(stream, replica.num_parameters, codec)
                case _:
                    raise StateUnavailable(str(header.get("refused"))[:200])
            await stream.send({"have": version}, timeout=REQUEST_SECONDS)
            await stream.receive(0, REQUEST_SECONDS)
            self.bytes_received += stream.bytes_received
        finally:
            stream.close()
        await replica.take_weights(received.vector, epoch, is_difference=not full)
        self._version, self._weights_from = version, sponsor
        daemon.in_background(replica.show_to(daemon.worker))
