"""Initial weights, equal bit for bit on every machine.

They come from the raw 64-bit output of numpy's Philox generator, turned into floats by exact integer and single
correctly rounded operations. numpy guarantees the stream of a bit generator across versions and platforms (NEP 19);
it guarantees that neither for its distributions, nor does torch for its generators.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from peer.training.presets import Layout, Parameter

CARRY = 0.5
"""how much of the previous byte's embedding an untrained model adds to a byte's own"""
CHUNK = 1 << 20  # numbers drawn at a time
BITS = 24  # of a float32's mantissa; a draw with more would be rounded


def initial_weights(layout: Layout, seed: int) -> npt.NDArray[np.float32]:
    """The flat vector (P,) of an untrained model.

    Matrices that end a residual branch, and the head, are zero: each block begins as the identity and the model
    as the uniform distribution over bytes (8 bits per byte). The embedding has standard deviation 1, other
    matrices 1/√(inputs), both uniform.
    """
    weights = np.zeros(layout[-1].stop, dtype=np.float32)
    for index, parameter in enumerate(layout):
        part = weights[parameter.offset : parameter.stop]
        if parameter.name == "carry":
            part[:] = CARRY
        elif parameter.name == "embedding.weight":
            _fill_uniform(part, seed, index, math.sqrt(3.0))
        elif not _begins_as_zero(parameter):
            _fill_uniform(part, seed, index, math.sqrt(3.0 / parameter.shape[1]))
    return weights


def _begins_as_zero(parameter: Parameter) -> bool:
    return parameter.name.endswith((".attended.weight", ".down.weight")) or parameter.name == "head.weight"


def _fill_uniform(part: npt.NDArray[np.float32], seed: int, stream: int, bound: float) -> None:
    """Uniform in [-bound, bound), from a stream of its own for each parameter."""
    raw = np.random.Philox(key=seed | stream << 64)
    half = 1 << (BITS - 1)
    scale = np.float32(bound / half)
    for start in range(0, part.size, CHUNK):
        chunk = part[start : start + CHUNK]
        drawn = (raw.random_raw(chunk.size) >> np.uint64(64 - BITS)).astype(np.int64) - half
        np.multiply(drawn.astype(np.float32), scale, out=chunk)
