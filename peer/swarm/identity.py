"""This peer's identity: 32 secret bytes in a file that only its owner can read."""

from __future__ import annotations

import os
from pathlib import Path

from peer.swarm.errors import IdentityDamaged
from protocol.signing import SigningKey

SEED_SIZE = 32  # bytes


def load_or_create(path: Path) -> SigningKey:
    """The key in `path`; a new one is made, from the system's entropy, if there is no such file.

    Raises `IdentityDamaged` if the file is there but is no key, or other users may read it.
    """
    if path.exists():
        return _load(path)
    try:
        return _create(path)
    except OSError as error:
        raise IdentityDamaged(
            f"no identity can be kept in {path} ({error.strerror}); choose a folder that you may write to"
        ) from None


def _create(path: Path) -> SigningKey:
    """Write the seed completely before the file gets its name: a crash leaves no half of a key."""
    seed = os.urandom(SEED_SIZE)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(seed)
            file.flush()
            os.fsync(descriptor)
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)
    return SigningKey(seed)


def _load(path: Path) -> SigningKey:
    try:
        mode, seed = path.stat().st_mode, path.read_bytes()
    except OSError as error:
        raise IdentityDamaged(
            f"the identity in {path} cannot be read ({error.strerror}); make it yours and readable"
        ) from None
    if mode & 0o077:
        raise IdentityDamaged(f"other users may read the secret key in {path}; close it with: chmod 600 {path}")
    if len(seed) != SEED_SIZE:
        raise IdentityDamaged(
            f"the identity in {path} is damaged ({len(seed)} bytes instead of {SEED_SIZE}); "
            "move the file away and a new identity will be made"
        )
    return SigningKey(seed)
