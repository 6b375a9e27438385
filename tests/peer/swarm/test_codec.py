from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from peer.swarm.codec import BLOCK_ELEMENTS, CODECS, Compression, MalformedPiece

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
pieces = arrays(np.float32, st.integers(1, 50), elements=finite)
ALL: tuple[Compression, ...] = ("none", "float16", "uniform8")
several_blocks = arrays(np.float32, st.integers(1, 3 * BLOCK_ELEMENTS), elements=finite, fill=finite)


@given(pieces)
def test_uncompressed_numbers_arrive_bit_by_bit(values: np.ndarray) -> None:
    codec = CODECS["none"]
    data = bytes(codec.encode(values))
    assert len(data) == codec.size(len(values)) == 4 * len(values)
    assert codec.decode(data).tobytes() == values.tobytes()


@given(pieces)
def test_float16_errs_by_a_rounding_of_the_largest_number_at_most(values: np.ndarray) -> None:
    codec = CODECS["float16"]
    data = bytes(codec.encode(values))
    assert len(data) == codec.size(len(values)) == 2 * len(values) + 4
    decoded = codec.decode(data)
    assert np.isfinite(decoded).all()
    wide, peak = values.astype(np.float64), float(np.max(np.abs(values)))
    # Half of the spacing of 11-bit significands; at the bottom, that of float16 below its smallest number.
    allowed = np.maximum(np.abs(wide) * 2.0**-10.9, max(peak, 2.0**-111) * 2.0**-38)
    assert (np.abs(decoded - wide) <= allowed).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e-7, 1.0, 1e5, 3e38])
def test_float16_keeps_numbers_of_any_magnitude(scale: float) -> None:
    """Plain float16 turns 1e-12 into 0 and 1e5 into infinity."""
    values = (np.array([1.0, -0.5, 0.25, 1e-3]) * scale).astype(np.float32)
    decoded = CODECS["float16"].decode(CODECS["float16"].encode(values))
    assert np.allclose(decoded, values, rtol=2.0**-11, atol=0)


@pytest.mark.parametrize("compression", ALL)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_stay_so(compression: Compression, bad: float) -> None:
    values = np.array([1.0, bad, 2.0], dtype=np.float32)
    codec = CODECS[compression]
    with np.errstate(all="ignore"):
        assert not np.isfinite(codec.decode(codec.encode(values))).all()


@pytest.mark.parametrize("compression", ALL)
def test_zeros_stay_zero(compression: Compression) -> None:
    codec = CODECS[compression]
    assert not codec.decode(codec.encode(np.zeros(7, np.float32))).any()


@pytest.mark.parametrize("shift", [-127, 127, 2**31 - 1, -(2**31)])
def test_a_scale_that_nobody_uses_is_refused(shift: int) -> None:
    with pytest.raises(MalformedPiece):
        CODECS["float16"].decode(shift.to_bytes(4, "little", signed=True) + bytes(8))


def blocks_of(values: np.ndarray) -> list[np.ndarray]:
    return [values[start : start + BLOCK_ELEMENTS] for start in range(0, len(values), BLOCK_ELEMENTS)]


@given(several_blocks)
def test_uniform8_errs_by_half_a_step_of_the_block_at_most(values: np.ndarray) -> None:
    codec = CODECS["uniform8"]
    data = bytes(codec.encode(values))
    assert len(data) == codec.size(len(values)) == len(values) + 2 * len(blocks_of(values))
    decoded = codec.decode(data)
    assert decoded.dtype == np.float32 and len(decoded) == len(values)
    for block, found in zip(blocks_of(values.astype(np.float64)), blocks_of(decoded), strict=True):
        step = max(np.abs(block).max() / 127 * (1 + 1 / 256), 2.0**-126)
        assert (np.abs(found - block) <= step / 2 * (1 + 1e-6)).all()


@given(several_blocks)
def test_uniform8_gives_the_same_bytes_again_also_for_what_was_decoded(values: np.ndarray) -> None:
    codec = CODECS["uniform8"]
    data = bytes(codec.encode(values))
    assert bytes(codec.encode(values.copy())) == data
    decoded = codec.decode(data)
    assert bytes(codec.encode(decoded)) == data
    assert codec.decode(memoryview(data)).tobytes() == decoded.tobytes()


def test_bytes_of_uniform8() -> None:
    """A step of 2 is 0x4000 as a bfloat16; ties go to even numbers of steps."""
    first = np.zeros(BLOCK_ELEMENTS, np.float32)
    first[:6] = [254.0, -254.0, 1.0, 3.0, -3.0, 2.2]
    values = np.concatenate((first, np.array([127 * 0.25, -0.25], np.float32)))
    data = bytes(CODECS["uniform8"].encode(values))
    levels = [127, -127, 0, 2, -2, 1] + [0] * (BLOCK_ELEMENTS - 6) + [127, -1]
    assert data == bytes.fromhex("0040 803e") + np.array(levels, np.int8).tobytes()
    assert CODECS["uniform8"].decode(data)[-2:].tolist() == [31.75, -0.25]


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e5, float(np.finfo(np.float32).max)])
def test_uniform8_keeps_numbers_of_any_magnitude(scale: float) -> None:
    values = (np.linspace(-1, 1, 1000) * scale).astype(np.float32)
    decoded = CODECS["uniform8"].decode(CODECS["uniform8"].encode(values))
    assert np.abs(decoded / scale - values / scale).max() <= 1 / 250


ONE = b"\x80\x3f"  # a step of 1.0


@pytest.mark.parametrize(
    "data",
    [
        b"\x00",
        ONE,
        bytes(2 + BLOCK_ELEMENTS + 2),
        ONE + b"\x80",  # -128 steps
        b"\x00\x00\x01",  # a step of nothing
        b"\x7f\x00\x01",  # of less than 2^-126
        b"\x02\x7c\x01",  # so large that 127 of it are infinite
        b"\xc0\x7f\x01",  # not a number
        b"\x80\xbf\x01",  # negative
    ],
)
def test_bytes_that_uniform8_never_has(data: bytes) -> None:
    with pytest.raises(MalformedPiece):
        CODECS["uniform8"].decode(data)


@given(st.binary(max_size=600))
def test_any_bytes_are_decoded_or_malformed(data: bytes) -> None:
    try:
        decoded = CODECS["uniform8"].decode(data)
    except MalformedPiece:
        return
    assert CODECS["uniform8"].size(len(decoded)) == len(data)
