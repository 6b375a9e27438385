"""Text files that a manifest names: found on this machine, checked against their hash, made plain UTF-8.

A file's content is checked once and remembered by its path, size and time of change. Compressed files and JSON
lines are turned into plain text once, in the cache, under the hash of the original; a half-written file never bears
that name. Peers on one machine share the cache and take turns in preparing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from peer.errors import DataUnavailable
from peer.training.extraction import is_plain, text_of, unreadable
from peer.training.text import Part
from protocol.manifest import TextFile


def describe_files(paths: Sequence[Path]) -> list[TextFile]:
    """Manifest entries of files on this machine; each is read once to hash it. Raises `DataUnavailable`.

    Entries bear base names: how the host's disk is laid out is no stranger's business.
    """
    described = []
    for path in paths:
        size = _size(path)
        if size == 0:
            raise DataUnavailable(f"{path} is empty; name a file that holds text")
        try:
            described.append(TextFile(path=path.name, sha256=_sha256(path), size=size))
        except ValidationError:
            raise DataUnavailable(f"the name {path.name!r} cannot stand in a manifest; rename the file") from None
    return described


def prepare_file(entry: TextFile, data_dir: Path | None, cache_dir: Path) -> Part:
    """The plain text of a manifest's file. Raises `DataUnavailable`."""
    path = _find(entry, data_dir)
    plain = path if is_plain(path) else cache_dir / f"{entry.sha256}.text"
    memory = cache_dir / f"{hashlib.sha256(str(path.absolute()).encode()).hexdigest()}.checked"
    try:
        with _locked(cache_dir):
            if not (_is_remembered(memory, path, entry) and plain.exists()):
                _check_hash(path, entry)
                if plain is path:
                    for _ in text_of(path):
                        pass  # it only has to be UTF-8
                else:
                    _replace(plain, text_of(path))
                _replace(memory, [json.dumps(_seen(path, entry)).encode()])
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            message = f"no room for prepared text in {cache_dir}; free some disk space there"
        else:
            message = f"cannot write to the cache {cache_dir} ({error.strerror}); make it writable"
        raise DataUnavailable(message) from None
    return Part(plain, 0, _size(plain))


def _find(entry: TextFile, data_dir: Path | None) -> Path:
    given = Path(entry.path)
    places = [given] if data_dir is None else [data_dir / given, data_dir / given.name, given]
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        where = f"neither in {data_dir} nor at {given}" if data_dir else f"not at {given}"
        raise DataUnavailable(f"the run's file {given.name} is {where}; name the folder that holds it with --data")
    if _size(found) != entry.size:
        raise _other_file(found, f"it has {_size(found)} bytes, not {entry.size}")
    return found


def _check_hash(path: Path, entry: TextFile) -> None:
    digest = _sha256(path)
    if digest != entry.sha256:
        raise _other_file(path, f"its SHA-256 begins with {digest[:12]}, not {entry.sha256[:12]}")


def _other_file(path: Path, how: str) -> DataUnavailable:
    return DataUnavailable(f"{path} is not the file of the run: {how}; get the same file as the host's")


@contextlib.contextmanager
def _locked(cache_dir: Path) -> Iterator[None]:
    cache_dir.mkdir(parents=True, exist_ok=True)
    with (cache_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _replace(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file that is whole or absent. What a crash left of an earlier attempt is overwritten."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def _is_remembered(memory: Path, path: Path, entry: TextFile) -> bool:
    try:
        return bool(json.loads(memory.read_text()) == _seen(path, entry))
    except (OSError, ValueError):
        return False


def _seen(path: Path, entry: TextFile) -> list[str | int]:
    status = path.stat()
    return [str(path.absolute()), status.st_size, status.st_mtime_ns, entry.sha256]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from None


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from None
