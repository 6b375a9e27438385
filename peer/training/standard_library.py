"""The text that is on every machine: the sources of Python's own standard library."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

from peer.errors import DataUnavailable
from peer.training.text import Part

LEFT_OUT = {"test", "tests", "idle_test", "lib2to3", "site-packages", "dist-packages", "__pycache__"}
"""folders that are not the library itself, or are not in every Python"""
HELDOUT_ONE_IN = 20


def standard_library_parts(root: Path | None = None) -> tuple[list[Part], list[Part]]:
    """Training and held-out files, each sorted by path. Only their sizes are looked at.

    Whether a file is held out follows from its path alone, so it is so on every Python that has the file.
    Raises `DataUnavailable` where Python came without its sources.
    """
    root = root or Path(sysconfig.get_paths()["stdlib"])
    training: list[Part] = []
    heldout: list[Part] = []
    for name in sorted(_source_names(root)):
        size = (root / name).stat().st_size
        if size:
            (heldout if is_held_out(name) else training).append(Part(root / name, 0, size))
    if not training or not heldout:
        raise DataUnavailable(
            f"this Python has no sources of its standard library in {root}; "
            "use a Python from python.org, conda or your system, or join a run that trains on files"
        )
    return training, heldout


def is_held_out(name: str) -> bool:
    """`name`: path below the library's root, with forward slashes."""
    drawn = hashlib.sha256(b"minga held-out " + name.encode()).digest()
    return int.from_bytes(drawn[:8], "big") % HELDOUT_ONE_IN == 0


def _source_names(root: Path) -> list[str]:
    names = []
    folders = [root]
    while folders:
        try:
            entries = list(folders.pop().iterdir())
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir():
                if entry.name not in LEFT_OUT and not entry.is_symlink():
                    folders.append(entry)
            elif entry.suffix == ".py" and entry.is_file():
                names.append(entry.relative_to(root).as_posix())
    return names
