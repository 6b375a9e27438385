"""How numbers travel: as float32, as float16 with a scale for each piece, or as 8 or 4 bits with a step for each block.

Values are pieces: vectors of float32. Decoding the same bytes gives the same bits everywhere: it is a widening
and a multiplication whose product needs no rounding. What encoding loses is for the caller to send later.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

Compression = Literal["none", "float16", "uniform8", "uniform4"]
Floats = NDArray[np.float32]
Encoded = bytes | memoryview
Number = TypeVar("Number", np.float32, np.int8)

PIECE_ELEMENTS = 64 * 1024  # at most; 256 KiB as float32: a second of a 2 Mbit/s link
SCALE_BYTES = 4
MAX_EXPONENT = 127
LAST_BEFORE_2_15 = np.float32(32752.0)  # the next float16 number is 2^15
MAX_SHIFT = 126  # 2**±126 are ordinary float32 numbers

STEP_BYTES = 2  # of a block: its step, the upper half of a float32 number (a bfloat16)
LEAST_STEP = np.float32(2.0**-126)  # with smaller ones, processors that flush tiny numbers would decode otherwise
LEAST_STEP_BITS, INFINITY_BITS = 0x0080, 0x7F80
MAGNITUDE_BITS = np.uint32(0x7FFFFFFF)


class MalformedPiece(ValueError):
    """A piece that no sender following the protocol would make."""


@dataclass(frozen=True)
class Codec:
    encode: Callable[[Floats], Encoded]
    decode_sized: Callable[[Encoded, int], Floats]
    """so many numbers, from so many bytes as they take"""
    size: Callable[[int], int]
    """bytes of a piece, by its number of elements"""

    def decode(self, data: Encoded, count: int) -> Floats:
        """`count` numbers. Raises `MalformedPiece`; whether they are finite is for the caller to see."""
        if len(data) != self.size(count):
            raise MalformedPiece(f"of {len(data)} bytes, which {count} numbers do not take")
        return self.decode_sized(data, count)


def _encode_float32(values: Floats) -> Encoded:
    return np.ascontiguousarray(values, dtype="<f4").data.cast("B")


def _decode_float32(data: Encoded, _count: int) -> Floats:
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


def _decode_float16(data: Encoded, _count: int) -> Floats:
    shift = int.from_bytes(data[:SCALE_BYTES], "little", signed=True)
    if abs(shift) > MAX_SHIFT:
        raise MalformedPiece(f"scaled by 2^{shift}, which no sender does")
    halves = np.frombuffer(data, dtype="<f2", offset=SCALE_BYTES)
    with np.errstate(over="ignore"):  # from a sender who makes mischief; seen afterwards
        return np.asarray(halves.astype(np.float32) * np.float32(2.0**-shift), dtype=np.float32)


@dataclass(frozen=True)
class Uniform:
    """Each block in whole steps, as many below zero as above; ties go to the even number.

    A step is the block's peak / levels, rounded to 8 significant bits. That errs by less than 1/256, so the peak is
    always nearest to all levels, no number is beyond half a step more, and encoding what was decoded gives the same
    bytes. With a power of two as the step and blocks of half the length, which is as large, errors of 8 bits would be
    a third larger.

    4 bits in blocks of 64 (128) err by 11 (12) % of the norm of normal numbers, by 18 (22) % of that of Student's with
    3 degrees of freedom, by 7 to 13 (8 to 16) % of that of gradients of Python source; 8 bits by 1 to 2 %.
    """

    block: int
    """elements"""
    levels: int
    """above zero, and as many below"""
    per_byte: int
    """elements"""
    pack: Callable[[NDArray[np.int8]], NDArray[np.uint8]]
    unpack: Callable[[NDArray[np.uint8]], NDArray[np.int8]]

    def size(self, count: int) -> int:
        return STEP_BYTES * -(-count // self.block) + -(-count // self.per_byte)

    def encode(self, values: Floats) -> Encoded:
        blocks = self._in_blocks(np.ascontiguousarray(values, dtype=np.float32))
        # As integers, magnitudes have the same order, and what is not finite comes last; several times as fast.
        peaks = (blocks.view(np.uint32) & MAGNITUDE_BITS).max(axis=1).view(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):  # of what is not finite, which decodes to the same
            bits = np.maximum(peaks / np.float32(self.levels), LEAST_STEP).view(np.uint32)
            bits = np.where(np.isfinite(peaks), (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, INFINITY_BITS)
            bits = bits.astype("<u2")
            levels = blocks / _steps(bits)[:, np.newaxis]
            levels = np.rint(levels, out=levels).astype(np.int8)
        packed = self.pack(levels.reshape(-1))[: -(-len(values) // self.per_byte)]
        encoded: bytes = bits.tobytes() + packed.tobytes()
        return encoded

    def decode(self, data: Encoded, count: int) -> Floats:
        num_blocks = -(-count // self.block)
        bits = np.frombuffer(data, dtype="<u2", count=num_blocks)
        levels = self.unpack(np.frombuffer(data, dtype=np.uint8, offset=STEP_BYTES * num_blocks))
        if (((bits < LEAST_STEP_BITS) | (bits > self._last_step_bits)) & (bits != INFINITY_BITS)).any():
            raise MalformedPiece("with a step that no sender uses")
        if levels.min(initial=0) < -self.levels:
            raise MalformedPiece(f"with a number of more than {self.levels} steps")
        if levels[count:].any():
            raise MalformedPiece("with a number after the last one")
        with np.errstate(invalid="ignore"):  # nothing times infinity
            decoded = self._in_blocks(levels[:count]) * _steps(bits)[:, np.newaxis]
        return np.asarray(decoded.reshape(-1)[:count], dtype=np.float32)

    @property
    def _last_step_bits(self) -> int:
        """Of the largest step of which all levels are finite."""
        return int((np.finfo(np.float32).max / np.float32(self.levels)).view(np.uint32) >> 16)

    def _in_blocks(self, values: NDArray[Number]) -> NDArray[Number]:
        """Rows of `block` elements, the last one filled up with zeros."""
        missing = -len(values) % self.block
        if missing:
            values = np.concatenate((values, np.zeros(missing, dtype=values.dtype)))
        return values.reshape(-1, self.block)


def _steps(bits: NDArray[np.uint16]) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _pack_bytes(levels: NDArray[np.int8]) -> NDArray[np.uint8]:
    return levels.view(np.uint8)


def _unpack_bytes(packed: NDArray[np.uint8]) -> NDArray[np.int8]:
    return packed.view(np.int8)


def _pack_nibbles(levels: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Two's complement, the first of two in the lower half of their byte."""
    pairs = levels.view("<u2")
    return ((pairs & 0x0F) | ((pairs >> 4) & 0xF0)).astype(np.uint8)


def _unpack_nibbles(packed: NDArray[np.uint8]) -> NDArray[np.int8]:
    pairs = packed.astype("<u2")
    pairs = (pairs | (pairs << 4)) & 0x0F0F
    levels: NDArray[np.int8] = (pairs ^ 0x0808).view(np.int8) - np.int8(8)  # whose highest bit is the sign
    return levels


UNIFORM8 = Uniform(256, 127, 1, _pack_bytes, _unpack_bytes)
UNIFORM4 = Uniform(64, 7, 2, _pack_nibbles, _unpack_nibbles)
BLOCK_ELEMENTS = max(UNIFORM8.block, UNIFORM4.block)
"""whole blocks of all codecs"""

CODECS: dict[Compression, Codec] = {
    "none": Codec(_encode_float32, _decode_float32, lambda count: 4 * count),
    "float16": Codec(_encode_float16, _decode_float16, lambda count: SCALE_BYTES + 2 * count),
    "uniform8": Codec(UNIFORM8.encode, UNIFORM8.decode, UNIFORM8.size),
    "uniform4": Codec(UNIFORM4.encode, UNIFORM4.decode, UNIFORM4.size),
}
