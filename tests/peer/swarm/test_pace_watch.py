"""Who alone holds up a round: `has[reducer][peer]` and `means[reducer]` are thousandths, after as many seconds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.swarm.pace_watch import ALL, straggler

PEERS = "abcd"


def matrix(reducers: str, changes: dict[tuple[str, str], int], peers: str = PEERS) -> dict[str, dict[str, int]]:
    return {r: {p: changes.get((r, p), ALL) for p in peers if p != r} for r in reducers}


def found(has: dict[str, dict[str, int]], means: dict[str, int] | None = None) -> Any:
    return straggler(has, means or {}, elapsed=2.0, allowed=1.0)


def test_whoever_sends_slowly_to_all() -> None:
    assert found(matrix("ab", {("a", "d"): 300, ("b", "d"): 400})) == "d"


def test_a_reducer_whose_link_is_slow_both_ways() -> None:
    slow = {("b", p): 500 for p in "acd"} | {("a", "b"): 300}
    assert found(matrix("ab", slow)) == "b"
    assert found(matrix("ab", slow), {"b": 100}) == "b"


def test_a_reducer_to_which_all_come_slowly() -> None:
    assert found(matrix("ab", {("b", p): 300 for p in "acd"})) == "b"


def test_a_single_reducer_is_not_to_blame_for_one_who_is_slow() -> None:
    assert found(matrix("a", {("a", "c"): 100}, "abc")) == "c"


def test_a_reducer_that_has_everything_but_sends_its_means_slowly() -> None:
    assert found(matrix("abc", {}), {"a": ALL, "b": 200}) == "b"
    assert found(matrix("abc", {}), {"a": 300, "b": 200}) is None  # perhaps it is our own link
    assert found(matrix("ab", {}), {"b": 200}) is None


def test_of_two_nobody_can_tell() -> None:
    assert found(matrix("ab", {("a", "b"): 100}, "ab")) is None


@given(st.integers(1, ALL), st.sampled_from(["ab", "abc", "abcd"]))
def test_where_all_are_as_slow_nobody_is_left_behind(progress: int, reducers: str) -> None:
    assert found({r: {p: progress for p in PEERS if p != r} for r in reducers}) is None


def test_two_who_are_slow_are_both_waited_for() -> None:
    assert found(matrix("ab", {(r, p): 200 for r in "ab" for p in "cd"})) is None


@pytest.mark.parametrize(("progress", "late"), [(666, True), (667, False), (0, True)])
def test_late_is_what_takes_longer_than_allowed(progress: int, late: bool) -> None:
    assert (found(matrix("ab", {("a", "d"): progress, ("b", "d"): progress})) == "d") is late
