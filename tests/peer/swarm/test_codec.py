from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from peer.swarm.codec import CODECS, UNIFORM4, UNIFORM8, Compression, MalformedPiece, Uniform

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
pieces = arrays(np.float32, st.integers(1, 50), elements=finite)
ALL: tuple[Compression, ...] = ("none", "float16", "uniform8", "uniform4")
UNIFORM: dict[Compression, Uniform] = {"uniform8": UNIFORM8, "uniform4": UNIFORM4}
several_blocks = arrays(np.float32, st.integers(1, 3 * 256), elements=finite, fill=finite)


@given(pieces)
def test_uncompressed_numbers_arrive_bit_by_bit(values: np.ndarray) -> None:
    codec = CODECS["none"]
    data = bytes(codec.encode(values))
    assert len(data) == codec.size(len(values)) == 4 * len(values)
    assert codec.decode(data, len(values)).tobytes() == values.tobytes()


@given(pieces)
def test_float16_errs_by_a_rounding_of_the_largest_number_at_most(values: np.ndarray) -> None:
    codec = CODECS["float16"]
    data = bytes(codec.encode(values))
    assert len(data) == codec.size(len(values)) == 2 * len(values) + 4
    decoded = codec.decode(data, len(values))
    assert np.isfinite(decoded).all()
    wide, peak = values.astype(np.float64), float(np.max(np.abs(values)))
    # Half of the spacing of 11-bit significands; at the bottom, that of float16 below its smallest number.
    allowed = np.maximum(np.abs(wide) * 2.0**-10.9, max(peak, 2.0**-111) * 2.0**-38)
    assert (np.abs(decoded - wide) <= allowed).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e-7, 1.0, 1e5, 3e38])
def test_float16_keeps_numbers_of_any_magnitude(scale: float) -> None:
    """Plain float16 turns 1e-12 into 0 and 1e5 into infinity."""
    values = (np.array([1.0, -0.5, 0.25, 1e-3]) * scale).astype(np.float32)
    decoded = CODECS["float16"].decode(CODECS["float16"].encode(values), 4)
    assert np.allclose(decoded, values, rtol=2.0**-11, atol=0)


@pytest.mark.parametrize("compression", ALL)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_stay_so(compression: Compression, bad: float) -> None:
    values = np.array([1.0, bad, 2.0], dtype=np.float32)
    codec = CODECS[compression]
    with np.errstate(all="ignore"):
        assert not np.isfinite(codec.decode(codec.encode(values), 3)).all()


@pytest.mark.parametrize("compression", ALL)
def test_zeros_stay_zero(compression: Compression) -> None:
    codec = CODECS[compression]
    assert not codec.decode(codec.encode(np.zeros(7, np.float32)), 7).any()


@pytest.mark.parametrize("shift", [-127, 127, 2**31 - 1, -(2**31)])
def test_a_scale_that_nobody_uses_is_refused(shift: int) -> None:
    with pytest.raises(MalformedPiece):
        CODECS["float16"].decode(shift.to_bytes(4, "little", signed=True) + bytes(8), 4)


@pytest.mark.parametrize("compression", ALL)
@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 999])
def test_bytes_of_another_length_are_refused(compression: Compression, count: int) -> None:
    codec = CODECS[compression]
    data = bytes(codec.encode(np.ones(count, np.float32)))
    for wrong in (data[:-1], data + b"\0", b""):
        with pytest.raises(MalformedPiece):
            codec.decode(wrong, count)


def blocks_of(values: np.ndarray, length: int) -> list[np.ndarray]:
    return [values[start : start + length] for start in range(0, len(values), length)]


@pytest.mark.parametrize("compression", UNIFORM)
@given(values=several_blocks)
def test_numbers_err_by_half_a_step_of_their_block_at_most(compression: Compression, values: np.ndarray) -> None:
    codec, form = CODECS[compression], UNIFORM[compression]
    data = bytes(codec.encode(values))
    num_blocks = len(blocks_of(values, form.block))
    assert len(data) == codec.size(len(values)) == -(-len(values) // form.per_byte) + 2 * num_blocks
    decoded = codec.decode(data, len(values))
    assert decoded.dtype == np.float32 and len(decoded) == len(values)
    wide = blocks_of(values.astype(np.float64), form.block)
    for block, found in zip(wide, blocks_of(decoded, form.block), strict=True):
        step = max(np.abs(block).max() / form.levels * (1 + 1 / 256), 2.0**-126)
        assert (np.abs(found - block) <= step / 2 * (1 + 1e-6)).all()


@pytest.mark.parametrize("compression", UNIFORM)
@given(values=several_blocks)
@example(values=np.full(3, 2.0**-149, np.float32))
@example(values=np.full(65, np.finfo(np.float32).max))
def test_the_same_bytes_again_also_for_what_was_decoded(compression: Compression, values: np.ndarray) -> None:
    codec, count = CODECS[compression], len(values)
    data = bytes(codec.encode(values))
    assert bytes(codec.encode(values.copy())) == data
    decoded = codec.decode(data, count)
    assert np.isfinite(decoded).all()
    assert bytes(codec.encode(decoded)) == data
    assert codec.decode(memoryview(data), count).tobytes() == decoded.tobytes()


@pytest.mark.parametrize("compression", UNIFORM)
@given(values=several_blocks)
def test_decoding_needs_no_rounding_and_makes_no_tiny_numbers(compression: Compression, values: np.ndarray) -> None:
    codec, form = CODECS[compression], UNIFORM[compression]
    data = bytes(codec.encode(values))
    steps = np.frombuffer(data, "<u2", count=-(-len(values) // form.block)).astype(np.uint32) << 16
    exact = np.repeat(steps.view(np.float32).astype(np.float64), form.block)[: len(values)]
    decoded = codec.decode(data, len(values)).astype(np.float64)
    whole = decoded / exact
    assert (whole == np.rint(whole)).all() and np.abs(whole).max() <= form.levels
    assert (exact >= 2.0**-126).all()


def test_bytes_of_uniform8() -> None:
    """A step of 2 is 0x4000 as a bfloat16; ties go to even numbers of steps."""
    first = np.zeros(256, np.float32)
    first[:6] = [254.0, -254.0, 1.0, 3.0, -3.0, 2.2]
    values = np.concatenate((first, np.array([127 * 0.25, -0.25], np.float32)))
    data = bytes(CODECS["uniform8"].encode(values))
    levels = [127, -127, 0, 2, -2, 1] + [0] * 250 + [127, -1]
    assert data == bytes.fromhex("0040 803e") + np.array(levels, np.int8).tobytes()
    assert CODECS["uniform8"].decode(data, 258)[-2:].tolist() == [31.75, -0.25]


def test_bytes_of_uniform4() -> None:
    """Two in a byte, the first in its lower half; what is left of the last byte is zero."""
    first = np.zeros(64, np.float32)
    first[:6] = [14.0, -14.0, 1.0, 3.0, -3.0, 2.2]
    values = np.concatenate((first, np.array([7 * 0.25, -0.25, 0.5], np.float32)))
    data = bytes(CODECS["uniform4"].encode(values))
    assert data == bytes.fromhex("0040 803e" + "97 20 1e" + "00" * 29 + "f7 02")
    assert CODECS["uniform4"].decode(data, 67)[:6].tolist() == [14.0, -14.0, 0.0, 4.0, -4.0, 2.0]
    assert CODECS["uniform4"].decode(data, 67)[-3:].tolist() == [1.75, -0.25, 0.5]


@pytest.mark.parametrize("compression", UNIFORM)
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e5, float(np.finfo(np.float32).max)])
def test_numbers_of_any_magnitude_are_kept(compression: Compression, scale: float) -> None:
    values = (np.linspace(-1, 1, 1000) * scale).astype(np.float32)
    decoded = CODECS[compression].decode(CODECS[compression].encode(values), 1000)
    assert np.abs(decoded / scale - values / scale).max() <= 0.504 / UNIFORM[compression].levels


@pytest.mark.parametrize("compression", UNIFORM)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_spoils_its_own_block_only(compression: Compression, bad: float) -> None:
    codec, length = CODECS[compression], UNIFORM[compression].block
    values = np.ones(3 * length, np.float32)
    values[length + 5] = bad
    decoded = codec.decode(codec.encode(values), len(values))
    assert not np.isfinite(decoded[length : 2 * length]).any()
    assert np.isfinite(decoded[:length]).all() and np.isfinite(decoded[2 * length :]).all()


ONE = b"\x80\x3f"  # a step of 1.0


@pytest.mark.parametrize(
    ("compression", "data"),
    [
        ("uniform8", ONE + b"\x80"),  # -128 steps
        ("uniform8", b"\x02\x7c\x01"),  # a step so large that 127 of it are infinite
        ("uniform4", ONE + b"\x08"),  # -8 steps
        ("uniform4", ONE + b"\x11"),  # one number more
        ("uniform4", b"\x13\x7e\x01"),  # a step so large that 7 of it are infinite
        *((one, step + b"\x01") for one in UNIFORM for step in (
            b"\x00\x00",  # a step of nothing
            b"\x7f\x00",  # of less than 2^-126
            b"\xc0\x7f",  # not a number
            b"\x80\xbf",  # negative
        )),
    ],
)  # fmt: skip
def test_bytes_that_no_sender_makes(compression: Compression, data: bytes) -> None:
    with pytest.raises(MalformedPiece):
        CODECS[compression].decode(data, 1)


@pytest.mark.parametrize(("compression", "largest"), [("uniform8", b"\x01\x7c\x7f"), ("uniform4", b"\x12\x7e\x07")])
def test_the_largest_step(compression: Compression, largest: bytes) -> None:
    assert np.isfinite(CODECS[compression].decode(largest, 1)).all()


@pytest.mark.parametrize("compression", UNIFORM)
@given(data=st.binary(max_size=600), count=st.integers(0, 1200))
def test_any_bytes_are_decoded_or_malformed(compression: Compression, data: bytes, count: int) -> None:
    codec = CODECS[compression]
    fitting = data.ljust(codec.size(count), b"\x01")[: codec.size(count)]
    for some in (data, fitting):
        try:
            decoded = codec.decode(some, count)
        except MalformedPiece:
            continue
        assert len(decoded) == count and codec.size(count) == len(some)


@pytest.mark.parametrize("compression", UNIFORM)
def test_what_rounding_keeps_back_comes_later(compression: Compression) -> None:
    """Of many rounds with the same numbers, all but a part of one arrives: the error of their mean vanishes."""
    codec = CODECS[compression]
    values = np.random.default_rng(0).standard_t(3, 5001).astype(np.float32)
    owed, total, rounds = np.zeros_like(values), np.zeros(len(values)), 32
    for _ in range(rounds):
        owed += values
        decoded = codec.decode(codec.encode(owed), len(owed))
        owed -= decoded
        total += decoded
    once = codec.decode(codec.encode(values), len(values))
    assert np.linalg.norm(total / rounds - values) < np.linalg.norm(once - values) / 8
