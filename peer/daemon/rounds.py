"""Carries out one epoch's round: what `protocol/round.py` decides, on real streams."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from peer.daemon.catchup import AVERAGE, CatchUp
from peer.daemon.history import Committed, Step, gradient_snapshot
from peer.daemon.replica import Vector
from peer.errors import PeerError
from peer.swarm.allreduce import AllReduce, AllReduceReport, Contribution
from peer.swarm.codec import Compression
from peer.swarm.errors import RoundFailed
from peer.swarm.node import Node
from peer.swarm.state import Snapshot
from protocol import round_messages as messages
from protocol.encoding import digest
from protocol.errors import ProtocolError
from protocol.lineage import Counted, Lineage
from protocol.round import RoundMachine
from protocol.round_messages import Effect, Event, RoundMessage
from protocol.units import Epoch, PeerId

MESSAGE_SECONDS = 3.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Agreed:
    """The round ended with an update that all survivors apply."""

    commit: Committed
    report: AllReduceReport | None
    """None where the average was fetched from another member"""
    reason: str


@dataclass(frozen=True)
class OutOfStep:
    """This epoch cannot be ended from here."""

    reason: str
    others_are_ahead: bool
    """so this peer has to catch up; else all begin the epoch anew"""


@dataclass(frozen=True)
class OtherPlan:
    """A member goes by another plan, which takes precedence."""

    peer: PeerId
    term: int
    plan: str


Outcome = Agreed | OutOfStep | OtherPlan


class Round:
    """One epoch's round at this peer. `feed` it events; `run` until there is an outcome."""

    def __init__(
        self,
        machine: RoundMachine,
        *,
        epoch: Epoch,
        lineage: Lineage,
        node: Node,
        allreduce: AllReduce,
        catchup: CatchUp,
        shares: Mapping[PeerId, int],
        compression: Compression,
        residual: Vector | None,
        grace_seconds: float,
        pace_seconds: float,
    ) -> None:
        """`residual`: what the encoding of this peer's last committed sums lost."""
        self.machine, self.epoch, self._lineage = machine, epoch, lineage
        self._node, self._allreduce, self._catchup = node, allreduce, catchup
        self._shares, self._compression, self._residual = shares, compression, residual
        self._message_seconds = min(MESSAGE_SECONDS, grace_seconds / 2)
        self._pace_seconds = pace_seconds
        self.sums: Vector | None = None
        """this peer's gradient sums; there before GatheringFinished is fed"""
        self.outcome: Outcome | None = None
        self.bytes_sent = self.bytes_received = 0
        self.transfer_seconds = 0.0
        self._inbox: asyncio.Queue[Event] = asyncio.Queue()
        self._averages: dict[int, Committed] = {}
        self._report: AllReduceReport | None = None
        self._averaging: asyncio.Task[None] | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._sending: dict[PeerId, asyncio.Task[None]] = {}
        self._to_send: dict[PeerId, RoundMessage] = {}

    def feed(self, event: Event) -> None:
        self._inbox.put_nowait(event)

    async def run(self) -> Outcome:
        """Drive the machine until the round is over. All its tasks have ended then."""
        try:
            while self.outcome is None:
                event = await self._next_event()
                for effect in self.machine.handle(event, time.monotonic()):
                    self._carry_out(effect)
            return self.outcome
        finally:
            await self._settle()

    async def _next_event(self) -> Event:
        deadline = self.machine.deadline()
        if not self._inbox.empty():
            return self._inbox.get_nowait()
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            return await asyncio.wait_for(self._inbox.get(), timeout)
        except TimeoutError:
            return messages.Tick()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case messages.Send():
                self._to_send[effect.peer] = effect.message
                if effect.peer not in self._sending:
                    self._sending[effect.peer] = asyncio.create_task(self._send(effect.peer))
            case messages.StartAverage():
                self._averages.clear()
                self._averaging = asyncio.create_task(self._average(effect.attempt, effect.members))
            case messages.CancelAverage():
                if self._averaging is not None:
                    self._averaging.cancel()
            case messages.FetchResult():
                if self._fetching is not None:
                    self._fetching.cancel()
                self._fetching = asyncio.create_task(self._fetch(effect))
            case messages.Commit():
                commit = self._averages[effect.attempt]
                assert commit.lineage == effect.lineage
                self.outcome = Agreed(commit, self._report, effect.reason)
            case messages.CatchUp():
                self.outcome = OutOfStep(effect.reason, bool(effect.donors))
            case messages.PlanDiffers():
                self.outcome = OtherPlan(effect.peer, effect.term, effect.plan)

    async def _send(self, peer: PeerId) -> None:
        """Send the newest message for `peer`, and what replaced it meanwhile, one at a time."""
        try:
            while (message := self._to_send.pop(peer, None)) is not None:
                self.feed(await self._exchange(peer, message))
        finally:
            del self._sending[peer]

    async def _exchange(self, peer: PeerId, message: RoundMessage) -> Event:
        try:
            header, body = await self._node.call(
                peer, "round", {"epoch": self.epoch}, message.to_bytes(), timeout=self._message_seconds
            )
            if body:
                return messages.MessageReceived(peer, RoundMessage.from_bytes(body))
            epoch = header.get("epoch")
            if isinstance(epoch, int) and epoch > self.epoch:
                return messages.PeerAhead(peer, epoch)
            if isinstance(epoch, int):
                return messages.PeerBehind(peer, epoch)
        except (PeerError, ProtocolError):
            pass
        return messages.PeerUnreachable(peer)

    async def _average(self, attempt: int, members: tuple[Counted, ...]) -> None:
        contributions = [Contribution(peer, samples, self._shares[peer]) for peer, samples in members]
        names = ",".join(f"{peer}:{samples}" for peer, samples in members)
        key = f"{self.epoch}/{attempt}/{digest('round key', (self._lineage.digest + names).encode()).hex()[:32]}"
        assert self.sums is not None
        try:
            report = await self._allreduce.run(
                key, contributions, self.sums, self._compression, self._residual, self._pace_seconds
            )
        except RoundFailed as failure:
            self.feed(messages.AverageFailed(attempt, tuple(failure.blamed), failure.is_pace))
            return
        except Exception:  # a fault of ours must not leave the others waiting
            logger.exception("averaging failed")
            self.feed(messages.AverageFailed(attempt))
            return
        self._report = report
        self._averages[attempt] = Committed(self.epoch, attempt, members, self._lineage, self._compression, report.mean)
        self.bytes_sent += report.bytes_sent
        self.bytes_received += report.bytes_received
        self.transfer_seconds += report.seconds
        self.feed(messages.AverageFinished(attempt))

    async def _fetch(self, effect: messages.FetchResult) -> None:
        step = Step(self.epoch, effect.attempt, effect.members, self._lineage, self._compression)
        for kind in ("gradient", f"{AVERAGE}{effect.attempt}"):
            if (found := await self._catchup.fetch_gradient(kind, step, [effect.peer])) is not None:
                self._averages[effect.attempt], self._report = found, None
                self.feed(messages.FetchFinished(effect.attempt))
                return
        self.feed(messages.FetchFailed(effect.attempt))

    def average_of(self, attempt: int) -> Snapshot | None:
        """What another member of the attempt may fetch from this one."""
        commit = self._averages.get(attempt)
        return gradient_snapshot(commit) if commit is not None else None

    async def _settle(self) -> None:
        """End what is under way. Messages of the end are still delivered, so that others need not ask for them."""
        for task in (self._averaging, self._fetching):
            if task is not None and not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def abandon(self) -> None:
        """Stop sending, too."""
        for task in list(self._sending.values()):
            task.cancel()


Work = Coroutine[Any, Any, None]
