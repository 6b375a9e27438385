from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.swarm.codec import BLOCK_ELEMENTS, CODECS, PIECE_ELEMENTS, UNIFORM4, UNIFORM8, Compression
from peer.swarm.parts import Contribution, PieceMean, divide, piece_length, terms
from peer.swarm.vectors import decode_vector, encode_vector

shares = st.lists(st.integers(0, 1000), min_size=1, max_size=12).filter(any)


@given(st.integers(1, 10**7), shares)
def test_parts_are_whole_blocks_that_cover_the_vector_in_proportion_to_the_shares(
    size: int, weights: list[int]
) -> None:
    members = [Contribution(f"peer {number}", 1, share) for number, share in enumerate(weights)]
    parts = divide(size, members)
    position = 0
    for part in parts:
        assert part.start == position < part.stop
        position = part.stop
        share = weights[int(part.reducer.split()[1])]
        assert part.start % BLOCK_ELEMENTS == 0
        exact = Fraction(size * share, sum(weights))
        assert abs(part.stop - part.start - exact) < 2 * BLOCK_ELEMENTS
        assert [piece.start for piece in part.pieces] == list(range(part.start, part.stop, piece_length(size)))
        assert part.pieces[-1].stop == part.stop
    assert position == size
    assert len({part.reducer for part in parts}) == len(parts)


@given(st.integers(1, 10**10))
def test_pieces_are_whole_blocks_and_of_a_size_that_suits_the_vector(size: int) -> None:
    length = piece_length(size)
    assert length % BLOCK_ELEMENTS == 0
    assert length <= PIECE_ELEMENTS
    assert length == PIECE_ELEMENTS or size / length <= 128


def test_blocks_are_whole_ones_of_all_codecs() -> None:
    assert BLOCK_ELEMENTS % UNIFORM8.block == 0 and BLOCK_ELEMENTS % UNIFORM4.block == 0


@pytest.mark.parametrize("compression", ["uniform8", "uniform4"])
@pytest.mark.parametrize("weights", [[1, 1], [5, 3, 2], [1, 0, 7, 3]])
def test_a_vector_that_came_in_parts_is_the_same_when_encoded_as_a_whole(
    compression: Compression, weights: list[int]
) -> None:
    codec = CODECS[compression]
    vector = np.random.default_rng(0).standard_t(3, 100_003).astype(np.float32)
    for part in divide(len(vector), [Contribution(str(n), 1, share) for n, share in enumerate(weights)]):
        for piece in part.pieces:
            vector[piece] = codec.decode(codec.encode(vector[piece]), piece.stop - piece.start)
    data = memoryview(encode_vector(vector, compression))
    assert decode_vector(data, len(vector), compression).tobytes() == vector.tobytes()


def test_whoever_has_no_share_has_no_part() -> None:
    members = [Contribution("a", 1, 0), Contribution("b", 1, 3), Contribution("c", 1, 0)]
    assert [(part.reducer, part.start, part.stop) for part in divide(100, members)] == [("b", 0, 100)]


def test_terms_tell_rounds_apart() -> None:
    a, b = Contribution("a", 5, 1), Contribution("b", 7, 2)
    base = terms([a, b], 100, "none")
    assert base == terms([a, b], 100, "none")
    others = [
        terms([b, a], 100, "none"),
        terms([a], 100, "none"),
        terms([a, Contribution("b", 8, 2)], 100, "none"),
        terms([a, Contribution("b", 7, 3)], 100, "none"),
        terms([a, b], 101, "none"),
        terms([a, b], 100, "float16"),
    ]
    assert len({base, *others}) == 7


@pytest.mark.parametrize("num_members", [1, 2, 7, 64])
def test_a_mean_is_the_exact_one_rounded_once(num_members: int) -> None:
    generator = np.random.default_rng(num_members)
    length = 200
    scale = 10.0 ** generator.integers(-6, 6, (num_members, 1))
    sums = (generator.standard_normal((num_members, length)) * scale).astype(np.float32)
    samples = int(generator.integers(1, 10**9))
    mean = PieceMean(length)
    for row in sums:
        mean.add(row)
    found = mean.mean(samples)
    assert found.dtype == np.float32
    for element in range(length):
        exact = sum((Fraction(float(value)) for value in sums[:, element]), Fraction(0)) / samples
        nearest = np.float32(float(exact))
        assert abs(float(found[element]) - float(nearest)) <= np.spacing(np.abs(nearest))
        magnitude = float(np.abs(sums[:, element]).astype(np.float64).sum()) / samples
        assert abs(float(found[element]) - float(exact)) <= 1e-7 * magnitude
