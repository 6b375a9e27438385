"""This peer's replica of the run: weights, optimizer moments, and the history that led to them.

Host memory, in bytes per parameter: weights 4, moments 8, three gradient-sum slots 12 and, where the run overlaps,
predicted weights 4 (weights, slots and prediction in the arena, shared with the worker), the last averaged gradient 4,
the gradients of earlier commits 12 at most (`peer/daemon/history.py`), what encoding has kept back 4: 48 in all; while
a newcomer is being served, 12 more for the copy it reads, and 4 for each slow peer that this one sponsors.
Replicas that have committed the same history are equal bit for bit (`peer/training/optimizer.py`).
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import numpy.typing as npt

from peer.daemon.history import Committed, History
from peer.training.arena import Arena
from peer.training.checkpoint import SavedState
from peer.training.initial import initial_weights
from peer.training.optimizer import AdamW, StepReport
from peer.training.presets import PRESETS, layout_of
from peer.training.worker_process import Worker
from protocol.errors import RemoteProtocolError
from protocol.lineage import Lineage
from protocol.manifest import Manifest
from protocol.units import Epoch, PeerId, RunId

Vector = npt.NDArray[np.float32]


class Replica:
    def __init__(self, run: RunId, manifest: Manifest) -> None:
        layout = layout_of(PRESETS[manifest.model.preset])
        initial = initial_weights(layout, manifest.training.seed)
        self.run, self.manifest = run, manifest
        self.num_parameters = initial.size
        self.arena = Arena.create(self.num_parameters, ahead=bool(manifest.averaging.overlap))
        self.weights: Vector = self.arena.weights
        self.weights[:] = initial
        self.m: Vector = np.zeros_like(initial)
        self.v: Vector = np.zeros_like(initial)
        self.optimizer = AdamW(manifest, layout, self.weights, self.m, self.v)
        self.epoch: Epoch = 0
        self.lineage = Lineage.genesis(run)
        self.is_exact = True
        """whether it is that of `lineage`, bit for bit; a slow peer's weights are close, without moments"""
        self.has_weights = False
        """whether it may train with them: the founder may at once, others when they have got them from somebody"""
        self.absent: dict[PeerId, Epoch] = {}
        """peers of the plan that a commit went on without, and the epoch in which that happened"""
        self.history = History(self.num_parameters)
        self._lock, self._ahead_lock = asyncio.Lock(), asyncio.Lock()

    @property
    def state_bytes(self) -> int:
        return 3 * 4 * self.num_parameters

    async def apply(self, commit: Committed) -> StepReport:
        """One optimizer step by the averaged gradient; the replica is then at `commit.epoch + 1`."""
        assert (commit.epoch, commit.before) == (self.epoch, self.lineage)
        async with self._lock:
            report = await asyncio.to_thread(self.optimizer.step, commit.mean, self.epoch)
            self.history.add(commit)
            self.lineage = commit.lineage
            self.epoch += 1
        return report

    async def copy_weights(self) -> tuple[Epoch, Vector]:
        """The weights as they are now, and their epoch."""
        async with self._lock:
            return self.epoch, await asyncio.to_thread(self.weights.copy)

    async def take_weights(self, vector: Vector, epoch: Epoch, *, is_difference: bool) -> None:
        """Go on with a sponsor's weights, or by the difference to them: close to the swarm's, not equal."""
        async with self._lock:
            if is_difference:
                self.weights += vector
            else:
                self.weights[:] = vector
            self.epoch, self.is_exact, self.has_weights = epoch, False, True
            self.lineage = Lineage("0" * 64, 0)
            self.history.clear()

    async def show_to(self, worker: Worker) -> None:
        """Have the worker take the weights, before its next microbatch; they do not change meanwhile."""
        async with self._lock:
            worker.refresh(self.epoch)
            await worker.refreshed()

    async def show_ahead_to(self, worker: Worker, sums: Vector, samples: int, epoch: Epoch) -> bool:
        """Predict the weights that follow those of `epoch`, and have the worker take them until they are there.

        `sums` are this peer's own of that epoch: their mean is, but for noise, the average that is under way, and they
        stay as they are until it is applied. (Weights were first predicted for pipelines: SpecTrain, arXiv:1809.02839.)
        False if the replica has moved on or the mean is not finite: nothing is shown then.
        The prediction does not change until the worker has taken it. A commit does not wait for that.
        """
        ahead = self.arena.ahead
        assert ahead is not None, "this run predicts no weights"

        def predict() -> bool:
            np.divide(sums, np.float32(samples), out=ahead)
            return self.optimizer.predict(ahead, epoch, out=ahead)

        async with self._ahead_lock:
            async with self._lock:
                if epoch != self.epoch or not await asyncio.to_thread(predict):
                    return False
                worker.refresh_ahead(epoch)
            await worker.refreshed()
            return True

    async def copy_state(self) -> tuple[dict[str, Any], npt.NDArray[np.uint8]]:
        """A consistent copy for a newcomer: header and (weights, m, v) as bytes."""
        async with self._lock:
            vectors = await asyncio.to_thread(np.concatenate, (self.weights, self.m, self.v))
            return self._header(), vectors.view(np.uint8)

    async def load_state(self, header: dict[str, Any], payload: npt.NDArray[np.uint8]) -> None:
        """Become the replica that a donor copied. The caller has checked the payload's size and hash.

        Raises `RemoteProtocolError` for a header that is not of a state; nothing is changed then.
        """
        match header:
            case {"epoch": int(epoch), "lineage": str(lineage), "samples": int(samples)} if epoch >= 0:
                pass
            case _:
                raise RemoteProtocolError("the header of a state lacks a field or has one of the wrong type")
        vectors = payload.view(np.float32).reshape(3, self.num_parameters)
        async with self._lock:
            self.weights[:], self.m[:], self.v[:] = vectors
            self.epoch, self.lineage = epoch, Lineage(lineage, samples)
            self.history.clear()
            self.is_exact = self.has_weights = True

    def _header(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "lineage": self.lineage.digest, "samples": self.lineage.samples}

    async def snapshot(self, plan_term: int) -> SavedState:
        """A copy to be written to disk."""
        async with self._lock:
            counters = {"samples": self.lineage.samples, "term": plan_term}
            copies = await asyncio.to_thread(lambda: (self.weights.copy(), self.m.copy(), self.v.copy()))
            return SavedState(self.run, self.epoch, self.lineage.digest, *copies, counters)

    def restore(self, saved: SavedState) -> None:
        self.weights[:], self.m[:], self.v[:] = saved.weights, saved.m, saved.v
        self.epoch = saved.epoch
        self.lineage = Lineage(saved.lineage, saved.counters["samples"])
        self.has_weights = True
