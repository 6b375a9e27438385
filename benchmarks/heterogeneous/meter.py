"""What the links carry and how busy this computer is, read twice a second.

The switch sees every peer's traffic at one place: what its port receives is what the peer has sent.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

CLONE_NEWNET = 0x40000000
INTERVAL_SECONDS = 0.5


@dataclass(frozen=True)
class Reading:
    """Counters at one moment; they only grow."""

    at: float
    """on the monotonic clock"""
    sent: tuple[float, ...]
    """bytes that each peer has sent"""
    received: tuple[float, ...]
    """bytes that each peer has received"""
    busy_seconds: float
    """of all processors together, whoever kept them busy"""


@dataclass(frozen=True)
class Traffic:
    """What passed between two moments."""

    sent: tuple[float, ...]
    received: tuple[float, ...]
    busy_cores: float
    """mean number of busy processors of the whole computer"""


def between(readings: Sequence[Reading], start: float, end: float) -> Traffic:
    """Differences of the counters, which are interpolated between readings. `start` < `end`, both within readings."""
    first, last = _at(readings, start), _at(readings, end)
    return Traffic(
        sent=tuple(b - a for a, b in zip(first.sent, last.sent, strict=True)),
        received=tuple(b - a for a, b in zip(first.received, last.received, strict=True)),
        busy_cores=(last.busy_seconds - first.busy_seconds) / (end - start),
    )


def _at(readings: Sequence[Reading], at: float) -> Reading:
    place = bisect.bisect_left(readings, at, key=lambda reading: reading.at)
    if place == 0 or place == len(readings):
        return readings[min(place, len(readings) - 1)]
    before, after = readings[place - 1], readings[place]
    part = (at - before.at) / (after.at - before.at)

    def mix(a: Sequence[float], b: Sequence[float]) -> tuple[float, ...]:
        return tuple(x + part * (y - x) for x, y in zip(a, b, strict=True))

    busy = mix((before.busy_seconds,), (after.busy_seconds,))[0]
    return Reading(at, mix(before.sent, after.sent), mix(before.received, after.received), busy)


class Meter:
    """Reads the counters of a switch's ports from a thread that has moved into the switch's namespace."""

    def __init__(self, switch: str, peers: int) -> None:
        self._switch, self._peers = switch, peers
        self.readings: list[Reading] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        _move_this_thread_into(self._switch)
        while True:
            with contextlib.suppress(OSError):
                self.readings.append(self._read())
            if self._stop.wait(INTERVAL_SECONDS):
                return

    def _read(self) -> Reading:
        sent, received = [0.0] * self._peers, [0.0] * self._peers
        at = time.monotonic()
        for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
            name, _, numbers = line.partition(":")
            if name.strip().startswith("port"):
                fields = numbers.split()
                peer = int(name.strip().removeprefix("port"))
                sent[peer], received[peer] = float(fields[0]), float(fields[8])
        return Reading(at, tuple(sent), tuple(received), busy_seconds())


def busy_seconds() -> float:
    """Processor seconds since the computer's start in which it was not idle."""
    user, nice, system, _idle, _iowait, irq, softirq = (
        int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _move_this_thread_into(namespace: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"/var/run/netns/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")
    finally:
        os.close(descriptor)
