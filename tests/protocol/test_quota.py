from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import LocalProtocolError
from protocol.quota import apportion

totals = st.integers(0, 10**9)
weights = st.lists(st.integers(0, 10**12), min_size=1, max_size=40).filter(any)


@pytest.mark.parametrize(
    ("total", "given_weights", "shares"),
    [
        (512, [100, 60, 10], (301, 181, 30)),
        (10, [1, 1, 1], (4, 3, 3)),
        (2, [1, 1, 1], (1, 1, 0)),
        (7, [0, 5, 0], (0, 7, 0)),
        (0, [3, 4], (0, 0)),
        (0, [], ()),
        (0, [0, 0], (0, 0)),
    ],
)
def test_known_shares(total: int, given_weights: list[int], shares: tuple[int, ...]) -> None:
    assert apportion(total, given_weights) == shares


@given(totals, weights)
def test_shares_are_exact_and_near_their_due(total: int, weights: list[int]) -> None:
    shares = apportion(total, weights)
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - Fraction(total * weight, sum(weights))) < 1
        assert weight or not share


@given(totals, weights)
def test_more_weight_never_gets_less(total: int, weights: list[int]) -> None:
    shares = apportion(total, weights)
    for share, weight in zip(shares, weights, strict=True):
        for other_share, other_weight in zip(shares, weights, strict=True):
            assert not (weight > other_weight and share < other_share)


@given(totals, st.lists(st.integers(0, 10**12), min_size=1, max_size=20, unique=True).filter(any), st.randoms())
def test_order_decides_only_among_equals(total: int, weights: list[int], random: object) -> None:
    whole = sum(weights)
    if len({total * weight % whole for weight in weights}) < len(weights):
        return  # equal remainders
    mixed = list(weights)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    by_weight = dict(zip(weights, apportion(total, weights), strict=True))
    assert apportion(total, mixed) == tuple(by_weight[weight] for weight in mixed)


@pytest.mark.parametrize(("total", "given_weights"), [(1, []), (1, [0, 0]), (-1, [1]), (1, [2, -1])])
def test_the_impossible_is_refused(total: int, given_weights: list[int]) -> None:
    with pytest.raises(LocalProtocolError):
        apportion(total, given_weights)
