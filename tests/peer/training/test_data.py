from __future__ import annotations

import numpy as np
import pytest

from peer.errors import DataUnavailable
from peer.training.data import open_corpus


@pytest.fixture
def numbered(tmp_path):
    """10,000 bytes in two files in which every place can be told from its neighbours."""
    whole = "".join(f"{number:04d}\n" for number in range(2000)).encode()
    paths = tmp_path / "a.txt", tmp_path / "b.txt"
    paths[0].write_bytes(whole[:3001])
    paths[1].write_bytes(whole[3001:])
    return whole, paths


def test_last_twentieth_is_held_out(make_manifest, files_section, numbered, tmp_path):
    whole, paths = numbered
    corpus = open_corpus(make_manifest(data=files_section(*paths)), None, tmp_path / "cache")
    assert (corpus.training_size, corpus.heldout_size) == (9500, 500)
    assert corpus.population == 9500 - 32
    for start in (0, 2990, 3000, 9467):
        sample = corpus.sample(start)
        assert sample.dtype == np.uint8 and sample.tobytes() == whole[start : start + 33]
    assert corpus.samples([5, 7]).dtype == np.int64
    assert corpus.samples([5, 7]).tolist() == [list(whole[5:38]), list(whole[7:40])]


def test_evaluation_samples_are_fixed_and_evenly_spread(make_manifest, files_section, numbered, tmp_path):
    whole, paths = numbered
    manifest = make_manifest(data=files_section(*paths), training={"evaluation_samples": 3})
    first = open_corpus(manifest, None, tmp_path / "cache").evaluation()
    assert [bytes(sample.tolist()) for sample in first] == [whole[s : s + 33] for s in (9500, 9733, 9967)]
    assert np.array_equal(first, open_corpus(manifest, None, tmp_path / "cache").evaluation())


def test_held_out_is_at_most_a_mebibyte(make_manifest, files_section, tmp_path):
    path = tmp_path / "large.txt"
    path.write_bytes(b"abcdefg\n" * (4 << 20))
    corpus = open_corpus(make_manifest(data=files_section(path)), None, tmp_path / "cache")
    assert corpus.heldout_size == 1 << 20


def test_smallest_text(make_manifest, files_section, tmp_path):
    path = tmp_path / "small.txt"
    path.write_bytes(bytes(range(66)))
    corpus = open_corpus(make_manifest(data=files_section(path)), None, tmp_path / "cache")
    assert corpus.population == 1
    assert corpus.sample(0).tolist() == list(range(33))
    assert corpus.evaluation().tolist() == [list(range(33, 66))] * 8
    path.write_bytes(bytes(range(65)))
    with pytest.raises(DataUnavailable, match=r"too small: 65 bytes .* use more text or a shorter"):
        open_corpus(make_manifest(data=files_section(path)), None, tmp_path / "cache")


def test_standard_library(make_manifest, tmp_path):
    corpus = open_corpus(make_manifest(), None, tmp_path / "cache")
    assert corpus.evaluation().shape == (8, 33)
    assert len(corpus.sample(corpus.population - 1)) == 33
    assert not (tmp_path / "cache").exists()
