"""One run of the benchmark: systems one after the other, on the same links, beside the same solo speeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.heterogeneous.leftovers import Run
from benchmarks.heterogeneous.measure import (
    FULL,
    QUICK,
    Length,
    Observation,
    choose_window,
    failed,
    judged,
    measured,
)
from benchmarks.heterogeneous.meter import Meter
from benchmarks.heterogeneous.network import Network
from benchmarks.heterogeneous.processes import PeerEnded, Processes
from benchmarks.heterogeneous.setting import Setting
from benchmarks.heterogeneous.solo import measure_solo
from benchmarks.heterogeneous.systems import Stage, System, system_of

Result = dict[str, Any]
Tell = Callable[[str], None]
Director = Callable[[Stage, Observation], bool]
"""Looks at what has happened so far, may change the links, and says whether the run is over."""
LOOK_SECONDS = 0.5
MAX_WINDOWS = 8
"""times the shortest window, or as many epochs without any wait, after which a system is given up"""


class TookTooLong(PeerEnded):
    """The system did not do what was waited for."""

    def __init__(self, reason: str, observation: Observation) -> None:
        peers = sorted({peer for commit in observation.commits for peer in commit.samples})
        super().__init__(f"{reason}: {len(observation.commits)} updates, with samples of peers {peers}")
        self.observation = observation


def compare(setting: Setting, names: Sequence[str], run: Run, tell: Tell, length: Length | None = None) -> list[Result]:
    """Measure these systems in this setting, one after the other, in windows of the usual length or this one."""
    length = length or usual_length(setting)
    before = solo(setting, run.directory / f"solo-before-{time.monotonic_ns()}", tell)
    results = []
    for name in names:
        tell(f"{name} …")
        results.append(measure_one(setting, system_of(name, setting), run, length))
        tell(f"{name}: {brief(results[-1])}")
    after = solo(setting, run.directory / f"solo-after-{time.monotonic_ns()}", tell)
    return [judged(setting, result, before, after) for result in results]


def solo(setting: Setting, directory: Path, tell: Tell) -> tuple[float, ...]:
    """The speed of each device alone."""
    speeds = measure_solo(setting, directory)
    tell("alone: " + ", ".join(f"{speed:.1f}" for speed in speeds) + f" samples/s, {sum(speeds):.1f} in all")
    return speeds


def usual_length(setting: Setting) -> Length:
    return QUICK if setting.quick else FULL


def measure_one(setting: Setting, system: System, run: Run, length: Length) -> Result:
    """Run one system until its window is closed. Never raises for what the system does."""

    def is_over(_stage: Stage, observation: Observation) -> bool:
        settled = observation.settled
        return settled is not None and choose_window(observation.commits, settled, length) is not None

    patience = MAX_WINDOWS * max(length.seconds, length.epochs * setting.epoch_seconds)
    try:
        observation, meter = perform(setting, system, run, is_over, patience)
    except TookTooLong as error:
        return {**failed(system.name, str(error)), **error.observation.extras}
    except PeerEnded as error:
        return failed(system.name, str(error))
    assert observation.settled is not None
    window = choose_window(observation.commits, observation.settled, length)
    assert window is not None
    return measured(setting, system.name, observation, window, meter.readings)


def perform(
    setting: Setting, system: System, run: Run, director: Director, patience_seconds: float
) -> tuple[Observation, Meter]:
    """Run one system on fresh links until the director says that it is over.

    Raises `PeerEnded` if a process ends, `TookTooLong` if it is not over so long after everybody has joined.
    """
    directory = run.directory / f"{system.name}-{time.monotonic_ns()}"
    directory.mkdir()
    with ExitStack() as stack:
        network = stack.enter_context(Network(run.name, setting.links))
        processes = Processes(directory)
        if run.logs:
            stack.callback(processes.keep, run.logs / directory.name)
        stack.callback(processes.end)
        stage = Stage(setting, network, processes, directory)
        meter = stack.enter_context(Meter(network.switch, len(setting.speeds)))
        began = time.monotonic()
        system.start(stage)
        settling = system.patience_seconds(setting)
        settled: tuple[float, float] | None = None  # when, and the processor seconds used until then
        while True:
            processes.check()
            observation = system.observe(stage)
            now = time.monotonic()
            if settled is None and observation.settled is not None:
                settled = now, processes.busy_seconds()
            if director(stage, observation) and settled is not None:
                busy = (processes.busy_seconds() - settled[1]) / max(now - settled[0], LOOK_SECONDS)
                return replace(observation, extras={**observation.extras, "own_busy_cores": busy}), meter
            if settled is None and now - began > settling:
                raise TookTooLong(f"not everybody took part within {settling:.0f} s", observation)
            if settled is not None and now - settled[0] > patience_seconds:
                raise TookTooLong(f"it made too few updates within {patience_seconds:.0f} s", observation)
            time.sleep(LOOK_SECONDS)


def brief(result: Result) -> str:
    """A result in a few words."""
    if result["samples_per_s"] is None:
        return f"void, {result['void']}"
    return f"{result['samples_per_s']:.1f} samples/s in {result['epochs']} epochs"
