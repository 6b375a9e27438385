from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch

from peer.errors import WorkerFailed
from peer.training.gathering import Gathering, Work
from peer.training.measuring import Cost

EPOCH = 3


class Counting:
    """A pretended replica: the gradient of sample i is 2^i in a vector of one number, its loss 1."""

    def __init__(self, fails_above=10**9, poisoned=(), seconds=0.0):
        self.slots = [-1.0, -2.0, -3.0]
        self.worked, self.weights = [], []
        self.loaded = EPOCH
        """the epoch of the weights, and for each microbatch what it was"""
        self.fails_above, self.poisoned, self.seconds = fails_above, poisoned, seconds
        self.gradient = 0.0

    def work(self, tokens):
        if len(tokens) > self.fails_above:
            raise torch.OutOfMemoryError("no room")
        time.sleep(self.seconds * len(tokens))
        self.worked.append(tokens.tolist())
        self.weights.append(self.loaded)
        self.gradient = float(sum(math.nan if index in self.poisoned else 2**index for index in tokens.tolist()))
        return float(len(tokens))

    def has_finite_gradient(self):
        return math.isfinite(self.gradient)

    def add_to_slot(self, source, target):
        self.slots[target] = self.gradient + (0.0 if source is None else self.slots[source])


class Setup:
    def __init__(self, microbatch=4, cost=None, pace=None, **replica):
        self.replica, self.commits, self.releases = Counting(**replica), [], 0
        self.gathering = Gathering(self.replica, self.tokens, pace, self.release, self.refresh)
        self.orders, self.refreshes = {}, 0
        """epochs of weights that are ordered before so many microbatches have been begun"""
        self.gathering.microbatch, self.gathering.cost = microbatch, cost or Cost(0.0, 1e-6)

    def tokens(self, _epoch, first_index, count):
        return np.arange(first_index, first_index + count)

    def release(self):
        self.releases += 1

    def refresh(self):
        self.replica.loaded = self.orders.get(self.refreshes, self.replica.loaded)
        self.refreshes += 1
        return self.replica.loaded

    def gather(self, quota, first_index=0, deadline=None, stop_after=10**9, held=0):
        self.commits.clear()
        held_sum = self.replica.slots[held]

        def commit(given):
            self.commits.append(given)
            # What counts is there when it is said, also while the next microbatch is being written.
            assert self.replica.slots[given.slot] == 2 ** (first_index + given.samples) - 2**first_index
            # Nothing ever happens to what was handed in before.
            assert self.replica.slots[held] == held_sum

        work = Work(1, EPOCH, quota, first_index, deadline, held)
        return self.gathering.gather(work, lambda: len(self.commits) >= stop_after, commit)


def test_whole_quota_in_order_the_last_microbatch_shrinks():
    setup = Setup()
    assert setup.gather(10) == ""
    assert setup.replica.worked == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [commit.samples for commit in setup.commits] == [4, 8, 10]
    assert setup.commits[-1].loss_sum == 10.0


@pytest.mark.parametrize("held", range(3))
def test_the_two_slots_that_are_not_held_take_turns(held):
    setup = Setup()
    setup.gather(16, held=held)
    slots = [commit.slot for commit in setup.commits]
    assert set(slots) == {0, 1, 2} - {held}
    assert slots[2:] == slots[:2]


def test_next_epoch_begins_with_an_empty_sum():
    setup = Setup()
    held = 0
    for first_index in (0, 5, 1):
        setup.gather(12, first_index, held=held)
        held = setup.commits[-1].slot
        assert setup.replica.slots[held] == 2 ** (first_index + 12) - 2**first_index


def test_weights_change_between_microbatches_and_stale_samples_are_counted():
    setup = Setup()
    setup.replica.loaded = EPOCH - 1
    setup.orders = {2: EPOCH}
    setup.gather(14)
    assert setup.replica.weights == [EPOCH - 1, EPOCH - 1, EPOCH, EPOCH]
    assert [commit.stale for commit in setup.commits] == [4, 8, 8, 8]
    setup.gather(14)
    assert setup.commits[-1].stale == 0


def test_weights_of_a_later_epoch_are_not_stale():
    setup = Setup()
    setup.orders = {1: EPOCH + 1}
    setup.gather(10)
    assert setup.commits[-1].stale == 0


def test_after_memory_ran_out_the_newest_weights_are_used():
    setup = Setup(microbatch=8, fails_above=5)
    setup.replica.loaded = EPOCH - 1
    setup.orders = {1: EPOCH}
    setup.gather(8)
    assert setup.replica.weights == [EPOCH, EPOCH]
    assert setup.commits[-1].stale == 0


def test_stopping_leaves_what_there_is():
    setup = Setup()
    setup.gather(100, stop_after=2)
    assert setup.commits[-1].samples == 8


def test_stopped_before_it_began():
    setup = Setup()
    assert setup.gather(100, stop_after=0) == ""
    assert not setup.commits


def test_deadline_is_met_with_as_much_as_fits():
    setup = Setup(cost=Cost(0.0, 0.01), seconds=0.01)
    began = time.monotonic()
    setup.gather(1000, deadline=began + 0.3)
    took = time.monotonic() - began
    assert took < 0.3 + 0.2  # in time to a sample, but for a busy machine
    assert 10 <= setup.commits[-1].samples <= 30
    assert len(setup.replica.worked[0]) == 4


def test_deadline_that_has_passed():
    setup = Setup(cost=Cost(0.0, 0.01))
    setup.gather(10, deadline=time.monotonic() - 1)
    assert not setup.commits


def test_out_of_memory_halves_the_microbatch_and_loses_nothing():
    setup = Setup(microbatch=16, fails_above=5)
    assert setup.gather(18) == "memory ran out; microbatches now have 4 samples instead of 8"
    assert setup.replica.worked == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [16, 17]]
    assert setup.releases == 2 and setup.gathering.microbatch == 4
    assert setup.gather(8) == ""


def test_out_of_memory_for_one_sample():
    with pytest.raises(WorkerFailed, match="no memory for a single sample"):
        Setup(fails_above=0).gather(10)


def test_other_errors_are_not_hidden():
    setup = Setup()
    setup.replica.work = lambda _tokens: 1 / 0
    with pytest.raises(ZeroDivisionError):
        setup.gather(10)


def test_what_comes_before_a_gradient_that_is_no_number_counts():
    setup = Setup(poisoned={6})
    assert "was not finite in epoch 3" in setup.gather(10)
    assert [commit.samples for commit in setup.commits] == [4]


def test_trying_touches_one_slot():
    setup = Setup(fails_above=8)
    assert setup.gathering.try_once(8, 1) and not setup.gathering.try_once(9, 1)
    assert setup.replica.slots == [-1.0, 2**8 - 1, -3.0]
    assert setup.releases == 1


class RecordingPace:
    def __init__(self):
        self.overruns, self.said = 7, []

    def begin(self, samples):
        self.said.append(samples)

    def finish(self):
        self.said.append("finish")
        self.overruns += 1


def test_every_microbatch_is_paced_and_overruns_are_counted_by_epoch():
    pace = RecordingPace()
    setup = Setup(pace=pace)
    for _ in range(2):
        setup.gather(6)
        assert setup.commits[-1].overruns == 2
    setup.gathering.try_once(3, 1)
    assert pace.said == [4, "finish", 2, "finish"] * 2
