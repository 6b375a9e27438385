"""A name and a directory for one run, and the removal of what killed runs left behind.

A run holds a lock in its directory for as long as it lives. Namespaces are named for the run, so those of a run whose
lock nobody holds are leftovers: their processes are killed and they are removed when the next run begins.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

PREFIX = "minga-bench-"
KILL_SECONDS = 10.0


class Run:
    """One run's unique name and its directory for everything that it writes; both go with it."""

    def __init__(self, logs: Path | None = None) -> None:
        """`logs`: where to keep what processes said, for whoever wants to know what went wrong."""
        self.logs = logs

    def __enter__(self) -> Run:
        sweep()
        self.name = PREFIX + secrets.token_hex(3)
        self.directory = _root() / self.name
        self.directory.mkdir(mode=0o700)
        self._lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self._lock)


def sweep() -> None:
    """Remove the namespaces, processes and directories of runs that no longer live."""
    names = namespaces(PREFIX)
    for run in {_run_of(name) for name in names} | {path.name for path in _root().glob(f"{PREFIX}*")}:
        lock = _take_lock(_root() / run / "lock")
        if lock is None:
            continue
        for name in names:
            if _run_of(name) == run:
                remove_namespace(name)
        shutil.rmtree(_root() / run, ignore_errors=True)
        if lock >= 0:
            os.close(lock)


def namespaces(prefix: str) -> list[str]:
    """Names of the network namespaces that begin like this."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)  # noqa: S607
    words = [line.split() for line in listed.stdout.splitlines()]
    return [word[0] for word in words if word and word[0].startswith(prefix)]


def kill_all_in(namespace: str) -> None:
    """Kill every process that lives in a namespace, and wait until they are gone."""
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        pids = _pids(namespace)
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def remove_namespace(namespace: str) -> None:
    """With everything in it: processes, interfaces, and their other ends."""
    kill_all_in(namespace)
    subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)  # noqa: S607


def _pids(namespace: str) -> list[int]:
    listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)  # noqa: S607
    # A zombie holds no namespace and is not listed; one that is being killed may be, until it is gone.
    return [int(pid) for pid in listed.stdout.split()]


def _run_of(namespace: str) -> str:
    return namespace[: len(PREFIX) + 6]


def _root() -> Path:
    return Path(tempfile.gettempdir())


def _take_lock(path: Path) -> int | None:
    """A descriptor if nobody holds the lock, -1 if there is no lock at all, None if its run lives."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock
