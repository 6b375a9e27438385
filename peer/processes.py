"""Starting processes that never outlive this one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """For `preexec_fn`: the kernel kills the child when the thread that started it ends, however it ends (Linux).

    Elsewhere children notice by their closed control socket.
    """
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def end_all(processes: Iterable[subprocess.Popen[bytes]], patience_seconds: float) -> None:
    """Ask the processes to end, and after `patience_seconds` make them."""
    alive = [process for process in processes if process.poll() is None]
    for process in alive:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + patience_seconds
    for process in alive:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
