"""The slow lane, from the guest's side: whose link cannot carry a round in every epoch trains at its own cadence.

It gathers all the time. Every 2^k epochs it hands its sum of gradients to a sponsor in the step lane, compressed to
4 bits with error feedback, and fetches the newer weights; both behind the gathering of the next cycle. Nobody waits
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
from peer.daemon.watching import watch_swarm
from peer.errors import PeerError
from peer.swarm.codec import Compression
from peer.swarm.errors import StateUnavailable
from peer.swarm.stream import Stream
from peer.swarm.vectors import receive_vector, send_vector
from protocol.errors import ProtocolError
from protocol.lanes import SLOW_LANE_CODEC
from protocol.units import Epoch, PeerId

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
        self._unconfirmed: dict[PeerId, tuple[int, Epoch, int, Vector]] = {}
        """by sponsor: a deposit of which we do not know whether it arrived: cycle, epoch, samples, sums"""
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
        tasks = [asyncio.create_task(self._watch()), asyncio.create_task(daemon.stopping())]
        exchanging: asyncio.Task[None] | None = None
        try:
            await daemon.ensure_worker()
            if not await self._ensure_weights():
                return
            while (place := self._place()) is not None and daemon.membership.is_slow() and not daemon.is_stopping:
                daemon.status.activity("gathering", f"slow lane: hands in every {place.cadence} epochs")
                epoch = daemon.replica.epoch
                harvest = await self._gather_cycle(place, tasks[1])
                daemon.owed.add(harvest.samples, harvest.sums, epoch)
                if exchanging is None or exchanging.done():
                    exchanging = asyncio.create_task(self._exchange(place))
        finally:
            for task in (*tasks, *([exchanging] if exchanging else [])):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, PeerError):
                    await task

    async def _gather_cycle(self, place: SlowMember, stopping: asyncio.Task[None]) -> Harvest:
        """What this peer gathers in a cadence of epochs, or until the plan changes or the peer is to end."""
        daemon = self._daemon
        self._label = max(self._label, daemon.replica.epoch) + 1
        seconds = place.cadence * daemon.council.plan.deadline_milliseconds / 1000
        self._changed.clear()
        changing = asyncio.create_task(self._changed.wait())
        try:
            await daemon.ensure_worker()
            gathering = daemon.gatherer.begin(self._label, place.quota * place.cadence, seconds)
            await asyncio.wait((gathering.task, stopping, changing), return_when=asyncio.FIRST_COMPLETED)
            if not gathering.task.done():
                daemon.worker.stop()
            return await gathering.task
        finally:
            changing.cancel()

    async def _watch(self) -> None:
        """Follow the epochs and plans of the step lane, and cast ballots."""

        def sponsors() -> list[PeerId]:
            place = self._place()
            asked = list(place.sponsors) if place else []
            asked = asked or sorted(m.peer for m in self._daemon.council.plan.step)
            return asked[:2]

        await watch_swarm(self._daemon, sponsors, self._changed.set)

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
        """Hand in what is owed. What a failed transfer did not bring over stays owed.

        Where only the last word is missing, the sponsor may have taken it: it says so when it is asked the next time.
        """
        daemon = self._daemon
        if not daemon.owed.samples:
            return
        self._cycle = max(self._cycle + 1, int(time.time() * 1000))
        sponsor = place.sponsors[self._cycle % len(place.sponsors)]  # in turn, so that two observe our link
        began = time.monotonic()
        try:
            stream = await daemon.node.open(sponsor, "deposit", REQUEST_SECONDS)
            try:
                samples = await self._hand_over(stream, sponsor)
            finally:
                self.bytes_sent += stream.bytes_sent
                stream.close()
        except (PeerError, ProtocolError) as error:
            daemon.listener(events.Notice(f"could not hand in now, so it waits for the next time: {error}"))
            return
        daemon.listener(
            events.HandedIn(
                samples=samples,
                sponsor=sponsor,
                epoch=daemon.own.epoch,
                cadence=place.cadence,
                seconds=time.monotonic() - began,
            )
        )

    async def _hand_over(self, stream: Stream, sponsor: PeerId) -> int:
        """Samples handed in."""
        owed = self._daemon.owed
        epoch, (samples, sums) = owed.epoch, owed.take()
        is_sent = False
        try:
            await stream.send({"cycle": self._cycle, "samples": samples, "epoch": epoch}, timeout=REQUEST_SECONDS)
            answer, _ = await stream.receive(0, REQUEST_SECONDS)
            self._settle(sponsor, answer.get("taken"))
            if "go" not in answer or sums is None:
                raise StateUnavailable(str(answer.get("refused"))[:200])
            decoded = await send_vector(stream, sums, SLOW_LANE_CODEC)
            is_sent = True
        finally:
            if not is_sent:
                owed.add(samples, sums, epoch)
        owed.add(0, sums - decoded, self._daemon.replica.epoch)
        self._unconfirmed[sponsor] = self._cycle, epoch, samples, decoded
        answer, _ = await stream.receive(0, 6 * REQUEST_SECONDS)
        self._settle(sponsor, answer.get("taken"))
        return samples

    def _settle(self, sponsor: PeerId, taken: object) -> None:
        """The sponsor says which cycle it took last: did it take what we do not know of?"""
        cycle, epoch, samples, sums = self._unconfirmed.pop(sponsor, (0, 0, 0, None))
        if type(taken) is not int:
            return  # it has no memory of us: at most once, rather than twice
        if taken >= cycle:
            self._daemon.own.total_samples += samples
        else:
            self._daemon.owed.add(samples, sums, epoch)

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
                    codec: Compression = "float16" if full else SLOW_LANE_CODEC
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
