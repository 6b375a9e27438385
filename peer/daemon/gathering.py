"""Gathers one epoch's samples after the other on this peer's worker, at most one epoch ahead of the last commit."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from peer import events
from peer.daemon.replica import Vector
from peer.errors import PeerError
from peer.policy.staleness import weight_of_age
from peer.training.arena import Arena
from peer.training.worker_process import Gathered
from protocol.units import Epoch

if TYPE_CHECKING:
    from peer.daemon.lifecycle import Daemon

TICK_SECONDS = 0.5


@dataclass
class Harvest:
    """What this peer's workers have gathered for one epoch."""

    samples: int = 0
    loss_sum: float = 0.0
    """nats per byte, summed over the samples"""
    overruns: int = 0
    stale: int = 0
    """samples worked before the epoch's weights were there: with predicted ones, or those of the epoch before"""
    sums: Vector | None = None
    """of the samples' gradients; a worker's own memory while there was only one worker"""

    def add(self, gathered: Gathered, arena: Arena) -> None:
        if not gathered.samples:
            return
        slot = arena.slots[gathered.slot]
        self.sums = slot if self.sums is None else self.sums + slot
        self.samples += gathered.samples
        self.loss_sum += gathered.loss_sum
        self.overruns += gathered.overruns
        self.stale += gathered.stale

    def set_apart(self) -> None:
        """Move the sum out of the memory in which a following worker begins its own."""
        if self.sums is not None:
            self.sums = self.sums.copy()


class Owed:
    """What this peer has gathered that entered no update yet, whatever lane it is in, and what encoding kept back.

    It is handed in with the samples that follow: its gradients are of older weights, but no work is lost.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.epoch: Epoch = 0
        """of the weights that it was worked with, the oldest if several"""
        self._sums: Vector | None = None

    def add(self, samples: int, sums: Vector | None, epoch: Epoch) -> None:
        """Worked with the weights of `epoch`. `sums` may change afterwards."""
        self.epoch = epoch if self._sums is None else min(self.epoch, epoch)
        self.samples, self._sums = self.samples + samples, _plus(sums, self._sums, copy=True)

    def plus(self, samples: int, sums: Vector | None, epoch: Epoch) -> tuple[int, Vector | None]:
        """These samples and sums of `epoch` with what is owed, by its age. Nothing is written to."""
        owed = None if self._sums is None else self._sums * np.float32(weight_of_age(epoch - self.epoch))
        return self.samples + samples, _plus(sums, owed)

    def take(self) -> tuple[int, Vector | None]:
        """All of it; nothing is owed then."""
        samples, sums = self.samples, self._sums
        self.samples, self._sums = 0, None
        return samples, sums


def _plus(one: Vector | None, other: Vector | None, *, copy: bool = False) -> Vector | None:
    if one is None:
        return other
    if other is None:
        return one.copy() if copy else one
    return one + other


@dataclass
class Gathering:
    """One epoch being gathered, or gathered. Times are of the monotonic clock."""

    epoch: Epoch
    began: float
    deadline: float
    idle_before: float
    """seconds in which the worker had nothing to do before it"""
    ended: float = 0.0
    task: asyncio.Task[Harvest] = field(init=False)


class Gatherer:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._current: Gathering | None = None
        self._idle_since = time.monotonic()

    def begin(self, epoch: Epoch, quota: int, seconds: float) -> Gathering:
        """Start to gather `quota` samples of `epoch`; what there is after `seconds` will do. One at a time."""
        assert self._current is None or self._current.task.done()
        now = time.monotonic()
        gathering = self._current = Gathering(epoch, now, now + seconds, now - self._idle_since)
        gathering.task = asyncio.create_task(self._gather(gathering, quota))
        return gathering

    def of(self, epoch: Epoch) -> Gathering | None:
        """What is, or was last, being gathered, if it is for `epoch`."""
        current = self._current
        return current if current is not None and current.epoch == epoch else None

    async def break_off(self) -> Harvest:
        """Stop what is being gathered, within a microbatch; what there was of the last epoch that was begun."""
        current, self._current = self._current, None
        if current is not None:
            if not current.task.done():
                self._daemon.worker.stop()
            with contextlib.suppress(PeerError):
                return await current.task
        return Harvest()

    async def owe_ahead(self) -> None:
        """This peer steps with the others no more: what it has gathered for the epoch that follows is owed."""
        ahead = self.of(self._daemon.replica.epoch)
        harvest = await self.break_off()
        if ahead is not None:
            self._daemon.owed.add(harvest.samples, harvest.sums, ahead.epoch)

    async def _gather(self, gathering: Gathering, quota: int) -> Harvest:
        """A worker that dies on the way is replaced; what it had committed counts."""
        daemon, epoch = self._daemon, gathering.epoch
        harvest = Harvest()
        try:
            while True:
                daemon.worker.begin(epoch, quota - harvest.samples, harvest.samples, gathering.deadline)
                finishing = asyncio.create_task(daemon.worker.finish())
                while not finishing.done():
                    await asyncio.wait((finishing,), timeout=TICK_SECONDS)
                    daemon.own.samples = harvest.samples + daemon.worker.samples_so_far
                    daemon.listener(events.Gathering(epoch, daemon.own.samples, quota, daemon.worker.throughput))
                gathered = finishing.result()
                has_died = daemon.worker.died.done()
                if gathered.remark and not has_died:  # of a death we tell when we replace the worker
                    daemon.listener(events.Notice(gathered.remark))
                harvest.add(gathered, daemon.replica.arena)
                if not has_died or harvest.samples >= quota or daemon.is_stopping:
                    return harvest
                harvest.set_apart()
                await daemon.ensure_worker()
                if time.monotonic() >= gathering.deadline and harvest.samples:
                    return harvest
        finally:
            gathering.ended = self._idle_since = time.monotonic()
