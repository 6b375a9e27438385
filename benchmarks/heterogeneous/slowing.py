"""A device that another program uses: a peer's worker is stopped most of the time.

In each period, four times as long as a microbatch, the worker may run for a moment. The microbatch that it had begun
a period ago ends then, for its moments are past, and the next one begins. So it does a microbatch a period, as a
device would that is four times as slow, and can be asked to stop within one, too.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from peer.training.measuring import PACED_SECONDS

WORKER = "peer.training.worker"
RUNNING_PART = 0.3
"""of a microbatch's usual duration: long enough to end one and begin the next, too short for a whole one"""


@contextmanager
def slowed_worker(daemon: int, rate: float, factor: float) -> Iterator[None]:
    """Slow the worker of the peer with process `daemon` down, until the end of the context."""
    microbatch = max(1, round(PACED_SECONDS * rate)) / rate
    over = threading.Event()
    thread = threading.Thread(target=_stop_and_go, args=(_worker(daemon), microbatch, factor, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _stop_and_go(worker: psutil.Process, microbatch: float, factor: float, over: threading.Event) -> None:
    running = RUNNING_PART * microbatch
    with suppress(psutil.NoSuchProcess):
        while not over.is_set():
            worker.send_signal(signal.SIGSTOP)
            over.wait(factor * microbatch - running)
            worker.send_signal(signal.SIGCONT)
            over.wait(running)


def _worker(daemon: int) -> psutil.Process:
    for process in psutil.Process(daemon).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if WORKER in process.cmdline():
                return process
    raise RuntimeError("the peer has no worker process to slow down")
