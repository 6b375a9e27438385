"""How much memory this machine still has, so that what cannot fit is refused before it is taken."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")


def free_bytes() -> int:
    """Main memory that can be taken without swapping: of the machine, or of the container if that is less."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        if limit != "max":
            free = min(free, int(limit) - int((CGROUP / "memory.current").read_text()) + _reclaimable_bytes())
    except (OSError, ValueError):
        pass  # no cgroup of version 2
    return max(0, free)


def _reclaimable_bytes() -> int:
    """File pages that count as used in a container but are given up on demand."""
    for line in (CGROUP / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file":
            return int(value)
    return 0


def peak_bytes() -> int:
    """The most main memory that this process has held at once since it began."""
    try:
        # Not `ru_maxrss`, which on Linux begins with what the parent held when it forked.
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def readable(size: int) -> str:
    """A size for people, in binary units."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.1f} {unit}"
    return f"{size} bytes"
