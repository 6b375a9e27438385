import hashlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import LocalProtocolError
from protocol.order import sample_start


@given(st.integers(0, 2**53), st.integers(0, 10**9), st.text(max_size=60), st.integers(0, 10**9), st.integers(1, 2**60))
def test_start_lies_in_the_population(seed: int, epoch: int, peer: str, index: int, population: int) -> None:
    start = sample_start(seed, epoch, peer, index, population)
    assert 0 <= start < population
    assert start == sample_start(seed, epoch, peer, index, population)


def test_start_is_the_digest_of_all_arguments() -> None:
    """The numbers are part of the protocol: another implementation must draw the same samples."""
    data = b"minga1" + b"\x05order" + (1).to_bytes(8, "big") + (2).to_bytes(8, "big") + (3).to_bytes(8, "big") + b"ab"
    expected = int.from_bytes(hashlib.sha256(data).digest(), "big") % 1000
    assert sample_start(1, 2, "ab", 3, 1000) == expected


def test_every_argument_counts() -> None:
    base = (1, 2, "peer", 3)
    others = [(0, 2, "peer", 3), (1, 0, "peer", 3), (1, 2, "reep", 3), (1, 2, "peer", 0)]
    drawn = {sample_start(*arguments, 2**40) for arguments in [base, *others]}
    assert len(drawn) == 5


def test_starts_are_uniform() -> None:
    """Chi-squared over 16 cells, 16000 draws; 45 is exceeded by chance once in 10^4, and the draws are fixed."""
    cells = Counter(sample_start(7, 0, "peer", index, 16) for index in range(16_000))
    assert sum((cells[cell] - 1000) ** 2 / 1000 for cell in range(16)) < 45


def test_no_data_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="no data"):
        sample_start(0, 0, "peer", 0, 0)
