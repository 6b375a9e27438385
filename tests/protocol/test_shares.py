import random
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import LocalProtocolError
from protocol.shares import WHOLE, Crowd, encoded_size, reduce_shares

links = st.lists(st.integers(1, 10**12) | st.integers(1, 30), min_size=1, max_size=40)


def longest(rates: list[int], shares: tuple[int, ...], whole: int = WHOLE) -> Fraction:
    """Seconds of the longest transfer of a vector of one byte."""
    size = len(rates)
    if size == 1:
        return Fraction(0)
    return max(Fraction(whole + (size - 2) * s, whole * rate) for s, rate in zip(shares, rates, strict=True))


def test_shares_of_known_groups() -> None:
    half, third, fourth = WHOLE // 2, WHOLE // 3, WHOLE // 4
    assert reduce_shares([5]) == (WHOLE,)
    assert reduce_shares([5, 100]) == (half, half)
    assert reduce_shares([7, 7, 7]) == (third + 1, third, third)
    assert reduce_shares([100, 5, 100, 20]) == (half, 0, half, 0)
    assert reduce_shares([9, 9, 9, 9]) == (fourth,) * 4
    # 1 + s of 30 takes as long as 1 + (1 - s) / 2 of 20 each: s = 1/2, at the cap, and the others share the rest
    assert reduce_shares([20, 10**9, 20]) == (fourth, half, fourth)


@given(links)
def test_what_all_shares_keep(rates: list[int]) -> None:
    shares = reduce_shares(rates)
    assert sum(shares) == WHOLE
    assert all(share >= 0 for share in shares)
    if len(rates) > 2:
        assert max(shares) <= WHOLE // 2
    for one, share in zip(rates, shares, strict=True):
        for other, other_share in zip(rates, shares, strict=True):
            assert share <= other_share + (one == other) or one > other


@given(links)
def test_no_shares_are_better_than_the_predicted_duration(rates: list[int]) -> None:
    """And those that are chosen reach it, but for the rounding of a part."""
    vector = 10**15
    predicted = Crowd.of(rates).microseconds(vector)
    reached = longest(rates, reduce_shares(rates)) * vector * 10**6
    assert predicted - 1 < reached
    assert reached < predicted + 1 + Fraction(len(rates), WHOLE * min(rates)) * vector * 10**6


@given(links, st.randoms(use_true_random=False))
def test_shares_do_not_depend_on_the_order(rates: list[int], order: random.Random) -> None:
    mixed = list(rates)
    order.shuffle(mixed)
    assert sorted(zip(rates, reduce_shares(rates), strict=True)) == sorted(
        zip(mixed, reduce_shares(mixed), strict=True)
    )


@pytest.mark.parametrize("size", [3, 4])
@given(data=st.data())
def test_shares_are_the_best_of_all(size: int, data: st.DataObject) -> None:
    """Compared with all multiples of a twelfth, none of which is better."""
    rates = data.draw(st.lists(st.integers(1, 40), min_size=size, max_size=size))
    best = min(
        longest(rates, (*some, 12 - sum(some)), whole=12)
        for some in product(range(7), repeat=size - 1)
        if 6 <= sum(some) <= 12
    )
    assert longest(rates, reduce_shares(rates)) <= best + Fraction(size, WHOLE * min(rates))


@pytest.mark.parametrize("whole_rates", [[1, 2, 3], [3, 3, 8], [1, 50, 50], [1, 7, 50]])
def test_shares_are_exactly_optimal(whole_rates: list[int]) -> None:
    shares = reduce_shares(whole_rates)
    reached = longest(whole_rates, shares)
    # if every member kept strictly below that, some part would be left over
    rooms = [(Fraction(WHOLE) * rate * reached - WHOLE) for rate in whole_rates]
    below = [max(-1, min(WHOLE // 2, -(-room.numerator // room.denominator) - 1)) for room in rooms]
    assert min(below) < 0 or sum(below) < WHOLE


@given(links, st.integers(1, 10**12))
def test_a_slower_member_never_makes_a_round_shorter(rates: list[int], another: int) -> None:
    slowest = min([*rates, another])
    assert Crowd.of([*rates, slowest]).microseconds(10**9) >= Crowd.of(rates).microseconds(10**9)


@given(links, st.integers(1, 10**9), st.integers(1, 10**12))
def test_the_rate_needed_is_enough_and_no_less_is(rates: list[int], vector: int, allowed: int) -> None:
    crowd = Crowd.of(rates)

    def duration(rate: int) -> int:
        return crowd.beside(Crowd.of([rate])).microseconds(vector)

    rate = crowd.rate_needed(vector, allowed)
    if rate == 0:
        assert duration(10**30) > allowed
    else:
        assert duration(rate) <= allowed
        assert rate == 1 or duration(rate - 1) > allowed


def test_sizes_on_the_wire() -> None:
    assert encoded_size(1000, "none") == 4000
    assert encoded_size(1000, "float16") == 2000
    assert encoded_size(1000, "uniform8") == 1016
    assert encoded_size(1000, "uniform4") == 540


@pytest.mark.parametrize("rates", [[], [5, 0]])
def test_nobody_and_no_link(rates: list[int]) -> None:
    with pytest.raises(LocalProtocolError):
        reduce_shares(rates)
