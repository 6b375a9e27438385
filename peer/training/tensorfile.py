"""Files that are whole or not there, and the safetensors format, without a copy of the tensors in memory.

The format: 8 bytes length of the header (little endian), the header in JSON (for each tensor its type, shape and
place; `__metadata__` with strings), the tensors. https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]

ALIGNMENT = 8  # bytes, of the first tensor in the file
WRITE = 1 << 24  # bytes written at a time
PARTIAL = ".partial"


def write_tensors(path: Path, tensors: Mapping[str, Vector], metadata: Mapping[str, str]) -> None:
    """Write contiguous float32 tensors to `path` as `write_file` does."""
    write_file(path, [_header(tensors, metadata), *map(_bytes_of, tensors.values())])


def write_file(path: Path, pieces: Sequence[bytes | memoryview]) -> None:
    """Write a file that is whole and on the disk after a return, and not there at all after an `OSError`.

    What was at `path` stays until the new file is complete.
    """
    partial = path.with_name(path.name + PARTIAL)
    try:
        with partial.open("wb", buffering=0) as file:
            for piece in pieces:
                _write(file.fileno(), piece)
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make renames in a directory survive a power failure."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def digest_of(tensors: Iterable[Vector]) -> str:
    """Hexadecimal SHA-256 of tensors' bytes, one after another."""
    hashed = hashlib.sha256()
    for tensor in tensors:
        hashed.update(_bytes_of(tensor))
    return hashed.hexdigest()


def _header(tensors: Mapping[str, Vector], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, tensor in tensors.items():
        place = [offset, offset + tensor.nbytes]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": place}
        offset += tensor.nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % ALIGNMENT)
    return len(encoded).to_bytes(8, "little") + encoded


def _bytes_of(tensor: Vector) -> memoryview:
    assert tensor.dtype == np.dtype("<f4") and tensor.flags.c_contiguous
    return tensor.data.cast("B")


def _write(fd: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest[:WRITE]) :]
