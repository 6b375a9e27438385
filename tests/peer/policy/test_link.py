from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.policy.link import FORGET_SECONDS, LinkBook, Seen

rates = st.floats(1_000.0, 1.25e9)
MBIT = 125_000.0


def see(book: LinkBook, rates: list[float], begin: float = 0.0) -> int:
    for number, rate in enumerate(rates):
        book.saw_up("a", rate, begin + number)
    return up(book, begin + len(rates))


def up(book: LinkBook, now: float) -> int:
    return book.seen(now).get("a", Seen(0, 0)).up


def test_nothing_is_known_at_first() -> None:
    assert LinkBook().seen(0) == {}


@given(rates)
def test_one_sighting_is_reported_at_most_a_tenth_too_low(rate: float) -> None:
    assert rate / 1.101 <= see(LinkBook(), [rate]) <= rate


@given(st.lists(rates, min_size=1, max_size=12))
def test_what_is_reported_lies_within_what_was_seen(seen: list[float]) -> None:
    assert min(seen) / 1.24 <= see(LinkBook(), seen) <= max(seen) * 1.14


@given(st.lists(rates, min_size=1, max_size=12), rates)
def test_three_sightings_change_everything(before: list[float], rate: float) -> None:
    assert rate / 1.24 <= see(LinkBook(), [*before, rate, rate, rate]) <= rate * 1.14


@pytest.mark.parametrize(("before", "after"), [(20, 2), (2, 100), (100, 2), (100, 50)])
@pytest.mark.parametrize("num_before", [1, 2, 3, 4, 5, 50])
def test_a_link_that_changes_shows_within_three_sightings(before: float, after: float, num_before: int) -> None:
    book = LinkBook()
    see(book, [before * MBIT] * num_before)
    assert see(book, [after * MBIT] * 3, begin=num_before) == pytest.approx(after * MBIT, rel=0.15)


@given(st.lists(rates, max_size=8), rates)
def test_a_drop_counts_at_once_and_what_follows_counts_too(before: list[float], dropped: float) -> None:
    book = LinkBook()
    see(book, before)
    book.saw_drop("a", dropped, 10)
    assert dropped / 1.101 <= up(book, 10) <= dropped
    assert see(book, [50 * MBIT] * 3, begin=11) == pytest.approx(50 * MBIT, rel=0.15)


@given(st.lists(rates, max_size=8), rates)
def test_a_single_outlier_among_equals_changes_nothing(rates_before: list[float], outlier: float) -> None:
    book = LinkBook()
    steady = see(book, [*rates_before, *[5 * MBIT] * 5])
    assert see(book, [outlier, 5 * MBIT], begin=50) == steady


@given(st.floats(10_000.0, 1e9), st.integers(0, 2**32))
def test_jitter_seldom_changes_what_is_reported(rate: float, seed: int) -> None:
    generator = random.Random(seed)
    book = LinkBook()
    reported = [see(book, [rate * generator.uniform(0.9, 1.1)], begin=number) for number in range(100)]
    changes = sum(a != b for a, b in pairwise(reported))
    assert changes <= 10


def test_what_is_old_is_forgotten() -> None:
    book = LinkBook()
    book.saw_up("a", MBIT, 0)
    book.saw_down("b", MBIT, 10)
    assert set(book.seen(FORGET_SECONDS - 1)) == {"a", "b"}
    assert set(book.seen(FORGET_SECONDS + 1)) == {"b"}
    assert book.seen(FORGET_SECONDS + 11) == {}
    assert see(book, [9 * MBIT], begin=2 * FORGET_SECONDS) == pytest.approx(9 * MBIT, rel=0.1)


def test_directions_and_peers_are_apart() -> None:
    book = LinkBook()
    book.saw_up("a", 1000.0, 0)
    book.saw_down("a", 1_000_000.0, 0)
    book.saw_down("b", 5.0, 0)
    assert book.seen(1)["a"].up == 1000
    assert 900_000 < book.seen(1)["a"].down <= 1_000_000
    assert book.seen(1)["b"] == Seen(0, 1000)
    assert list(book.seen(1)) == ["a", "b"]


@given(rates, st.lists(st.floats(0.0, 1.0), max_size=20))
def test_lower_bounds_below_what_is_known_change_nothing(rate: float, fractions: list[float]) -> None:
    book = LinkBook()
    before = see(book, [rate])
    for number, fraction in enumerate(fractions):
        book.saw_up("a", rate * fraction, number, at_least=True)
    assert up(book, 50) == before


def test_lower_bounds_alone_say_nothing() -> None:
    book = LinkBook()
    book.saw_up("a", MBIT, 0, at_least=True)
    assert book.seen(1) == {}


def test_lower_bounds_show_that_a_link_has_recovered() -> None:
    book = LinkBook()
    see(book, [2 * MBIT] * 5)
    for number in range(3):
        book.saw_up("a", 40 * MBIT, 10 + number, at_least=True)
    assert up(book, 20) == pytest.approx(40 * MBIT, rel=0.1)


def test_lower_bounds_that_err_do_not_add_up() -> None:
    """Each is up to a third too high: what is reported stays near, however many there are."""
    generator = random.Random(1)
    book = LinkBook()
    before = see(book, [100 * MBIT])
    for number in range(1000):
        book.saw_up("a", generator.uniform(0, 135) * MBIT, 10 + number, at_least=True)
    assert up(book, 1010) == before


def test_lower_bounds_confirm_what_is_known() -> None:
    book = LinkBook()
    before = see(book, [100 * MBIT])
    book.saw_up("a", 10 * MBIT, 0.9 * FORGET_SECONDS, at_least=True)
    assert up(book, 1.8 * FORGET_SECONDS) == before
    assert up(book, 2.0 * FORGET_SECONDS) == 0
