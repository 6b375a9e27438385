"""The run's text on this machine: what is trained on, and what is held out to measure by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from peer.errors import DataUnavailable
from peer.training.standard_library import standard_library_parts
from peer.training.text import Part, Text, split
from peer.training.textfiles import describe_files, prepare_file
from protocol.manifest import Manifest

__all__ = ["Corpus", "describe_files", "open_corpus"]

HELDOUT_DIVISOR = 20
MAX_HELDOUT = 1 << 20
"""bytes; of kind `files`, the last twentieth is held out, but not more than this"""


class Corpus:
    """Training text and held-out text, in samples of `sequence_length` + 1 bytes."""

    def __init__(self, training: Text, heldout: Text, sequence_length: int, evaluation_samples: int) -> None:
        self.training_size, self.heldout_size = training.size, heldout.size
        self.sample_bytes = sequence_length + 1
        self.population = training.size - sequence_length
        """how many samples there are: one starts at each byte that has enough bytes behind it"""
        self._training, self._heldout = training, heldout
        self._evaluation_samples = evaluation_samples

    def sample(self, start: int) -> npt.NDArray[np.uint8]:
        """The bytes (T + 1,) from `start`, which is in [0, `population`)."""
        return np.frombuffer(self._training.read(start, self.sample_bytes), np.uint8)

    def samples(self, starts: Sequence[int]) -> npt.NDArray[np.int64]:
        """Samples as tokens (B, T + 1)."""
        return np.stack([self.sample(start) for start in starts]).astype(np.int64)

    def evaluation(self) -> npt.NDArray[np.int64]:
        """The held-out samples (N, T + 1) behind every reported number, spread evenly over the held-out text."""
        last = self._heldout.size - self.sample_bytes
        between = max(1, self._evaluation_samples - 1)
        starts = [last * index // between for index in range(self._evaluation_samples)]
        read = [np.frombuffer(self._heldout.read(start, self.sample_bytes), np.uint8) for start in starts]
        return np.stack(read).astype(np.int64)


def open_corpus(manifest: Manifest, data_dir: Path | None, cache_dir: Path) -> Corpus:
    """Find the manifest's data and check it. Decompressed and extracted text is kept in `cache_dir`.

    The first opening of large files reads them once to check their hash. Raises `DataUnavailable`.
    """
    length = manifest.training.sequence_length
    if manifest.data.kind == "python-stdlib":
        training, heldout = standard_library_parts()
    else:
        parts = [prepare_file(entry, data_dir, cache_dir) for entry in manifest.data.files]
        training, heldout = _split_files(parts, length + 1)
    corpus = Corpus(Text(training), Text(heldout), length, manifest.training.evaluation_samples)
    if corpus.population < 1 or corpus.heldout_size < corpus.sample_bytes:
        raise DataUnavailable(
            f"the text is too small: {corpus.training_size + corpus.heldout_size} bytes do not hold a sample of "
            f"{corpus.sample_bytes} bytes for training and one to measure by; use more text or a shorter "
            "training.sequence_length"
        )
    return corpus


def _split_files(parts: list[Part], sample_bytes: int) -> tuple[list[Part], list[Part]]:
    whole = sum(part.size for part in parts)
    heldout = max(sample_bytes, min(whole // HELDOUT_DIVISOR, MAX_HELDOUT))
    return split(parts, max(0, whole - heldout))
