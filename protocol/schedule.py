"""The learning rate of an update: linear warm-up, then cosine to a fraction that stays.

Every peer computes it for itself and all must get the same bits. Only +, -, * and / on floats are used, which
IEEE 754 rounds the same everywhere; the cosine of a system's own mathematics library may differ in its last
bit.
"""

from __future__ import annotations

import math

from protocol.manifest import Manifest
from protocol.units import Epoch

_TERMS = 14  # of the Taylor series: the rest is below 2e-20 on [0, pi/2]


def learning_rate(manifest: Manifest, epoch: Epoch) -> float:
    """Learning rate of the update that ends `epoch` (0 is the first update)."""
    peak = manifest.optimizer.learning_rate
    schedule = manifest.schedule
    if epoch < schedule.warmup_epochs:
        return peak * (epoch + 1) / schedule.warmup_epochs
    if epoch >= schedule.total_epochs:
        return peak * schedule.final_fraction
    passed = (epoch - schedule.warmup_epochs) / (schedule.total_epochs - schedule.warmup_epochs)
    half = _cosine(passed * (math.pi / 2))
    return peak * (schedule.final_fraction + (1.0 - schedule.final_fraction) * (half * half))


def _cosine(angle: float) -> float:
    """Cosine of an angle in [0, pi/2] radians, to about 2e-16. cos²(x/2) = (1 + cos x) / 2."""
    square = angle * angle
    result = 1.0
    for n in range(_TERMS, 0, -1):
        result = 1.0 - result * square / ((2 * n - 1) * (2 * n))
    return result
