from __future__ import annotations

import numpy as np
import numpy.typing as npt

from peer.daemon.gathering import Owed


def vector(*numbers: float) -> npt.NDArray[np.float32]:
    return np.array(numbers, np.float32)


def test_at_first_nothing_is_owed() -> None:
    owed, own = Owed(), vector(1, 2)
    assert owed.plus(3, None, 7) == (3, None)
    samples, sums = owed.plus(3, own, 7)
    assert samples == 3 and sums is own
    assert owed.take() == (0, None)


def test_what_is_owed_comes_divided_by_its_age_with_what_follows() -> None:
    owed = Owed()
    owed.add(5, vector(8, 16), 3)
    for epoch, divisor in ((3, 1), (4, 1), (5, 2), (7, 4)):
        samples, sums = owed.plus(2, vector(1, 1), epoch)
        assert samples == 7 and sums is not None
        assert sums.tolist() == [1 + 8 / divisor, 1 + 16 / divisor]
    samples, sums = owed.plus(0, None, 5)
    assert samples == 5 and sums is not None and sums.tolist() == [4, 8]


def test_the_oldest_of_several_gives_the_age() -> None:
    owed = Owed()
    owed.add(1, vector(2), 6)
    owed.add(2, vector(4), 4)
    owed.add(3, None, 9)
    assert (owed.samples, owed.epoch) == (6, 4)
    _, sums = owed.plus(0, None, 8)
    assert sums is not None and sums.tolist() == [6 / 4]


def test_what_is_taken_is_owed_no_more_and_no_longer_gives_the_age() -> None:
    owed = Owed()
    owed.add(5, vector(8), 3)
    samples, sums = owed.take()
    assert samples == 5 and sums is not None and sums.tolist() == [8]
    assert owed.take() == (0, None)
    owed.add(1, vector(2), 9)
    assert owed.epoch == 9


def test_sums_are_not_written_to_and_copies_are_kept() -> None:
    owed, first, second, own = Owed(), vector(1), vector(2), vector(4)
    owed.add(1, first, 0)
    owed.add(1, second, 0)
    samples, sums = owed.plus(1, own, 2)
    assert samples == 3 and sums is not None and sums.tolist() == [4 + 3 / 2]
    assert (first.tolist(), second.tolist(), own.tolist()) == ([1], [2], [4])
    first[:] = second[:] = sums[:] = 100  # a worker begins its next sum in the same memory
    _, kept = owed.take()
    assert kept is not None and kept.tolist() == [3]

    alone = vector(5)
    owed.add(1, alone, 0)
    alone[:] = 100
    _, kept = owed.take()
    assert kept is not None and kept.tolist() == [5]
