"""Independent replays in processes of their own, a few at once, and how far they are."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.convergence.setting import Setting
from benchmarks.heterogeneous.processes import ROOT
from peer.processes import die_with_parent

AT_ONCE = 2
TELL_SECONDS = 15.0
START_UPDATES = 5
"""of a job, before which its process still loads its libraries"""

Tell = Callable[[str], None]


class JobFailed(Exception):
    """A replay ended before it was done; the message is one sentence."""


@dataclass(frozen=True)
class Job:
    variant: str
    seed: int


@dataclass(frozen=True)
class Run:
    """What one variant did with one seed."""

    variant: str
    seed: int
    curve: tuple[tuple[int, float], ...]
    """updates made, held-out bits per byte"""
    merged_samples: int
    seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    """further ones, of real peers"""

    @property
    def final(self) -> float:
        """Held-out bits per byte at the end."""
        return self.curve[-1][1]


class Progress:
    """Speed and remaining time, for whoever waits."""

    def __init__(self, total: int, tell: Tell) -> None:
        self._total, self._tell = total, tell
        self._began = self._told = time.monotonic()
        self._done = 0

    def update(self) -> None:
        self._done += 1
        now = time.monotonic()
        if now - self._told >= TELL_SECONDS and self._done > START_UPDATES:
            self._told = now
            speed = self._done / (now - self._began)
            minutes = (self._total - self._done) / speed / 60
            self._tell(f"{self._done:,} of {self._total:,} updates, {speed:.1f} a second, {minutes:.1f} min left")


def run_jobs(setting: Setting, jobs: Sequence[Job], tell: Tell, at_once: int = AT_ONCE) -> list[Run]:
    """Do all jobs, in this order, `at_once` at a time. Raises `JobFailed`; whatever happens, no process is left."""
    progress = Progress(len(jobs) * setting.updates, tell)
    said: queue.Queue[tuple[Job, dict[str, Any] | None]] = queue.Queue()
    running: dict[Job, subprocess.Popen[bytes]] = {}
    waiting, runs = list(jobs), dict[Job, Run]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[job] = _start(setting, job, said)
            job, event = said.get()
            if event is None:
                code = running.pop(job).wait()
                if job not in runs:
                    raise JobFailed(f"the replay of {job.variant!r}, seed {job.seed}, ended with exit code {code}")
            elif event["event"] == "Updated":
                progress.update()
            elif event["event"] == "Done":
                curve = tuple((int(update), float(bits)) for update, bits in event["curve"])
                run = runs[job] = Run(job.variant, job.seed, curve, event["merged_samples"], event["seconds"])
                tell(f"{job.variant}, seed {job.seed}: {run.final:.4f} bits per byte in {run.seconds:.0f} s")
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return [runs[job] for job in jobs]


def _start(setting: Setting, job: Job, said: queue.Queue[tuple[Job, dict[str, Any] | None]]) -> subprocess.Popen[bytes]:
    task = json.dumps({**asdict(job), "setting": asdict(setting)})
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.convergence.replay", task],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        start_new_session=True,  # Ctrl-C is ours to interpret
        preexec_fn=die_with_parent,
    )
    threading.Thread(target=_read, args=(job, process, said), daemon=True).start()
    return process


def _read(job: Job, process: subprocess.Popen[bytes], said: queue.Queue[tuple[Job, dict[str, Any] | None]]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        said.put((job, json.loads(line)))
    said.put((job, None))
