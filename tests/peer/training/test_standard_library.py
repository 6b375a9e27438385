from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from peer.errors import DataUnavailable
from peer.training.standard_library import is_held_out, standard_library_parts

ROOT = Path(sysconfig.get_paths()["stdlib"])


def names(parts):
    return [part.path.relative_to(ROOT).as_posix() for part in parts]


def test_this_python_has_text_enough():
    training, heldout = standard_library_parts()
    assert sum(part.size for part in training) > 3_000_000
    assert 0.01 < sum(part.size for part in heldout) / sum(part.size for part in training) < 0.25


def test_parts_are_whole_files_in_order():
    training, heldout = standard_library_parts()
    assert names(training) == sorted(names(training))
    assert names(heldout) == sorted(names(heldout))
    assert all(part.offset == 0 and part.size == part.path.stat().st_size > 0 for part in [*training, *heldout])
    assert not set(names(training)) & set(names(heldout))


def test_what_is_not_the_library_is_left_out():
    training, heldout = standard_library_parts()
    folders = {folder for name in names([*training, *heldout]) for folder in Path(name).parts[:-1]}
    assert not folders & {"test", "tests", "idle_test", "site-packages", "dist-packages", "lib2to3", "__pycache__"}
    assert {"ast.py", "json/decoder.py"} <= set(names([*training, *heldout]))


def test_holding_out_follows_from_the_path_alone(tmp_path):
    library = [f"module{number}.py" for number in range(2000)]
    held = sum(map(is_held_out, library))
    assert 60 < held < 140  # one in twenty
    for name in library[:200]:
        (tmp_path / name).write_text("x = 1\n")
    _, heldout = standard_library_parts(tmp_path)
    assert [part.path.name for part in heldout] == sorted(filter(is_held_out, library[:200]))


def test_python_without_sources(tmp_path):
    with pytest.raises(DataUnavailable, match="no sources of its standard library"):
        standard_library_parts(tmp_path)
