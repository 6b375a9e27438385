"""Where a peer keeps its things on this machine.

    <state>/<run id, 16 digits>/<slot>/   identity.key  manifest.minga  control.json  history.jsonl  checkpoints/
    <cache>/                              prepared text, shared by all runs
    <temporary>/minga-<uid>/<random>/     sockets of one running daemon

A state directory belongs to one run and one running peer at a time (a lock on `lock`); several peers on one
machine take slots 1, 2, …  `MINGA_HOME` moves state and cache. Nothing here needs cleaning by hand: locks end with
their process, and sockets of dead daemons are swept at the next start.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from peer.errors import PeerError, WrongRun
from protocol.errors import RemoteProtocolError
from protocol.manifest import SignedManifest
from protocol.units import RunId

MANIFEST_FILE = "manifest.minga"
CHECKPOINTS = "checkpoints"
"""folder of a state directory"""
MAX_SLOTS = 64


class StateInUse(PeerError):
    """Another process uses the state directory."""


def state_root() -> Path:
    home = os.environ.get("MINGA_HOME")
    return Path(home) / "state" if home else platformdirs.user_state_path("minga")


def cache_root() -> Path:
    home = os.environ.get("MINGA_HOME")
    return Path(home) / "cache" if home else platformdirs.user_cache_path("minga")


class StateDirectory:
    """A locked state directory. Hold it for as long as the peer lives."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def claim(cls, path: Path, run: RunId | None) -> StateDirectory:
        """Lock `path` for one run. Raises `StateInUse`, `WrongRun`, or `PeerError` if it cannot be written."""
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise PeerError(
                f"cannot use the state directory {path}: {error.strerror}; choose another with --state-dir"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise StateInUse(
                f"the state directory {path} is used by a running peer; stop it with "
                f"`minga leave --state-dir {path}` or choose another with --state-dir"
            ) from None
        found = read_run_id(path)
        if run is not None and found is not None and found != run:
            os.close(lock)
            raise WrongRun(
                f"the state directory {path} belongs to run {found[:16]}, not to {run[:16]}; "
                "choose another with --state-dir"
            )
        return cls(path, lock)

    @classmethod
    def claim_free_slot(cls, run: RunId) -> StateDirectory:
        """The first state directory of this run that no running peer uses."""
        for slot in range(1, MAX_SLOTS + 1):
            try:
                return cls.claim(state_root() / run[:16] / str(slot), run)
            except StateInUse:
                continue
        raise StateInUse(f"{MAX_SLOTS} peers of run {run[:16]} are running on this machine; stop one first")

    def write_manifest(self, signed: SignedManifest) -> None:
        try:
            replace_file(self.path / MANIFEST_FILE, signed.to_bytes())
        except OSError as error:
            raise PeerError(
                f"cannot write to the state directory {self.path}: {error.strerror}; "
                "free some space or choose another with --state-dir"
            ) from None

    def release(self) -> None:
        os.close(self._lock)


def read_manifest(path: Path) -> SignedManifest | None:
    """The manifest kept in a state directory, or None if there is none (or it is damaged)."""
    try:
        return SignedManifest.from_bytes((path / MANIFEST_FILE).read_bytes())
    except (OSError, RemoteProtocolError):
        return None


def read_run_id(path: Path) -> RunId | None:
    signed = read_manifest(path)
    return signed.run_id if signed else None


def all_state_directories() -> Iterator[Path]:
    """Every state directory under the default root, newest manifest first."""
    found = [path.parent for path in state_root().glob(f"*/*/{MANIFEST_FILE}")]
    yield from sorted(found, key=lambda path: (path / MANIFEST_FILE).stat().st_mtime, reverse=True)


def replace_file(path: Path, data: bytes) -> None:
    """Write a small file so that a reader sees the old or the new content, never a part."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class RuntimeDirectory:
    """A short-named private directory for the sockets of one daemon (socket paths hold about 100 characters)."""

    def __init__(self) -> None:
        root = Path(tempfile.gettempdir()) / f"minga-{os.getuid()}"
        if len(str(root)) > 60:
            root = Path("/tmp") / f"minga-{os.getuid()}"  # noqa: S108
        root.mkdir(mode=0o700, exist_ok=True)
        if root.stat().st_uid != os.getuid():
            raise PeerError(f"{root} belongs to another user; remove it or set TMPDIR to a directory of your own")
        _sweep(root)
        while True:
            self.path = root / secrets.token_hex(4)
            self.path.mkdir(mode=0o700)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if (self.path / "lock").exists():
                break
            os.close(self._lock)  # a starting neighbour swept it before we held the lock

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()  # only when it is empty


def _sweep(root: Path) -> None:
    """Remove what killed daemons left: directories whose lock nobody holds."""
    for path in root.iterdir():
        try:
            lock = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # just being made, or not ours
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(lock)
