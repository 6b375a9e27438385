"""An epoch's work on one device: whole microbatches, up to a quota or a deadline.

Rules of this file:

* A microbatch either counts, whole, or it does not. It is added out of place to a slot that is not committed, and
  `commit` makes that slot the one that counts (`arena.py`). The held slot stays as it is.
* Weights may change between microbatches, never within one.
* Samples count in order: after n samples, they are those of the indices `first_index` up to `first_index` + n.
* The last microbatch shrinks: to the quota exactly, and to what still fits before the deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from peer.training.arena import free_slot
from peer.training.device import is_out_of_memory
from peer.training.measuring import Cost, out_of_memory
from protocol.units import Epoch

LATE_PART = 0.05  # of a microbatch, which the last one may end after the deadline


@dataclass(frozen=True)
class Work:
    number: int
    """counts the daemon's requests"""
    epoch: int
    quota: int
    first_index: int
    deadline: float | None
    """of `time.monotonic`, which all processes of a machine share"""
    held: int
    """the slot that is not to be written to"""


@dataclass(frozen=True)
class Commit:
    """What has been gathered so far, after a microbatch. Its sum of gradients is in `slot`."""

    samples: int
    loss_sum: float
    seconds: float
    """spent in microbatches"""
    slot: int
    overruns: int
    microbatch: int
    stale: int
    """samples worked before the weights of the work's epoch were there"""


class Computes(Protocol):
    """What `Replica` does."""

    def work(self, tokens_BT1: npt.NDArray[np.int64]) -> float: ...
    def has_finite_gradient(self) -> bool: ...
    def add_to_slot(self, source: int | None, target: int) -> None: ...


class Paces(Protocol):
    """What `Pace` does."""

    overruns: int

    def begin(self, samples: int) -> None: ...
    def finish(self) -> None: ...


class Gathering:
    def __init__(
        self,
        replica: Computes,
        tokens: Callable[[int, int, int], npt.NDArray[np.int64]],
        pace: Paces | None,
        release_memory: Callable[[], None],
        refresh: Callable[[], Epoch],
    ) -> None:
        """`tokens(epoch, first_index, count)` reads samples, as tokens (B, T + 1).

        `refresh` loads newer weights if there are any and returns the epoch that the loaded ones belong to.
        """
        self._replica, self._tokens, self._pace = replica, tokens, pace
        self._release_memory, self._refresh = release_memory, refresh
        self.microbatch = 1
        self.cost = Cost(0.0, 1.0)

    def gather(self, work: Work, is_stopped: Callable[[], bool], commit: Callable[[Commit], None]) -> str:
        """Do the work, calling `commit` after each microbatch. Returns a remark for the user, or "".

        Raises `WorkerFailed` when memory does not suffice for one sample, `DataUnavailable` when text has gone.
        """
        slot = work.held  # until there is something to count
        samples = stale = 0
        overruns = self._pace.overruns if self._pace else 0
        loss_sum = seconds = 0.0
        remark = ""
        while not is_stopped():
            size = self._next_size(work, samples)
            if size < 1:
                break
            began = time.monotonic()
            is_stale = self._refresh() < work.epoch
            source, target = (slot if samples else None), free_slot(work.held, slot)
            loss = self._try(work.epoch, work.first_index + samples, size, source, target)
            if loss is None:
                remark = self._shrink(size)
                continue
            if self._pace:
                self._pace.finish()
            if not self._replica.has_finite_gradient():
                return (
                    f"a gradient was not finite in epoch {work.epoch}, so only what came before it was handed in; "
                    "the run diverges, or this device computes wrongly"
                )
            taken = time.monotonic() - began
            self.cost.observe(size, taken)
            samples, loss_sum, seconds = samples + size, loss_sum + loss, seconds + taken
            slot = target
            stale += size if is_stale else 0
            late = self._pace.overruns - overruns if self._pace else 0
            commit(Commit(samples, loss_sum, seconds, slot, late, self.microbatch, stale))
        return remark

    def try_once(self, size: int, slot: int) -> bool:
        """One microbatch that does not count, at full speed, into `slot`; False if there was no memory for it."""
        try:
            self._replica.work(self._tokens(0, 0, size))
            self._replica.add_to_slot(None, slot)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        else:
            return True
        self._release_memory()  # outside, where the exception no longer holds the frames that hold the tensors
        return False

    def _next_size(self, work: Work, samples: int) -> int:
        size = min(self.microbatch, work.quota - samples)
        if work.deadline is not None:
            late = LATE_PART * self.cost.seconds(self.microbatch)
            size = min(size, self.cost.fitting(work.deadline + late - time.monotonic()))
        return size

    def _try(self, epoch: int, first_index: int, size: int, source: int | None, target: int) -> float | None:
        """Work a microbatch into slot `target`; None if memory ran out. Returns the sum of losses, in nats."""
        if self._pace:
            self._pace.begin(size)
        try:
            loss = self._replica.work(self._tokens(epoch, first_index, size))
            self._replica.add_to_slot(source, target)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        else:
            return loss
        return None

    def _shrink(self, size: int) -> str:
        """After memory ran out: go on with half the size."""
        self._release_memory()
        if size == 1:
            raise out_of_memory()
        self.microbatch = size // 2
        return f"memory ran out; microbatches now have {self.microbatch} samples instead of {size}"
