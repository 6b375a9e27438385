from __future__ import annotations

import pytest

from peer.errors import WorkerFailed
from peer.training.measuring import Cost, Found, Memory, find_microbatch, find_paced_microbatch, find_threads


class Machine:
    """A pretended device: a microbatch takes `seconds(n)`, and memory `per_sample` bytes a sample."""

    def __init__(self, seconds, per_sample=1, free=10**9, breaks_above=10**9):
        self.seconds, self.per_sample, self.free, self.breaks_above = seconds, per_sample, free, breaks_above
        self.now, self.peak, self.sizes = 0.0, 500, []

    def work(self, samples):
        self.sizes.append(samples)
        if samples > self.breaks_above:
            return False
        self.now += self.seconds(samples)
        self.peak = max(self.peak, 500 + samples * self.per_sample)
        return True

    def memory(self):
        return Memory(lambda: self.free, lambda: self.peak)

    def find(self):
        return find_microbatch(self.work, self.memory(), lambda: self.now)

    def find_paced(self, throughput):
        return find_paced_microbatch(self.work, self.memory(), throughput, lambda: self.now)


def test_doubles_while_it_pays_and_takes_the_smallest_good_size():
    machine = Machine(lambda n: 0.0010 + 0.0001 * max(n, 32))  # up to 32 samples for nothing, then linear
    found = machine.find()
    # To 128 samples gains 8.4 %, to 256 4 %, to 512 2 %; 256 are within 3 % of the best rate, 128 are not.
    assert found.microbatch == 256
    assert found.rate == pytest.approx(256 / 0.0266)
    assert max(machine.sizes) == 1024  # a second doubling without gain ends the search


def test_device_that_gains_nothing_takes_single_samples():
    assert Machine(lambda n: 0.02 * n).find().microbatch == 1


def test_a_single_bad_measurement_does_not_end_the_search():
    assert Machine(lambda n: 0.001 + 0.00002 * n + (0.002 if n == 4 else 0)).find().microbatch >= 128


def test_microbatches_last_at_most_a_second():
    found = Machine(lambda n: 0.3 + 0.01 * n).find()
    assert found.microbatch == 64
    assert found.seconds == pytest.approx(0.94)


def test_a_single_sample_may_last_longer():
    found = Machine(lambda n: 3.0 * n**0.5).find()
    assert (found.microbatch, found.seconds) == (1, pytest.approx(3.0))


def test_memory_is_not_exceeded():
    machine = Machine(lambda _n: 0.01, per_sample=100, free=1000)
    assert machine.find().microbatch == 8
    assert max(machine.sizes) == 8


def test_memory_that_runs_out_all_the_same():
    machine = Machine(lambda _n: 0.01, breaks_above=20)
    assert machine.find().microbatch == 16


@pytest.mark.parametrize("find", [Machine.find, lambda machine: machine.find_paced(10.0)])
def test_no_memory_for_one_sample(find):
    with pytest.raises(WorkerFailed, match="no memory for a single sample; close other programs"):
        find(Machine(lambda _n: 0.01, breaks_above=0))


def test_measuring_takes_seconds_at_most():
    machine = Machine(lambda n: 0.2 + 0.0001 * n)
    machine.find()
    assert machine.now < 5.0


@pytest.mark.parametrize(("throughput", "microbatch"), [(100, 20), (60, 12), (10, 2), (1, 1), (0.2, 1)])
def test_emulated_microbatch_lasts_a_fifth_of_a_second(throughput, microbatch):
    found = Machine(lambda n: 0.001 * n).find_paced(throughput)
    assert found.microbatch == microbatch
    assert found.rate == pytest.approx(throughput)


def test_emulated_device_that_is_faster_than_this_one():
    found = Machine(lambda n: 0.1 * n).find_paced(50)
    assert found.rate == pytest.approx(10)


def test_emulated_device_with_little_memory():
    assert Machine(lambda n: 0.001 * n, per_sample=100, free=1000).find_paced(1000).microbatch == 8
    assert Machine(lambda n: 0.001 * n, breaks_above=20).find_paced(1000).microbatch == 16


def test_more_threads_must_bring_a_good_deal():
    used = []
    rates = {1: 100.0, 2: 105.0, 4: 160.0, 8: 150.0}

    def measure():
        return Found(1, 1 / rates[used[-1]], Cost(0.0, 1.0))

    assert find_threads(measure, [1, 2, 4, 8], used.append).rate == pytest.approx(160.0)
    assert used == [1, 2, 4, 8, 4]
    assert find_threads(measure, [1, 2], used.append).rate == pytest.approx(100.0)
    assert used[-1] == 1


def test_cost_answers_what_fits():
    cost = Cost(0.5, 0.25)
    assert cost.seconds(6) == pytest.approx(2.0)
    assert [cost.fitting(seconds) for seconds in (-1.0, 0.6, 0.75, 2.0, 2.2, 2.25)] == [0, 0, 1, 6, 6, 7]


def test_cost_follows_a_device_that_slows_down():
    cost = Cost(0.5, 0.25)
    for _ in range(30):
        cost.observe(6, 4.0)
    assert cost.seconds(6) == pytest.approx(4.0, rel=0.01)
    cost.observe(6, 1000.0)  # one hiccup
    assert cost.seconds(6) < 6.0
