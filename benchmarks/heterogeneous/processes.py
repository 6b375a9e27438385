"""The processes of one system, one a peer, and everything they say: a JSON object a line on standard output."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from peer.processes import die_with_parent

ROOT = Path(__file__).parents[2]
"""of the repository, where `python -m` finds all modules"""
AWAIT_SECONDS = 240.0
AWAIT_POLL_SECONDS = 0.05


class PeerEnded(Exception):
    """A process ended that should have gone on; the message is one sentence."""


@dataclass(frozen=True)
class Said:
    """One event of one peer."""

    peer: int
    at: float
    """on the monotonic clock: when the peer said so, or when we read it"""
    event: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.event.get("event", ""))


class Processes:
    """Started one by one; `end` kills them all, and forgets nothing that they said."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._said: list[Said] = []
        self._news = threading.Condition()

    def start(self, peer: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a peer's process. Call it from the main thread: the kernel ends the process with the thread."""
        with self._stderr(peer).open("ab") as stderr:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=stderr,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, **environment, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is ours to interpret
                preexec_fn=die_with_parent,
            )
        self._processes[peer] = process
        threading.Thread(target=self._read, args=(peer, process), daemon=True).start()

    def said(self) -> list[Said]:
        """Everything up to now, in the order in which it was read."""
        with self._news:
            return list(self._said)

    def wait(self, seconds: float) -> None:
        """Until somebody says something, or so long."""
        with self._news:
            self._news.wait(seconds)

    def wait_for(self, peer: int, name: str, seconds: float) -> Said:
        """The first event of this name from this peer. Raises `PeerEnded`, also when it does not come in time."""
        deadline = time.monotonic() + seconds
        while True:
            for said in self.said():
                if said.peer == peer and said.name == name:
                    return said
            self.check()
            left = deadline - time.monotonic()
            if left <= 0:
                raise PeerEnded(f"peer {peer} did not get ready within {seconds:.0f} s{self._last_words(peer)}")
            self.wait(min(left, 0.5))

    def check(self) -> None:
        """Raises `PeerEnded` if a process is no longer there."""
        for peer, process in self._processes.items():
            code = process.poll()
            if code is not None:
                raise PeerEnded(f"peer {peer} ended with exit code {code}{self._last_words(peer)}")

    def busy_seconds(self) -> float:
        """Processor seconds that the processes and all their descendants have used so far."""
        whole = 0.0
        for process in self._processes.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                top = psutil.Process(process.pid)
                for one in (top, *top.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        used = one.cpu_times()
                        whole += used.user + used.system
        return whole

    def pid(self, peer: int) -> int:
        return self._processes[peer].pid

    def end(self) -> None:
        """Kill what is still there."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def keep(self, target: Path) -> None:
        """Write everything that was said, and all of standard error, into a new directory."""
        target.mkdir(parents=True)
        lines = (json.dumps({**said.event, "said_by": said.peer, "at": said.at}) for said in self.said())
        (target / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
        for peer in self._processes:
            shutil.copy(self._stderr(peer), target)

    def _read(self, peer: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            at = time.monotonic()
            try:
                event = json.loads(line)
                said = Said(peer, float(event.get("at", at)), event)
            except (ValueError, TypeError, AttributeError):
                continue  # a library's remark
            with self._news:
                self._said.append(said)
                self._news.notify_all()

    def _stderr(self, peer: int) -> Path:
        return self._directory / f"stderr-{peer}"

    def _last_words(self, peer: int) -> str:
        lines = self._stderr(peer).read_text(errors="replace").strip().splitlines()
        return f": {lines[-1][:300]}" if lines else ""


def say(event: str, **facts: Any) -> None:
    """For a peer's process: one event, in one write, so that lines of several processes never mix."""
    line = json.dumps({"event": event, "at": time.monotonic(), **facts}) + "\n"
    os.write(1, line.encode())


def announce(path: Path, text: str = "") -> None:
    """Write a file so that whoever waits for it sees all of it."""
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)


def await_file(path: Path) -> Path:
    """Until another process has announced it; ends this process if that takes far too long."""
    deadline = time.monotonic() + AWAIT_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            sys.exit(f"{path.name} did not come within {AWAIT_SECONDS:.0f} s")
        time.sleep(AWAIT_POLL_SECONDS)
    return path
