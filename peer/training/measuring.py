"""The size of a microbatch, found by measuring; and what a microbatch of any size will take.

Larger microbatches keep a device busier, up to a point; smaller ones stop sooner and need less memory. So sizes are
doubled while that pays, and the smallest size that is about as fast as the best is taken.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from peer.errors import WorkerFailed

WORTHWHILE = 0.03  # gain in throughput that a doubling must bring
IDLE_DOUBLINGS = 2  # without such a gain, in a row, end the search: one may be bad luck on a busy computer
WORTHWHILE_THREADS = 0.1  # gain that more threads must bring
LONGEST_SECONDS = 1.0  # of a microbatch: a peer is asked to stop within one
REPEAT_SECONDS = 0.1  # a size is repeated until its repetitions have taken so long together,
REPEATS = (2, 9)  # but at least and at most so often; one that takes longer at once is not repeated
BUDGET_SECONDS = 4.0  # of measuring one number of threads; the size in work is finished
MEMORY_PART = 0.8  # of the free memory that activations may take
PACED_SECONDS = 0.2  # of a microbatch on an emulated device


@dataclass
class Cost:
    """Seconds of a microbatch of n samples: `factor` · (`fixed` + n · `per_sample`)."""

    fixed: float
    per_sample: float
    factor: float = field(default=1.0, init=False)
    """how much slower than measured the device is at present"""

    def seconds(self, samples: int) -> float:
        return self.factor * (self.fixed + samples * self.per_sample)

    def fitting(self, seconds: float) -> int:
        """How many samples a microbatch can have to last at most so long; 0 if not even one fits."""
        # The tiny addition undoes rounding where the time is just enough.
        return max(0, math.floor((seconds / self.factor - self.fixed) / self.per_sample + 1e-6))

    def observe(self, samples: int, seconds: float) -> None:
        """Follow a device whose speed changes, without believing a single outlier."""
        ratio = seconds / (self.fixed + samples * self.per_sample)
        self.factor += 0.2 * (min(max(ratio, 0.25), 4.0) - self.factor)


@dataclass(frozen=True)
class Found:
    microbatch: int
    seconds: float
    """that a microbatch of this size takes"""
    cost: Cost

    @property
    def rate(self) -> float:
        """samples per second"""
        return self.microbatch / self.seconds


class Memory:
    """Predicts whether a microbatch fits from how much the smaller ones took."""

    def __init__(self, free_bytes: Callable[[], int], peak_bytes: Callable[[], int]) -> None:
        self._free_bytes, self._peak_bytes = free_bytes, peak_bytes
        self._base = peak_bytes()
        self._largest = 0  # samples of the largest microbatch so far

    def has_room_for(self, samples: int) -> bool:
        if not self._largest:
            return True
        growth = (self._peak_bytes() - self._base) / self._largest
        return samples * growth <= MEMORY_PART * self._free_bytes()

    def worked(self, samples: int) -> None:
        self._largest = max(self._largest, samples)


def find_microbatch(work: Callable[[int], bool], memory: Memory, clock: Callable[[], float] = time.monotonic) -> Found:
    """Measure sizes 1, 2, 4, … and choose. `work(n)` does one microbatch of n samples; False: no memory for it.

    Raises `WorkerFailed` if not even one sample fits in memory.
    """
    until = clock() + BUDGET_SECONDS
    seconds: dict[int, float] = {}
    size, idle = 1, 0  # idle: doublings in a row that brought nothing
    work(size)  # the very first one also loads libraries
    while idle < IDLE_DOUBLINGS and memory.has_room_for(size):
        measured = _measure(work, size, clock)
        if measured is None:
            break
        memory.worked(size)
        if seconds and measured > LONGEST_SECONDS:
            break
        gain = (size / measured) / _best_rate(seconds) - 1 if seconds else 1.0
        idle = 0 if gain >= WORTHWHILE else idle + 1
        seconds[size] = measured
        if measured > LONGEST_SECONDS or clock() >= until:
            break
        size *= 2
    if not seconds:
        raise out_of_memory()
    enough = (1 - WORTHWHILE) * _best_rate(seconds)
    chosen = min(size for size, taken in seconds.items() if size / taken >= enough)
    return Found(chosen, seconds[chosen], _cost(seconds, chosen))


def find_threads(measure: Callable[[], Found], numbers: Sequence[int], use: Callable[[int], object]) -> Found:
    """Measure with each number of threads, ascending, and use the best from then on.

    More threads must bring a good deal: small models, and computers that others use too, are faster with one.
    """
    best, chosen = None, 0
    for number in numbers:
        use(number)
        found = measure()
        if best is None or found.rate > (1 + WORTHWHILE_THREADS) * best.rate:
            best, chosen = found, number
    assert best is not None
    use(chosen)
    return best


def find_paced_microbatch(
    work: Callable[[int], bool], memory: Memory, throughput: float, clock: Callable[[], float] = time.monotonic
) -> Found:
    """The microbatch of an emulated device: it lasts about `PACED_SECONDS` there, and fits in memory here.

    `work` computes as fast as it can. If that is slower than the device to be emulated, `seconds` says so.
    """
    wanted = max(1, round(PACED_SECONDS * throughput))
    size, chosen, taken = 1, 0, 0.0
    while memory.has_room_for(size):
        measured = _measure(work, size, clock)
        if measured is None:
            break
        memory.worked(size)
        chosen, taken = size, measured
        if size == wanted:
            break
        size = min(2 * size, wanted)
    if not chosen:
        raise out_of_memory()
    seconds = max(taken, chosen / throughput)
    return Found(chosen, seconds, Cost(0.0, seconds / chosen))


def out_of_memory() -> WorkerFailed:
    return WorkerFailed(
        "the device has no memory for a single sample; close other programs, choose another --device, or join a run "
        "with a smaller model"
    )


def _measure(work: Callable[[int], bool], size: int, clock: Callable[[], float]) -> float | None:
    """Median seconds of a microbatch; None if there was no memory for it. The first of a size also makes buffers."""
    times: list[float] = []
    while len(times) <= REPEATS[0] or (sum(times[1:]) < REPEAT_SECONDS and len(times) <= REPEATS[1]):
        began = clock()
        if not work(size):
            return None
        times.append(clock() - began)
        if times[-1] >= REPEAT_SECONDS:
            return times[-1]
    return statistics.median(times[1:])


def _best_rate(seconds: dict[int, float]) -> float:
    return max(size / taken for size, taken in seconds.items())


def _cost(seconds: dict[int, float], chosen: int) -> Cost:
    """The line through the smallest and the chosen size."""
    if chosen == 1 or seconds[chosen] <= seconds[1]:
        return Cost(0.0, seconds[chosen] / chosen)
    per_sample = (seconds[chosen] - seconds[1]) / (chosen - 1)
    return Cost(max(0.0, seconds[1] - per_sample), per_sample)
