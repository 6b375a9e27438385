from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy

from peer.errors import CheckpointFailed, WrongRun
from peer.training.checkpoint import SavedState, load_latest, save

RUN = "ab" * 32


def state(epoch, run=RUN, size=1000):
    vectors = [np.random.default_rng(epoch + n).standard_normal(size).astype(np.float32) for n in range(3)]
    return SavedState(run, epoch, "cd" * 32, *vectors, {"total_samples": 2**53 - 1, "term": 3})


def equal(one, other):
    same = (one.run_id, one.epoch, one.lineage, one.counters) == (
        other.run_id,
        other.epoch,
        other.lineage,
        other.counters,
    )
    return same and all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("weights", "m", "v"))


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_goes_round_and_can_be_written_to(tmp_path):
    save(tmp_path / "new" / "folder", state(7))
    loaded = load_latest(tmp_path / "new" / "folder", RUN)
    assert equal(loaded, state(7))
    loaded.weights[:] = 0  # not a view of read-only memory


def test_nothing_there(tmp_path):
    assert load_latest(tmp_path, RUN) is None
    assert load_latest(tmp_path / "absent", RUN) is None


def test_other_programs_can_read_it(tmp_path):
    path = save(tmp_path, state(7))
    tensors = safetensors.numpy.load_file(path)
    assert np.array_equal(tensors["weights"], state(7).weights)


def test_the_last_two_stay(tmp_path):
    for epoch in (5, 10, 100, 1000):
        save(tmp_path, state(epoch))
    assert names(tmp_path) == ["epoch-000000100.safetensors", "epoch-000001000.safetensors"]
    assert load_latest(tmp_path, RUN).epoch == 1000


def test_what_was_saved_last_is_loaded_also_after_a_step_back(tmp_path):
    for epoch in (90, 100, 60):
        save(tmp_path, state(epoch))
    assert load_latest(tmp_path, RUN).epoch == 60


def test_saving_an_epoch_again_replaces_it(tmp_path):
    save(tmp_path, state(5))
    save(tmp_path, replace(state(5), lineage="ef" * 32))
    assert names(tmp_path) == ["epoch-000000005.safetensors"]
    assert load_latest(tmp_path, RUN).lineage == "ef" * 32


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped bit", "noise", "folder", "other tensors"])
def test_damaged_one_is_passed_over_and_said(tmp_path, damage):
    save(tmp_path, state(1))
    path = save(tmp_path, state(2))
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    match damage:
        case "cut":
            path.write_bytes(content[:-10])
        case "empty":
            path.write_bytes(b"")
        case "flipped bit":
            path.write_bytes(content)
        case "noise":
            path.write_bytes(os.urandom(5000))
        case "folder":
            path.unlink()
            path.mkdir()
        case "other tensors":
            safetensors.numpy.save_file({"weights": np.zeros(3, np.float32)}, path)
    said = []
    assert equal(load_latest(tmp_path, RUN, said.append), state(1))
    assert said == [f"the checkpoint {path} is damaged and was passed over; it can be removed"]


def test_another_run_is_refused(tmp_path):
    save(tmp_path, state(1, run="12" * 32))
    with pytest.raises(WrongRun, match=f"belong to run {'12' * 8}, not to {'ab' * 8}; choose another"):
        load_latest(tmp_path, RUN)


def test_left_overs_of_a_crash_are_removed(tmp_path):
    (tmp_path / "epoch-000000004.safetensors.partial").write_bytes(b"half")
    save(tmp_path, state(5))
    assert names(tmp_path) == ["epoch-000000005.safetensors"]


def test_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointFailed, match=r"epoch 5 was not written to .*; check that the directory can be"):
        save(tmp_path / "file", state(5))


SAVE_TWICE = """
import resource, sys
from pathlib import Path
import numpy as np
from peer.errors import CheckpointFailed
from peer.training.checkpoint import SavedState, load_latest, save
directory, limit = Path(sys.argv[1]), int(sys.argv[2])
def state(epoch, size):
    return SavedState("ab" * 32, epoch, "cd" * 32, *(np.ones(size, np.float32) for _ in "wmv"), {})
save(directory, state(1, 1000))
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    save(directory, state(2, 200_000))
except CheckpointFailed as error:
    print(error)
assert load_latest(directory, "ab" * 32).epoch == 1
print([path.name for path in directory.iterdir()])
"""
SAYS = (
    "the checkpoint of epoch 2 was not written to {} (the disk is full), earlier ones are kept; free some space\n"
    "['epoch-000000001.safetensors']\n"
)


def test_file_that_may_not_grow(tmp_path):
    command = [sys.executable, "-c", SAVE_TWICE, str(tmp_path), "1000000"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == SAYS.format(tmp_path)


def test_full_disk(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small file system to fill")
    try:
        command = [sys.executable, "-c", SAVE_TWICE, str(tmp_path), "0"]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == SAYS.format(tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
