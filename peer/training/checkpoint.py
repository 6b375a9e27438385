"""A peer's state on disk: weights, optimizer moments and where in the run they belong.

One safetensors file a checkpoint, `epoch-000000012.safetensors`, with three tensors of P float32 numbers and a digest
of them. A checkpoint is either complete under its name or not there; the last two are kept, so that a damaged one
costs epochs and not the run.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors

from peer.errors import CheckpointFailed, WrongRun
from peer.training.tensorfile import PARTIAL, digest_of, write_tensors
from protocol.units import Epoch, RunId

Vector = npt.NDArray[np.float32]

KEPT = 2
NAME = "epoch-{:09d}.safetensors"
PATTERN = "epoch-*.safetensors"
TENSORS = ("weights", "m", "v")

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class SavedState:
    """All that a stopped peer needs to go on. `weights`, `m` and `v` have the shape (P,)."""

    run_id: RunId
    epoch: Epoch
    """updates that have been committed"""
    lineage: str
    """names the history of commits that led here"""
    weights: Vector
    m: Vector
    v: Vector
    counters: dict[str, int]


def save(directory: Path, state: SavedState) -> Path:
    """Write a checkpoint and return its path; of others, only the one before it stays.

    Raises `CheckpointFailed` (the disk is full, say): then no part of it remains, and earlier ones are untouched.
    """
    path = directory / NAME.format(state.epoch)
    tensors = {"weights": state.weights, "m": state.m, "v": state.v}
    metadata = {
        "run_id": state.run_id,
        "epoch": str(state.epoch),
        "lineage": state.lineage,
        "counters": json.dumps(state.counters, sort_keys=True),
        "sha256": digest_of(tensors.values()),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for left in directory.glob(PATTERN + PARTIAL):
            left.unlink(missing_ok=True)  # of a crash
        write_tensors(path, tensors, metadata)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            why, remedy = "the disk is full", "free some space"
        else:
            why, remedy = str(error.strerror or error), "check that the directory can be written"
        raise CheckpointFailed(
            f"the checkpoint of epoch {state.epoch} was not written to {directory} ({why}), earlier ones are kept; "
            f"{remedy}"
        ) from None
    kept = [other for other in _paths(directory) if other.name <= path.name][:KEPT]
    for other in _paths(directory):
        if other not in kept:  # older ones; or later ones, of a history that this peer has given up
            with contextlib.suppress(OSError):
                other.unlink()
    return path


def load_latest(directory: Path, run_id: RunId, say: Callable[[str], object] = _LOGGER.warning) -> SavedState | None:
    """The newest checkpoint that is whole, or None. Passes over damaged ones, telling `say` a sentence for each.

    Raises `WrongRun` if it belongs to another run.
    """
    for path in _paths(directory):
        state = _load(path)
        if state is None:
            say(f"the checkpoint {path} is damaged and was passed over; it can be removed")
        elif state.run_id != run_id:
            raise WrongRun(
                f"the checkpoints in {directory} belong to run {state.run_id[:16]}, not to {run_id[:16]}; "
                "choose another state directory"
            )
        else:
            return state
    return None


def _paths(directory: Path) -> list[Path]:
    """Newest first: epochs have a fixed number of digits."""
    return sorted(directory.glob(PATTERN), reverse=True)


def _load(path: Path) -> SavedState | None:
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata()
            weights, m, v = (np.ascontiguousarray(file.get_tensor(name)) for name in TENSORS)
        counters = json.loads(metadata["counters"])
        state = SavedState(metadata["run_id"], int(metadata["epoch"]), metadata["lineage"], weights, m, v, counters)
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError):
        return None
    whole = (
        weights.ndim == 1
        and all(vector.dtype == np.float32 and vector.shape == weights.shape for vector in (weights, m, v))
        and isinstance(counters, dict)
        and all(type(value) is int for value in counters.values())
        and digest_of((weights, m, v)) == metadata.get("sha256")
    )
    return state if whole else None
