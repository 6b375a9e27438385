from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from peer.errors import NotEnoughMemory
from peer.training.arena import Arena, arena_bytes, free_slot

CHILD = """
import sys
from peer.training.arena import Arena
arena = Arena.attach(int(sys.argv[1]), 1000, ahead=True)
assert arena.weights[7] == 7.0
arena.slots[1][:] = arena.weights * 2
arena.ahead[:] = arena.weights * 3
"""


def test_new_arena_is_zero_and_views_do_not_overlap():
    arena = Arena.create(1000, ahead=False)
    assert arena.weights.shape == (1000,) and arena.slots.shape == (3, 1000)
    assert not arena.weights.any() and not arena.slots.any()
    arena.weights[:] = 1
    for number, slot in enumerate(arena.slots):
        slot[:] = 2 + number
    assert [set(vector) for vector in (arena.weights, *arena.slots)] == [{1.0}, {2.0}, {3.0}, {4.0}]


def test_predicted_weights_come_last_where_the_run_has_them():
    without, arena = Arena.create(10, ahead=False), Arena.create(10, ahead=True)
    assert without.ahead is None
    arena.ahead[:] = 5
    assert not arena.weights.any() and not arena.slots.any()
    again = Arena.attach(arena.fd, 10, ahead=True)
    assert set(again.ahead) == {5.0} and not again.slots.any()
    with pytest.raises(ValueError, match="mmap"):
        Arena.attach(without.fd, 10, ahead=True)


def test_another_process_sees_the_same_memory():
    arena = Arena.create(1000, ahead=True)
    arena.weights[:] = np.arange(1000)
    command = [sys.executable, "-c", CHILD, str(arena.fd)]
    subprocess.run(command, pass_fds=(arena.fd,), check=True)
    assert np.array_equal(arena.slots[1], 2.0 * np.arange(1000))
    assert np.array_equal(arena.ahead, 3.0 * np.arange(1000))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_memory_has_no_name_in_any_file_system():
    arena = Arena.create(1000, ahead=False)
    assert os.readlink(f"/proc/self/fd/{arena.fd}").endswith("(deleted)")


def test_memory_that_is_not_there_is_refused():
    with pytest.raises(NotEnoughMemory, match=r"need \d+\.\d GiB of memory but .* are free; close"):
        Arena.create(10**13, ahead=False)


def test_smaller_memory_than_expected_is_refused():
    with pytest.raises(ValueError, match="mmap"):
        Arena.attach(Arena.create(1000, ahead=False).fd, 2000, ahead=False)


def test_size():
    assert arena_bytes(1_000_000, ahead=False) == 16_000_000
    assert arena_bytes(1_000_000, ahead=True) == 20_000_000


def test_what_was_handed_in_is_held_during_the_next_epoch():
    arena = Arena.create(10, ahead=False)
    arena.begin(7)
    arena.hand_in(7, 2)
    assert arena.spare != 2  # also before anything else begins
    arena.begin(8)
    assert arena.held == 2 and arena.spare != 2
    arena.hand_in(8, 1)
    arena.begin(9)
    assert arena.held == 1


def test_it_is_held_also_when_the_next_epoch_is_gathered_in_parts():
    arena = Arena.create(10, ahead=False)
    arena.hand_in(7, 2)
    arena.begin(8)
    arena.hand_in(8, 1)
    assert arena.spare == 0  # neither of them is in the way of a new worker's measuring
    arena.begin(8)
    assert arena.held == 2


def test_an_epoch_without_samples_takes_nothing_away():
    arena = Arena.create(10, ahead=False)
    arena.hand_in(7, 2)
    for epoch in (8, 9):
        arena.begin(epoch)
        assert arena.held == 2


def test_of_an_epoch_that_is_gathered_anew_after_a_step_back_the_last_sum_is_held():
    arena = Arena.create(10, ahead=False)
    arena.hand_in(7, 2)
    arena.begin(8)
    arena.hand_in(8, 1)
    arena.begin(7)
    assert arena.held == 1


@pytest.mark.parametrize("held", range(3))
@pytest.mark.parametrize("committed", range(3))
def test_free_slot_is_neither(held, committed):
    assert free_slot(held, committed) in {0, 1, 2} - {held, committed}
