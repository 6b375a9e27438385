from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.errors import DataUnavailable
from peer.training import text as text_module
from peer.training.text import Part, Text, split


def write(folder, *contents):
    parts = []
    for number, content in enumerate(contents):
        path = folder / f"{number}.txt"
        path.write_bytes(content)
        parts.append(Part(path, 0, len(content)))
    return parts


def test_reads_across_files(tmp_path):
    text = Text(write(tmp_path, b"abc", b"d", b"efgh"))
    assert text.size == 8
    for start in range(8):
        for stop in range(start, 9):
            assert text.read(start, stop - start) == b"abcdefgh"[start:stop]


def test_reads_across_blocks_with_a_small_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(text_module, "BLOCK", 7)
    monkeypatch.setattr(text_module, "CACHE_BLOCKS", 2)
    contents = bytes(range(100)), bytes(range(100, 150))
    text = Text(write(tmp_path, *contents))
    for start in (0, 5, 6, 7, 90, 98, 99, 100, 120):
        assert text.read(start, 30) == b"".join(contents)[start : start + 30]


def test_opening_touches_no_file(tmp_path):
    text = Text([Part(tmp_path / "absent", 0, 10)])
    with pytest.raises(DataUnavailable, match=r"absent cannot be read any more .*; put it back"):
        text.read(0, 1)


def test_a_file_that_shrank_is_noticed(tmp_path):
    (part,) = write(tmp_path, b"0123456789")
    text = Text([part])
    part.path.write_bytes(b"01234")
    with pytest.raises(DataUnavailable, match="has become shorter"):
        text.read(0, 2)


@given(st.lists(st.integers(1, 20), max_size=5), st.integers(0, 110))
def test_split_keeps_every_byte_in_order(sizes, at):
    parts = [Part(f"file{number}", 3, size) for number, size in enumerate(sizes)]

    def places(some):
        return [(part.path, part.offset + byte) for part in some for byte in range(part.size)]

    before, after = split(parts, at)
    assert places(before) == places(parts)[:at]
    assert places(after) == places(parts)[at:]
