"""From a RUN.toml that a person wrote to the signed manifest that founds a run."""

from __future__ import annotations

import tomllib
from pathlib import Path

from peer.errors import PeerError
from protocol.errors import ProtocolError
from protocol.manifest import SignedManifest, parse_manifest, sign_manifest
from protocol.signing import SigningKey

MAX_RUN_TOML = 256 * 1024  # bytes


def read_run_toml(path: Path, key: SigningKey) -> SignedManifest:
    """Read and sign. In `[data]`, `files` are plain paths here (relative to the file); their hashes are added.

    Raises `PeerError`, naming the field where one is wrong.
    """
    try:
        if path.exists() and not path.is_file():
            raise PeerError(f"{path} is not a file; give the path of a RUN.toml")
        if path.stat().st_size > MAX_RUN_TOML:
            raise PeerError(f"{path} is not a run description: it is larger than {MAX_RUN_TOML} bytes")
        value = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PeerError(f"cannot read {path}: {error.strerror}; give the path of a RUN.toml") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(f"{path} is not valid TOML: {error}; correct it there") from None
    if "host" in value:
        raise PeerError(f"{path}: host: unknown key; the host is whoever runs this command, so remove it")
    data = value.get("data")
    if isinstance(data, dict) and isinstance(data.get("files"), list):
        names = data["files"]
        if not all(isinstance(name, str) and name.isprintable() for name in names):
            raise PeerError(f"{path}: data.files: give a list of paths")
        from peer.training.data import describe_files  # reads and hashes them

        described = describe_files([path.absolute().parent / name for name in names])
        data["files"] = [{**entry.model_dump(), "path": name} for entry, name in zip(described, names, strict=True)]
    try:
        return sign_manifest(parse_manifest({**value, "host": key.peer_id}), key)
    except ProtocolError as error:
        raise PeerError(f"{path}: {error}; correct it there") from None
