"""One epoch of a member: gather the quota, agree and average in a round, update the weights."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from peer import events
from peer.daemon.gathering import Gathering, Harvest
from peer.daemon.replica import Vector
from peer.daemon.rounds import Agreed, OtherPlan, OutOfStep, Round
from peer.daemon.services import Reply, serve_calls
from peer.errors import PeerError
from peer.policy.evaluation import EvaluationCadence, evaluator
from peer.policy.phase import Phase
from peer.swarm.allreduce import AllReduce
from peer.swarm.state import Snapshot
from protocol import round_messages as messages
from protocol.errors import RemoteProtocolError
from protocol.round import RoundMachine
from protocol.round_messages import RoundMessage
from protocol.units import Epoch, PeerId

if TYPE_CHECKING:
    from peer.daemon.lifecycle import Daemon

TICK_SECONDS = 0.5
FAREWELL_SECONDS = 1.0
AVERAGING_SECONDS = 20.0
SLOWEST_RATE = 125_000
"""bytes per second, at which averaging may still take its time; silence is noticed much earlier"""


class Stopped(Exception):
    """The owner asked the peer to leave."""


class EpochRunner:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        averaging = daemon.signed.manifest.averaging
        self._allreduce = AllReduce(
            daemon.node,
            patience_seconds=averaging.grace_seconds,
            saw_up=lambda peer, rate, least: daemon.links.saw_up(peer, rate, time.monotonic(), at_least=least),
            saw_down=lambda peer, rate, least: daemon.links.saw_down(peer, rate, time.monotonic(), at_least=least),
            saw_drop=lambda peer, rate: daemon.links.saw_drop(peer, rate, time.monotonic()),
        )
        self._round: Round | None = None
        self._last_round: Round | None = None
        self._cadence = EvaluationCadence()
        self._overlaps_from = daemon.signed.manifest.schedule.warmup_epochs if averaging.overlap else math.inf
        self._told_deadline: float | None = None
        self._phase, self._ready_at = Phase(), 0.0
        self._started = 0
        self._residual: Vector | None = None
        self._last_commit = time.monotonic()
        self.last_event: events.EpochCommitted | None = None
        self.bytes_sent = self.bytes_received = 0

    async def serve(self) -> None:
        """Answer the messages of other members' rounds."""
        await self._allreduce.start()
        await serve_calls(self._daemon.node, "round", self._answer)
        await serve_calls(self._daemon.node, "farewell", self._hear_farewell)
        self._daemon.catchup.uncommitted = self._uncommitted

    async def _answer(self, peer: PeerId, header: dict[str, Any], body: bytes) -> Reply:
        mine = {"epoch": self._daemon.replica.epoch}
        try:
            message = RoundMessage.from_bytes(body)
        except RemoteProtocolError:
            return mine, b""
        for round_ in (self._round, self._last_round):
            if round_ is not None and round_.epoch == message.epoch:
                round_.feed(messages.MessageReceived(peer, message))
                return mine, round_.machine.message.to_bytes()
        return mine, b""

    async def _hear_farewell(self, peer: PeerId, _header: dict[str, Any], _body: bytes) -> Reply:
        if self._round is not None:
            self._round.feed(messages.PeerLeft(peer))
        return {}, b""

    async def say_farewell(self) -> None:
        """Tell the members of the round not to wait for us."""
        node, plan = self._daemon.node, self._daemon.council.plan
        others = [m.peer for m in plan.step if m.peer != self._daemon.me]
        calls = (node.call(peer, "farewell", {}, timeout=FAREWELL_SECONDS) for peer in others)
        await asyncio.gather(*calls, return_exceptions=True)

    def _uncommitted(self, epoch: Epoch | None, attempt: str) -> Snapshot | None:
        for round_ in (self._round, self._last_round):
            if round_ is not None and round_.epoch == epoch and attempt.isdecimal():
                return round_.average_of(int(attempt))
        return None

    def hand_in_by(self, deadline: float) -> None:
        """The others are gathering the present epoch already, and hand in at this time."""
        self._told_deadline = deadline

    @property
    def remaining_seconds(self) -> float:
        """Until this peer hands in for the present epoch."""
        gathering = self._daemon.gatherer.of(self._daemon.replica.epoch)
        deadline = gathering.deadline if gathering else time.monotonic() + self._plan_seconds
        return max(0.0, deadline - time.monotonic())

    @property
    def _plan_seconds(self) -> float:
        return self._daemon.council.plan.deadline_milliseconds / 1000

    @property
    def _quota(self) -> int:
        """This peer's, in samples an epoch."""
        return next(m.quota for m in self._daemon.council.plan.step if m.peer == self._daemon.me)

    async def run_one(self) -> None:
        """From the begin of an epoch to its commit, or to where this peer is out of step. Raises `Stopped`."""
        daemon = self._daemon
        epoch = daemon.replica.epoch
        daemon.own.state, daemon.own.epoch = "training", epoch
        daemon.council.begin(epoch, daemon.ballot, daemon.replica.absent)
        gathering = daemon.gatherer.of(epoch)
        if gathering is None:
            await daemon.gatherer.break_off()
            await daemon.ensure_worker()
            await daemon.replica.show_to(daemon.worker)
            await self._evaluate_if_due()
            seconds = self._plan_seconds
            if self._told_deadline is not None:
                self._last_commit = time.monotonic()  # what came before was not this epoch's
                seconds = min(seconds, max(0.0, self._told_deadline - self._last_commit))
                self._told_deadline = None
            gathering = daemon.gatherer.begin(epoch, self._quota, seconds)
        is_committed = False
        try:
            is_committed = await self._run_round(gathering)
        finally:
            daemon.sponsor.settle(merged=False)  # nothing, if the epoch was committed
            if not is_committed and gathering.task.done():
                daemon.owed.take()  # the others may have it: at most once, rather than twice
            if not is_committed or not gathering.task.done():
                await daemon.gatherer.break_off()
            self._last_round, self._round = self._round, None

    async def _run_round(self, gathering: Gathering) -> bool:
        """Whether the epoch was committed here."""
        epoch = gathering.epoch
        daemon = self._daemon
        while True:
            round_ = self._round = self._new_round(gathering)
            running = asyncio.create_task(round_.run())
            try:
                daemon.status.activity("gathering", f"its quota: {daemon.council.reason}")
                await self._wait(gathering.task, running)
                if gathering.task.done():
                    self._hand_in(round_, gathering.task.result())
                    await self._gather_ahead(epoch + 1, gathering.task.result())
                await self._wait(running)
                outcome = running.result()
            finally:
                if not running.done():
                    running.cancel()
                    await asyncio.wait((running,))
            match outcome:
                case Agreed():
                    await self._apply(round_, outcome, gathering)
                    return True
                case OutOfStep(reason, others_are_ahead):
                    daemon.listener(events.Notice(f"epoch {epoch} could not be ended here: {reason}"))
                    if others_are_ahead:
                        daemon.membership.set_aside()
                    return False
                case OtherPlan():
                    if not await daemon.membership.take_plan_of(outcome.peer, outcome.term):
                        return False

    async def _gather_ahead(self, epoch: Epoch, handed_in: Harvest) -> None:
        """Begin the next epoch's samples behind the average of what was handed in, where the run allows it."""
        daemon = self._daemon
        last = daemon.signed.manifest.training.stop_at_epoch
        if epoch < self._overlaps_from or daemon.gatherer.of(epoch) is not None or (last and epoch >= last):
            return
        await self._evaluate_if_due()
        await daemon.ensure_worker()
        if handed_in.sums is not None:  # first, so that no sample is worked with weights that are one step old
            await daemon.replica.show_ahead_to(daemon.worker, handed_in.sums, handed_in.samples, epoch - 1)
        longer = self._phase.to_work_longer(epoch, self._quota / daemon.worker.throughput)
        more = round(longer * daemon.worker.throughput)
        daemon.gatherer.begin(epoch, self._quota + more, self._plan_seconds + longer)

    async def _wait(self, *tasks: asyncio.Task[Any]) -> None:
        """Until one of `tasks` is done. Raises `Stopped`."""
        stop = asyncio.create_task(self._daemon.stopping())
        try:
            await asyncio.wait((*tasks, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
        if self._daemon.is_stopping:
            raise Stopped

    def _new_round(self, gathering: Gathering) -> Round:
        daemon, epoch = self._daemon, gathering.epoch
        plan = daemon.council.plan
        manifest, replica = daemon.signed.manifest, daemon.replica
        group = plan.group_of(daemon.me)
        assert group is not None
        members = [m.peer for m in group.members]
        machine = RoundMachine(
            run=daemon.config.run,
            epoch=epoch,
            me=daemon.me,
            members=members,
            absent=[peer for peer in members if peer in replica.absent],
            term=plan.term,
            plan_digest=plan.digest,
            lineage=replica.lineage,
            started=self._next_start(),
            grace_seconds=manifest.averaging.grace_seconds,
            averaging_seconds=AVERAGING_SECONDS + 8 * replica.num_parameters / SLOWEST_RATE,
            pace_seconds=plan.pace_milliseconds / 1000,
            gathering_deadline=gathering.deadline,
        )
        return Round(
            machine,
            epoch=epoch,
            lineage=replica.lineage,
            node=daemon.node,
            allreduce=self._allreduce,
            catchup=daemon.catchup,
            shares={m.peer: m.share for m in group.members},
            compression=plan.compression,
            residual=self._residual,
            grace_seconds=manifest.averaging.grace_seconds,
            pace_seconds=plan.pace_milliseconds / 1000,
        )

    def _next_start(self) -> int:
        """Unix milliseconds, later than all before, so that others tell a round begun anew from its former self."""
        self._started = max(self._started + 1, int(time.time() * 1000))
        return self._started

    def _hand_in(self, round_: Round, gathered: Harvest) -> None:
        sponsor, epoch = self._daemon.sponsor, round_.epoch
        sponsor.settle(merged=False)  # if there was a round of this epoch before, nothing has come of it
        samples, sums = sponsor.hand_in(epoch, *self._daemon.owed.plus(gathered.samples, gathered.sums, epoch))
        round_.sums = sums if sums is not None else np.zeros_like(self._daemon.replica.weights)
        self._daemon.status.activity("averaging", "its samples are gathered; it waits for the others and averages")
        self._ready_at = time.monotonic()
        round_.feed(messages.GatheringFinished(samples))

    async def _apply(self, round_: Round, agreed: Agreed, gathering: Gathering) -> None:
        daemon = self._daemon
        replica, commit = daemon.replica, agreed.commit
        if (others_ready_at := round_.machine.others_ready_at) is not None:
            self._phase.ended(commit.epoch, others_ready_at - self._ready_at)
        if agreed.report is not None:
            self._residual = agreed.report.residual
        step = await replica.apply(commit)
        daemon.in_background(replica.show_to(daemon.worker))
        if not step.applied:
            daemon.listener(events.Notice(f"the gradient of epoch {commit.epoch} was not finite; no peer applied it"))
        samples = {peer: count for peer, count in commit.members if count}
        guests = daemon.sponsor.settle(merged=daemon.me in samples)
        if guests:
            samples[daemon.me] -= sum(guests.values())
            for guest, count in guests.items():  # who may have come into step meanwhile
                samples[guest] = samples.get(guest, 0) + count
        harvest = gathering.task.result() if gathering.task.done() else Harvest()
        counted = dict(commit.members)
        if daemon.me in counted:
            daemon.owed.take()
        else:
            daemon.owed.add(harvest.samples, harvest.sums, commit.epoch)
        daemon.own.total_samples += samples.get(daemon.me, 0)
        group = daemon.council.plan.group_of(daemon.me)
        assert group is not None
        for member in group.members:  # those that the commit went on without
            if member.peer not in counted:
                replica.absent.setdefault(member.peer, commit.epoch)
        self.bytes_sent += round_.bytes_sent
        self.bytes_received += round_.bytes_received
        heldout = daemon.roster.heldout
        now = time.monotonic()
        self.last_event = events.EpochCommitted(
            epoch=replica.epoch,
            samples=samples,
            seconds=now - self._last_commit,
            gather_seconds=(gathering.ended or now) - gathering.began,
            wait_seconds=gathering.idle_before,
            transfer_seconds=round_.transfer_seconds,
            stale_samples=harvest.stale,
            guests=guests,
            training_bits_per_byte=harvest.loss_sum / harvest.samples / math.log(2) if harvest.samples else None,
            heldout_bits_per_byte=heldout[1] if heldout else None,
            heldout_epoch=heldout[0] if heldout else None,
            learning_rate=step.learning_rate,
            attempt=commit.attempt,
            reason=agreed.reason,
            bytes_sent=round_.bytes_sent,
            bytes_received=round_.bytes_received,
            overruns=harvest.overruns,
        )
        self._last_commit = now
        daemon.listener(self.last_event)
        daemon.keeper.record(self.last_event)
        await self.after_commit()

    async def after_commit(self) -> None:
        """What follows every step of the replica, made in a round or fetched."""
        daemon = self._daemon
        epoch = daemon.replica.epoch
        daemon.own.epoch, daemon.own.throughput = epoch, daemon.throughput()
        daemon.catchup.release_copy()
        daemon.sponsor.forget_strangers()
        if daemon.council.take_effect(epoch):
            daemon.membership.begin_plan()
        await daemon.standing.changed()
        if epoch % daemon.signed.manifest.training.checkpoint_every_epochs == 0:
            daemon.in_background(daemon.keeper.save_checkpoint(daemon.council.plan.term))

    async def _evaluate_if_due(self) -> None:
        """One member measures the held-out loss for all, as often as it costs little, and always at the end."""
        daemon = self._daemon
        if evaluator(daemon.council.plan) == daemon.me and self._cadence.is_due(time.monotonic()):
            await self.evaluate()

    async def evaluate(self) -> None:
        daemon = self._daemon
        began = time.monotonic()
        try:
            bits = await daemon.worker.evaluate()
        except PeerError:
            return  # the worker has died; gathering will tell
        self._cadence.finished(began, time.monotonic())
        daemon.own.heldout_epoch, daemon.own.heldout_microbits = daemon.replica.epoch, round(bits * 1e6)
        daemon.listener(events.Evaluated(daemon.replica.epoch, bits))

    def story(self) -> list[str]:
        """What happened in the present round, or the last one."""
        round_ = self._round or self._last_round
        return [text for _, text in round_.machine.story()] if round_ else []
