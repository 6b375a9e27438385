"""Small manifests and texts that the tests of training share, and real workers with what they should compute."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pytest
import torch

from peer.training.arena import Arena
from peer.training.data import describe_files, open_corpus
from peer.training.model import build, flat_parameters, load_flat
from peer.training.worker_process import Gathered, Worker
from protocol.manifest import Manifest, parse_manifest
from protocol.order import sample_start
from protocol.signing import SigningKey

PEER = SigningKey(bytes(32)).peer_id
UNUSED = Path("/nonexistent/cache")  # the standard library needs no cache

torch.set_num_threads(1)  # tests share the processor; more threads would wait for each other

MakeManifest = Callable[..., Manifest]
Vector = npt.NDArray[np.float32]


def nano_manifest(**sections: dict[str, Any]) -> Manifest:
    value: dict[str, Any] = {"run": {"name": "test"}, "host": PEER}
    value["model"] = {"preset": "nano"}
    value["training"] = {"sequence_length": 32, "target_batch_size": 64, "seed": 5, "evaluation_samples": 8}
    for name, section in sections.items():
        value[name] = {**value.get(name, {}), **section}
    return parse_manifest(value)


@pytest.fixture
def make_manifest() -> MakeManifest:
    """A nano run on 32-byte samples; keyword arguments replace or extend its sections."""

    return nano_manifest


@pytest.fixture
def files_section() -> Callable[..., dict[str, Any]]:
    """The data section of a manifest for files on disk, by their full paths."""

    def make(*paths: Path) -> dict[str, Any]:
        entries = [entry.model_dump() for entry in describe_files(paths)]
        return {
            "kind": "files",
            "files": [{**entry, "path": str(path)} for entry, path in zip(entries, paths, strict=True)],
        }

    return make


class RealWorkers:
    """Starts worker processes; compares what they hand in with the same computation in this process."""

    peer = PEER

    @staticmethod
    def new_weights(manifest: Manifest, seed: int) -> Vector:
        """Weights with which all gradients differ from zero."""
        size = flat_parameters(build(manifest)).size
        return (np.random.default_rng(seed).standard_normal(size) / 16).astype(np.float32)

    @classmethod
    def new_arena(cls, manifest: Manifest) -> Arena:
        weights = cls.new_weights(manifest, 0)
        arena = Arena.create(weights.size, ahead=bool(manifest.averaging.overlap))
        arena.weights[:] = weights
        return arena

    @staticmethod
    async def start(manifest: Manifest, arena: Arena, **options: Any) -> Worker:
        defaults: dict[str, Any] = {"device": "cpu", "data_dir": None, "cache_dir": UNUSED}
        defaults |= {"emulate_throughput": None, "threads": 1}
        return await Worker.start(manifest, arena, peer=PEER, **{**defaults, **options})

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, manifest: Manifest, arena: Arena, **options: Any) -> AsyncIterator[Worker]:
        worker = await cls.start(manifest, arena, **options)
        try:
            yield worker
        finally:
            await worker.close()
            assert not psutil.pid_exists(worker.pid)

    @staticmethod
    async def show(worker: Worker, arena: Arena, epoch: int, weights: Vector) -> None:
        """Have the worker take weights, in the way that a daemon does."""
        arena.weights[:] = weights
        worker.refresh(epoch)
        await worker.refreshed()

    @staticmethod
    def expected_sum(manifest: Manifest, weights: Vector, epoch: int, indices: range) -> tuple[Vector, float]:
        """Sum of gradients and losses of exactly these samples, by way of plain autograd."""
        model, corpus = build(manifest), open_corpus(manifest, None, UNUSED)
        load_flat(model, weights)
        total, loss = np.zeros_like(weights), 0.0
        for first in range(0, len(indices), 16):
            part = indices[first : first + 16]
            starts = [sample_start(manifest.training.seed, epoch, PEER, i, corpus.population) for i in part]
            losses = model.loss(torch.from_numpy(corpus.samples(starts)))
            gradients = torch.autograd.grad(losses.sum(), list(model.parameters()))
            total += np.concatenate([gradient.numpy().ravel() for gradient in gradients])
            loss += losses.sum().item()
        return total, loss

    @classmethod
    def assert_is_exactly(
        cls, arena: Arena, gathered: Gathered, manifest: Manifest, weights: Vector, first_index: int, newer: Any = None
    ) -> None:
        """The sum is that of the samples from `first_index` on, of which `stale` were worked with `weights` and the
        others with `newer`, if that is given.
        """
        change = first_index + (gathered.samples if newer is None else gathered.stale)
        gradient, loss = cls.expected_sum(manifest, weights, gathered.epoch, range(first_index, change))
        if newer is not None:
            rest = range(change, first_index + gathered.samples)
            newer_gradient, newer_loss = cls.expected_sum(manifest, newer, gathered.epoch, rest)
            gradient, loss = gradient + newer_gradient, loss + newer_loss
        error = np.linalg.norm(arena.slots[gathered.slot] - gradient)
        assert error < 1e-5 * np.linalg.norm(gradient)
        assert gathered.loss_sum == pytest.approx(loss, rel=1e-5)

    @staticmethod
    async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            await asyncio.sleep(0.002)


@pytest.fixture
def workers() -> type[RealWorkers]:
    return RealWorkers


class SharedWorker:
    """A measured worker for all tests of a module, because to start one takes seconds."""

    def __init__(self) -> None:
        self.manifest = nano_manifest()
        self.arena = RealWorkers.new_arena(self.manifest)
        self.weights = self.arena.weights.copy()
        self._runner = asyncio.Runner()
        self.worker = self.run(self._start())

    async def _start(self) -> Worker:
        worker = await RealWorkers.start(self.manifest, self.arena)
        measured = await worker.measure()
        assert measured.microbatch == worker.microbatch >= 1
        assert measured.throughput == worker.throughput > 0
        return worker

    def run(self, scenario: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(scenario)

    def revive(self) -> None:
        if self.worker.died.done():
            self.worker = self.run(self._start())

    def close(self) -> None:
        with self._runner:
            self.run(self.worker.close())
        assert not psutil.pid_exists(self.worker.pid)


@pytest.fixture(scope="module")
def shared_worker() -> Iterator[SharedWorker]:
    shared = SharedWorker()
    yield shared
    shared.close()


@pytest.fixture
def shared(shared_worker: SharedWorker) -> SharedWorker:
    shared_worker.revive()
    return shared_worker
