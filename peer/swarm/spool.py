"""Where a state is collected: a sparse file whose chunks are known to be right by their hashes alone.

Nothing about progress is written down: after a break the chunks that are there are hashed again. So a spool can
be neither out of step with its file nor harmed by a crash, and serves whatever state has chunks in common with it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from peer.swarm.errors import SpoolFailed
from peer.swarm.snapshot import Hashes, chunk_hash, chunk_range, num_chunks


class Spool:
    """Chunks of one state in the file at `path`. Use as a context manager; the file stays until `take`."""

    def __init__(self, path: Path, size: int, hashes: Hashes) -> None:
        """Open or create the file and find what is already there (reads all of it: call from a thread).

        Raises `SpoolFailed` if there is no room for the rest.
        """
        self.path, self.size, self._hashes = path, size, hashes
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise self._failed(error) from None
        self.missing = {number for number in range(num_chunks(size)) if not self._is_right(number)}
        """chunks that are not there yet"""
        self.num_missing_bytes = sum(self._length(number) for number in self.missing)
        self._lock = threading.Lock()
        free = shutil.disk_usage(path.parent).free
        if free < self.num_missing_bytes:
            os.close(self._descriptor)
            raise SpoolFailed(
                f"the state needs {self.num_missing_bytes / 1e6:.0f} MB in {path.parent}, where only "
                f"{free / 1e6:.0f} MB are free; make room, then start again"
            )

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def add(self, number: int, data: bytes) -> bool:
        """Keep a chunk if it is the right one; whether it is. From any thread. Raises `SpoolFailed`."""
        start, _ = chunk_range(number, self.size)
        if len(data) != self._length(number) or hashlib.sha256(data).digest() != chunk_hash(self._hashes, number):
            return False
        try:
            if os.pwrite(self._descriptor, data, start) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise self._failed(error) from None
        with self._lock:
            if number in self.missing:
                self.missing.remove(number)
                self.num_missing_bytes -= len(data)
        return True

    def take(self) -> NDArray[np.uint8]:
        """The complete payload, read-only, mapped from a file that has no name any more."""
        payload: NDArray[np.uint8] = np.empty(0, dtype=np.uint8)  # of which no map can be made
        if self.size:
            payload = np.memmap(self.path, dtype=np.uint8, mode="r", shape=(self.size,))
        payload.flags.writeable = False
        self.path.unlink()
        return payload

    def _length(self, number: int) -> int:
        start, stop = chunk_range(number, self.size)
        return stop - start

    def _is_right(self, number: int) -> bool:
        start, stop = chunk_range(number, self.size)
        try:
            data = os.pread(self._descriptor, stop - start, start)
        except OSError:
            return False
        return hashlib.sha256(data).digest() == chunk_hash(self._hashes, number)

    def _failed(self, error: OSError) -> SpoolFailed:
        return SpoolFailed(
            f"the state cannot be kept in {self.path.parent} ({error.strerror}); make room there, then start again"
        )
