"""How numbers travel: as float32, as float16 with a scale for each piece, or as 8 bits with a scale for each block.

Values are pieces: vectors of float32. Decoding the same bytes gives the same bits everywhere: it is a widening
and a multiplication whose product needs no rounding. What encoding loses is for the caller to send later.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Compression = Literal["none", "float16", "uniform8"]
Floats = NDArray[np.float32]
Encoded = bytes | memoryview

PIECE_ELEMENTS = 64 * 1024  # at most; 256 KiB as float32: a second of a 2 Mbit/s link
SCALE_BYTES = 4
MAX_EXPONENT = 127
LAST_BEFORE_2_15 = np.float32(32752.0)  # the next float16 number is 2^15
MAX_SHIFT = 126  # 2**±126 are ordinary float32 numbers

BLOCK_ELEMENTS = 256
STEP_BYTES = 2  # of a block: its step, the upper half of a float32 number (a bfloat16)
LEVELS = 127  # above zero, and as many below
LEAST_STEP = np.float32(2.0**-126)  # with smaller ones, processors that flush tiny numbers would decode otherwise
LEAST_STEP_BITS, LAST_STEP_BITS = 0x0080, 0x7C01  # 127 times the last is still finite
INFINITY_BITS = 0x7F80


class MalformedPiece(ValueError):
    """A piece that no sender following the protocol would make."""


@dataclass(frozen=True)
class Codec:
    encode: Callable[[Floats], Encoded]
    decode: Callable[[Encoded], Floats]
    """raises `MalformedPiece`; whether the numbers are finite is for the caller to see"""
    size: Callable[[int], int]
    """bytes of a piece, by its number of elements"""


def _encode_float32(values: Floats) -> Encoded:
    return np.ascontiguousarray(values, dtype="<f4").data.cast("B")


def _decode_float32(data: Encoded) -> Floats:
    return np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)


def _encode_float16(values: Floats) -> Encoded:
    """Scale so that the largest magnitude comes to lie in [2^14, 2^15), then round to float16.

    So sums never overflow, and small gradients are not lost below float16's smallest number.
    """
    peak = float(np.max(np.abs(values), initial=0.0))
    exponent = math.frexp(peak)[1] if math.isfinite(peak) else 0
    shift = max(-MAX_SHIFT, min(MAX_SHIFT, 15 - exponent)) if peak else 0
    scaled = values * np.float32(2.0**shift)
    if exponent > MAX_EXPONENT:  # rounded up, it would be infinite when it is scaled back
        scaled = np.clip(scaled, -LAST_BEFORE_2_15, LAST_BEFORE_2_15)
    halves = scaled.astype("<f2")
    return shift.to_bytes(SCALE_BYTES, "little", signed=True) + halves.tobytes()


def _decode_float16(data: Encoded) -> Floats:
    shift = int.from_bytes(data[:SCALE_BYTES], "little", signed=True)
    if abs(shift) > MAX_SHIFT:
        raise MalformedPiece(f"scaled by 2^{shift}, which no sender does")
    halves = np.frombuffer(data, dtype="<f2", offset=SCALE_BYTES)
    with np.errstate(over="ignore"):  # from a sender who makes mischief; seen afterwards
        return np.asarray(halves.astype(np.float32) * np.float32(2.0**-shift), dtype=np.float32)


def _encode_uniform8(values: Floats) -> Encoded:
    """Each block in whole steps, from -127 to 127 of them; ties go to the even number.

    A step is the block's peak / 127, rounded to 8 significant bits. That errs by less than 1/256, so the peak is
    always nearest to 127 steps, no number is beyond half a step more, and encoding what was decoded gives the same
    bytes. With a power of two as the step and blocks of half the length, which is as large, errors would be a third
    larger.
    """
    blocks = _in_blocks(np.asarray(values, dtype=np.float32))
    peaks = np.maximum(blocks.max(axis=1), -blocks.min(axis=1))
    with np.errstate(invalid="ignore", over="ignore"):  # of what is not finite, which decodes to the same
        bits = np.maximum(peaks / np.float32(LEVELS), LEAST_STEP).view(np.uint32)
        bits = np.where(np.isfinite(peaks), (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, INFINITY_BITS).astype("<u2")
        levels = blocks / _steps(bits)[:, np.newaxis]
        levels = np.rint(levels, out=levels).astype(np.int8)
    encoded: bytes = bits.tobytes() + levels.tobytes()[: len(values)]
    return encoded


def _decode_uniform8(data: Encoded) -> Floats:
    num_blocks = -(-len(data) // (BLOCK_ELEMENTS + STEP_BYTES))
    if len(data) != _size_uniform8(len(data) - STEP_BYTES * num_blocks):
        raise MalformedPiece(f"of {len(data)} bytes, which no number of blocks has")
    bits = np.frombuffer(data, dtype="<u2", count=num_blocks)
    levels = np.frombuffer(data, dtype=np.int8, offset=STEP_BYTES * num_blocks)
    if (((bits < LEAST_STEP_BITS) | (bits > LAST_STEP_BITS)) & (bits != INFINITY_BITS)).any():
        raise MalformedPiece("with a step that no sender uses")
    if levels.min(initial=0) < -LEVELS:
        raise MalformedPiece(f"with a number of more than {LEVELS} steps")
    with np.errstate(invalid="ignore"):  # nothing times infinity
        decoded = _in_blocks(levels.astype(np.float32)) * _steps(bits)[:, np.newaxis]
    return np.asarray(decoded.reshape(-1)[: len(levels)], dtype=np.float32)


def _steps(bits: NDArray[np.uint16]) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _in_blocks(values: Floats) -> Floats:
    """Rows of `BLOCK_ELEMENTS`, the last one filled up with zeros."""
    missing = -len(values) % BLOCK_ELEMENTS
    if missing:
        values = np.concatenate((values, np.zeros(missing, dtype=np.float32)))
    return values.reshape(-1, BLOCK_ELEMENTS)


def _size_uniform8(count: int) -> int:
    return count + STEP_BYTES * -(-count // BLOCK_ELEMENTS)


CODECS: dict[Compression, Codec] = {
    "none": Codec(_encode_float32, _decode_float32, lambda count: 4 * count),
    "float16": Codec(_encode_float16, _decode_float16, lambda count: SCALE_BYTES + 2 * count),
    "uniform8": Codec(_encode_uniform8, _decode_uniform8, _size_uniform8),
}
