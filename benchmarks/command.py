"""What the commands of all benchmarks that take minutes have in common."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType

DONE, NOT_ALL_KEPT, CANNOT_START, INTERRUPTED = 0, 1, 2, 130
"""exit codes"""
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InvalidSetting(Exception):
    """What was asked for cannot be measured; the message is one sentence with a remedy."""


def interruptible() -> None:
    """From now on, whatever asks this process to end raises `KeyboardInterrupt`, once."""
    for number in INTERRUPTS:
        signal.signal(number, _interrupt)


def require_writable(*paths: Path | None) -> None:
    """Better now than after ten minutes. Raises `InvalidSetting`."""
    for path in paths:
        if path is not None and not os.access(path.absolute().parent, os.W_OK):
            raise InvalidSetting(f"{path} cannot be written: there is no such folder, or it is not ours; name another")


def tell(text: str) -> None:
    """For whoever waits."""
    print(text, file=sys.stderr, flush=True)


def _interrupt(cause: int, _frame: FrameType | None) -> None:
    for number in INTERRUPTS:  # a second one would leave namespaces and processes behind
        signal.signal(number, signal.SIG_IGN)
    tell(f"ended by {signal.Signals(cause).name}; tearing everything down")
    raise KeyboardInterrupt
