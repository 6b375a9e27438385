"""The real model on the real text: sums of gradients, and the held-out loss."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.convergence.setting import starts
from peer.training.arena import Arena
from peer.training.data import open_corpus
from peer.training.device import Device
from peer.training.microbatch import Replica
from peer.training.presets import PRESETS, num_parameters
from protocol.manifest import Manifest
from protocol.units import PeerId

Vector = npt.NDArray[np.float32]
EVALUATION_MICROBATCH = 32
SLOT = 0


class Gradients:
    """What a worker process does, for any weights."""

    def __init__(self, manifest: Manifest) -> None:
        torch.set_num_threads(1)
        self._manifest = manifest
        self._corpus = open_corpus(manifest, None, Path(tempfile.gettempdir()))
        self._arena = Arena.create(num_parameters(PRESETS[manifest.model.preset]), ahead=False)
        self._replica = Replica(manifest, self._arena, Device("cpu"))

    def sums(self, weights: Vector, peer: PeerId, epoch: int, indices: range) -> Vector:
        """The sum of the gradients of a peer's samples, at these weights."""
        if not indices:
            return np.zeros_like(weights)
        self._load(weights)
        tokens = self._corpus.samples(starts(self._manifest, self._corpus.population, peer, epoch, indices))
        self._replica.work(tokens)
        self._replica.add_to_slot(None, SLOT)
        sums: Vector = self._arena.slots[SLOT].copy()
        return sums

    def heldout(self, weights: Vector) -> float:
        """Bits per byte."""
        self._load(weights)
        return self._replica.mean_loss(self._corpus.evaluation(), EVALUATION_MICROBATCH) / math.log(2)

    def _load(self, weights: Vector) -> None:
        self._arena.weights[:] = weights
        self._replica.load_weights()
