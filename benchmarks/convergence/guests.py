"""The peer in the slow lane: what it hands in, and with which weights it works.

As in `peer/daemon/slow_lane.py` and `peer/daemon/sponsor.py`: it gathers all the time; at the end of each cycle of
some epochs it hands in what it owes, with error feedback, and fetches newer weights as the difference to those that
it has. Both are under way for all of the following cycle.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from benchmarks.convergence.variants import Variant
from peer.daemon.sponsor import Deposit
from peer.swarm.codec import Compression
from peer.swarm.vectors import decode_vector, encode_vector
from peer.training.optimizer import AdamW, Vector
from peer.training.presets import PRESETS, layout_of
from protocol.manifest import Manifest
from protocol.units import Epoch, PeerId

FIRST_COPY: Compression = "float16"


class Works(Protocol):
    """What `Gradients` does."""

    def sums(self, weights: Vector, peer: PeerId, epoch: Epoch, indices: range) -> Vector: ...


class Guest:
    """Hands in sums of gradients."""

    def __init__(self, peer: PeerId, quota: int, variant: Variant, weights: Vector) -> None:
        self._peer, self._quota, self._codec = peer, quota, variant.slow_codec
        self.weights = through(weights, FIRST_COPY)
        """The guest's, and what its sponsor knows that it has."""
        self._owed: Vector = np.zeros_like(weights)
        self._samples = 0
        self._epoch: Epoch = 0
        """of the weights"""
        self._under_way: tuple[Deposit, Vector, Epoch] | None = None
        """what is handed in, and the difference to newer weights, with their epoch"""

    def gather(self, gradients: Works, epoch: Epoch) -> None:
        """Work an epoch's quota."""
        self._owed += gradients.sums(self.weights, self._peer, epoch, range(self._quota))
        self._samples += self._quota

    def end_cycle(self, weights: Vector, epoch: Epoch) -> Deposit | None:
        """What was under way arrives: the deposit that is returned, and weights. The next goes off: `weights` too,

        those of `epoch`, since the update that ends it is still under way.
        """
        deposit = Deposit(self._samples, through(self._owed, self._codec), self._epoch)
        self._owed -= deposit.sums
        self._samples = 0
        arrived, self._under_way = self._under_way, None
        if arrived is not None:
            self.weights += arrived[1]
            self._epoch = arrived[2]
        self._under_way = deposit, through(weights - self.weights, self._codec), epoch
        return arrived[0] if arrived else None


class Stepper(Guest):
    """Makes a local optimizer step an epoch and hands in how far it came: a pseudo-gradient."""

    def __init__(self, peer: PeerId, quota: int, variant: Variant, weights: Vector, manifest: Manifest) -> None:
        super().__init__(peer, quota, variant, weights)
        self._local = self.weights.copy()
        moments = np.zeros_like(weights), np.zeros_like(weights)
        self._optimizer = AdamW(manifest, layout_of(PRESETS[manifest.model.preset]), self._local, *moments)

    def gather(self, gradients: Works, epoch: Epoch) -> None:
        sums = gradients.sums(self._local, self._peer, epoch, range(self._quota))
        self._optimizer.step(sums / np.float32(self._quota), epoch)
        self._samples += self._quota

    def end_cycle(self, weights: Vector, epoch: Epoch) -> Deposit | None:
        self._owed += self.weights - self._local
        arrived = super().end_cycle(weights, epoch)
        self._local[:] = self.weights
        return arrived


class Outer:
    """How the step lane takes in a pseudo-gradient: with the guest's share of the samples, and momentum or none.

    DiLoCo (arXiv 2311.08105) uses Nesterov's momentum 0.9 and a rate of 0.7, between hundreds of local steps. With
    one guest, the delayed Nesterov step of Asynchronous Local-SGD (arXiv 2401.09135) is the usual one, made late.
    """

    RATE, MOMENTUM = 0.7, 0.9

    def __init__(self, *, nesterov: bool) -> None:
        self._rate, self._momentum = (self.RATE, self.MOMENTUM) if nesterov else (1.0, 0.0)
        self._velocity: Vector | None = None

    def step(self, weights: Vector, pseudo_gradient: Vector, share: float) -> None:
        """Change `weights` in place."""
        own = pseudo_gradient * np.float32(share)
        kept = own if self._velocity is None else self._velocity * np.float32(self._momentum) + own
        self._velocity = kept
        weights -= np.float32(self._rate) * (own + np.float32(self._momentum) * kept)


def through(vector: Vector, codec: Compression) -> Vector:
    """A vector as it comes out of the network."""
    return decode_vector(memoryview(encode_vector(vector, codec)), vector.size, codec)
