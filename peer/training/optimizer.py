"""AdamW that gives the same bits on every machine.

Peers that apply the same averaged gradient to the same state must stay equal bit for bit, on whatever processor and
version of numpy. So each number is made by separate float32 additions, multiplications, divisions and square roots,
which IEEE 754 rounds correctly everywhere; nothing is fused. Scalars are computed in Python's float64 with the same
four operations (powers by repeated multiplication, not by the system's `pow`) and rounded to float32 once. The one
sum over many numbers, the gradient's norm, is taken in an order that is fixed here rather than by numpy, whose
`sum` adds in an order that depends on the processor's vector width.

A step works through the vectors in chunks, and so does a prediction of what a step would give: either needs a few MiB
besides weights, moments and gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from peer.errors import PeerError
from peer.training.presets import Layout
from protocol.manifest import Manifest
from protocol.schedule import learning_rate
from protocol.units import Epoch

Vector = npt.NDArray[np.float32]

CHUNK = 1 << 18  # numbers
LANES = 1 << 16
"""partial sums of the norm: number i of the vector is added to partial sum i mod LANES"""


@dataclass(frozen=True)
class StepReport:
    learning_rate: float
    gradient_norm: float
    """of the averaged gradient, before clipping"""
    applied: bool
    """False if the gradient holds infinite numbers or NaN: then nothing was changed"""


class AdamW:
    """Holds `weights` and the moments `m` and `v`, all (P,), and changes them in place.

    Decay is decoupled and applies to matrices only. Moments start at zero; the update that ends epoch e is the
    (e + 1)-th, also after a resume. Raises `PeerError` where the processor is set to lose the smallest numbers.
    """

    def __init__(self, manifest: Manifest, layout: Layout, weights: Vector, m: Vector, v: Vector) -> None:
        assert weights.shape == m.shape == v.shape == (layout[-1].stop,)
        _refuse_flushed_subnormals()
        self.manifest, self.layout = manifest, layout
        self.weights, self.m, self.v = weights, m, v

    def step(self, mean_gradient: Vector, epoch: Epoch, chunk: int = CHUNK) -> StepReport:
        """Apply the averaged gradient of `epoch` (0 is the first). `mean_gradient` (P,) is only read."""
        assert mean_gradient.shape == self.weights.shape and mean_gradient.dtype == np.float32
        rate, norm = learning_rate(self.manifest, epoch), gradient_norm(mean_gradient)
        if not math.isfinite(norm):
            return StepReport(rate, norm, applied=False)
        scalars = self._scalars(rate, norm, epoch)
        scratch = np.empty((2, chunk), dtype=np.float32)
        for part, decays in self._parts(chunk):
            state = self.weights[part], self.m[part], self.v[part]
            _step_part(*state, mean_gradient[part], scalars, decays, scratch[:, : part.stop - part.start])
        return StepReport(rate, norm, applied=True)

    def predict(self, mean_gradient: Vector, epoch: Epoch, out: Vector, chunk: int = CHUNK) -> bool:
        """Write to `out` (P,) the weights that `step` would give, and change nothing; `out` may be `mean_gradient`.

        False if `step` would not be applied: then `out` is a copy of the weights.
        """
        assert mean_gradient.shape == out.shape == self.weights.shape and mean_gradient.dtype == np.float32
        rate, norm = learning_rate(self.manifest, epoch), gradient_norm(mean_gradient)
        if not math.isfinite(norm):
            out[:] = self.weights
            return False
        scalars = self._scalars(rate, norm, epoch)
        copies, scratch = np.empty((3, chunk), dtype=np.float32), np.empty((2, chunk), dtype=np.float32)
        for part, decays in self._parts(chunk):
            size = part.stop - part.start
            weights, m, v = copies[:, :size]
            weights[:], m[:], v[:] = self.weights[part], self.m[part], self.v[part]
            _step_part(weights, m, v, mean_gradient[part], scalars, decays, scratch[:, :size])
            out[part] = weights
        return True

    def _scalars(self, rate: float, norm: float, epoch: Epoch) -> _Scalars:
        settings = self.manifest.optimizer
        clip = settings.clip_norm / norm if norm > settings.clip_norm else 1.0
        return _Scalars(
            clip=np.float32(clip),
            keep=np.float32(1.0 - rate * settings.weight_decay),
            beta1=np.float32(settings.beta1),
            rest1=np.float32(1.0 - settings.beta1),
            beta2=np.float32(settings.beta2),
            rest2=np.float32(1.0 - settings.beta2),
            rate=np.float32(rate / (1.0 - _power(settings.beta1, epoch + 1))),
            root2=np.float32(math.sqrt(1.0 - _power(settings.beta2, epoch + 1))),
            epsilon=np.float32(settings.epsilon),
        )

    def _parts(self, chunk: int) -> Iterator[tuple[slice, bool]]:
        """Where each chunk is, and whether it decays."""
        for parameter in self.layout:
            for start in range(parameter.offset, parameter.stop, chunk):
                yield slice(start, min(start + chunk, parameter.stop)), len(parameter.shape) >= 2


@dataclass(frozen=True)
class _Scalars:
    clip: np.float32
    keep: np.float32
    beta1: np.float32
    rest1: np.float32
    beta2: np.float32
    rest2: np.float32
    rate: np.float32
    """learning rate, corrected for the first moment's bias"""
    root2: np.float32
    """square root of the second moment's bias correction"""
    epsilon: np.float32


def _step_part(
    weights: Vector, m: Vector, v: Vector, given: Vector, s: _Scalars, decays: bool, scratch: Vector
) -> None:
    """Step a part of weights and moments in place; `scratch` (2, n) has room for it."""
    gradient, work = scratch
    np.multiply(given, s.clip, out=gradient)
    if decays:
        np.multiply(weights, s.keep, out=weights)
    np.multiply(m, s.beta1, out=m)
    np.multiply(gradient, s.rest1, out=work)
    np.add(m, work, out=m)
    np.multiply(v, s.beta2, out=v)
    np.multiply(gradient, gradient, out=work)
    np.multiply(work, s.rest2, out=work)
    np.add(v, work, out=v)
    np.sqrt(v, out=work)
    np.divide(work, s.root2, out=work)
    np.add(work, s.epsilon, out=work)
    np.divide(m, work, out=work)
    np.multiply(work, s.rate, out=work)
    np.subtract(weights, work, out=weights)


def gradient_norm(gradient: Vector) -> float:
    """Euclidean norm of a vector, the same bits everywhere; infinite or NaN if the vector holds such numbers.

    Squares of float32 numbers are exact in float64. They are added element by element to `LANES` partial sums,
    which are then added in pairs, the first half to the second.
    """
    lanes = np.zeros(LANES, dtype=np.float64)
    squares = np.empty(LANES, dtype=np.float64)
    for start in range(0, gradient.size, LANES):
        part = gradient[start : start + LANES]
        used = squares[: part.size]
        np.multiply(part, part, out=used, dtype=np.float64)
        np.add(lanes[: part.size], used, out=lanes[: part.size])
    while lanes.size > 1:
        lanes = np.add(lanes[: lanes.size // 2], lanes[lanes.size // 2 :])
    return math.sqrt(lanes[0])


def _power(base: float, exponent: int) -> float:
    """base^exponent by repeated squaring."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def _refuse_flushed_subnormals() -> None:
    """Moments of bytes that no longer occur shrink to subnormal numbers; all peers must keep those, or none."""
    smallest = np.full(64, 2.0**-149, dtype=np.float32)
    if not np.multiply(smallest, np.float32(1.0)).all():
        raise PeerError(
            "this process rounds the smallest floating-point numbers to zero, so its model would drift from the "
            "others'; start the peer without the library that set this (one compiled with -ffast-math)"
        )
