"""The computer's own names for itself and its parts, for people to read."""

from __future__ import annotations

import platform
from pathlib import Path

MAX_NAME = 40


def computer_name() -> str:
    """A printable name for this machine, at most `MAX_NAME` characters."""
    name = "".join(c for c in platform.node().split(".")[0] if c.isprintable())[:MAX_NAME]
    return name or "peer"


def processor_name() -> str:
    """Model of the processor, as the system calls it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())[:100]
    except OSError:
        pass
    return platform.processor() or platform.machine()
