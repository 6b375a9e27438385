from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys

import pytest
import zstandard

from peer.errors import DataUnavailable
from peer.training import textfiles
from peer.training.textfiles import describe_files, prepare_file
from protocol.manifest import TextFile

DOCUMENTS = ["one\ntwo", "drei – vier", "5"]
JOINED = "one\ntwo\ndrei – vier\n5".encode()
LINES = b"".join(json.dumps({"id": n, "text": text}).encode() + b"\n" for n, text in enumerate(DOCUMENTS))
COMPRESS = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}


def entry_of(path):
    (entry,) = describe_files([path])
    return entry.model_copy(update={"path": str(path)})


def prepared(path, cache, data_dir=None):
    part = prepare_file(entry_of(path), data_dir, cache)
    return part.path.read_bytes()[part.offset :][: part.size]


@pytest.mark.parametrize("compression", COMPRESS)
def test_text_and_json_lines_in_every_compression(tmp_path, compression):
    text, lines = tmp_path / f"a.txt{compression}", tmp_path / f"a.jsonl{compression}"
    text.write_bytes(COMPRESS[compression](JOINED))
    lines.write_bytes(COMPRESS[compression](LINES + b"\n"))
    assert prepared(text, tmp_path / "cache") == JOINED
    assert prepared(lines, tmp_path / "cache") == JOINED
    assert not list((tmp_path / "cache").glob("*.partial"))


def test_several_zstd_frames(tmp_path):
    path = tmp_path / "a.zst"
    path.write_bytes(COMPRESS[".zst"](b"abc") + COMPRESS[".zst"](b"def"))
    assert prepared(path, tmp_path / "cache") == b"abcdef"


def test_text_larger_than_a_chunk(tmp_path):
    content = ("ö" * 999 + "\n").encode() * 2000  # characters lie across the borders of chunks
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(content, 1))
    assert prepared(path, tmp_path / "cache") == content


def test_a_description_names_no_folders(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert describe_files([path]) == [TextFile(path="a.txt", sha256=digest, size=3)]


def test_found_by_base_name_in_the_data_folder(tmp_path):
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "a.txt"
    path.write_bytes(b"abc")
    for given in ("/elsewhere/a.txt", "below/a.txt", "a.txt"):
        entry = entry_of(path).model_copy(update={"path": given})
        assert prepare_file(entry, tmp_path / "data", tmp_path / "cache").path == path


def test_missing(tmp_path):
    entry = TextFile(path="/elsewhere/a.txt", sha256="0" * 64, size=3)
    with pytest.raises(DataUnavailable, match=r"a.txt is not at /elsewhere/a.txt; .* --data"):
        prepare_file(entry, None, tmp_path)
    with pytest.raises(DataUnavailable, match=r"neither in .* nor at /elsewhere/a.txt; .* --data"):
        prepare_file(entry, tmp_path, tmp_path)


def test_another_file_of_that_name(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"abc")
    entry = entry_of(path)
    path.write_bytes(b"abd")
    with pytest.raises(DataUnavailable, match=r"not the file of the run: its SHA-256 begins with .*; get the same"):
        prepare_file(entry, None, tmp_path / "cache")
    path.write_bytes(b"abcd")
    with pytest.raises(DataUnavailable, match=r"it has 4 bytes, not 3"):
        prepare_file(entry, None, tmp_path / "cache")


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_not_utf8(tmp_path, name):
    content = b"x" * (2 << 20) + b"\xff\xfe"
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(DataUnavailable, match=r"is not UTF-8 text at byte 2097152; convert it"):
        prepared(path, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.text*"))


def test_utf8_cut_at_the_end(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("abcö".encode()[:-1])
    with pytest.raises(DataUnavailable, match="at byte 3"):
        prepared(path, tmp_path / "cache")


@pytest.mark.parametrize("line", [b"{", b"[1]", b'{"txt": "a"}', b'{"text": 5}', b'"text"', b"\xff", b"[" * 100_000])
def test_broken_json_line(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES + line + b"\n" + LINES)
    with pytest.raises(DataUnavailable, match=r"line 4 of .*a.jsonl is not a JSON object with a text field; correct"):
        prepared(path, tmp_path / "cache")


@pytest.mark.parametrize("name", ["a.gz", "a.zst"])
def test_damaged_compression(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(COMPRESS[path.suffix](os.urandom(1000))[:300])
    with pytest.raises(DataUnavailable, match=r"is damaged|not UTF-8"):
        prepared(path, tmp_path / "cache")


def test_content_is_checked_once(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(LINES))
    entry = entry_of(path)
    first = prepare_file(entry, None, tmp_path / "cache")
    monkeypatch.setattr(textfiles, "_sha256", lambda _path: pytest.fail("hashed again"))
    assert prepare_file(entry, None, tmp_path / "cache") == first
    monkeypatch.undo()
    os.utime(path, ns=(1, 1))
    path.write_bytes(gzip.compress(LINES, 1)[:-1] + b"x")  # same size, another content
    if path.stat().st_size == entry.size:
        with pytest.raises(DataUnavailable, match="not the file of the run"):
            prepare_file(entry, None, tmp_path / "cache")


def test_cache_that_was_emptied_is_filled_again(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"abc"))
    prepared(path, tmp_path / "cache")
    for text in (tmp_path / "cache").glob("*.text"):
        text.unlink()
    assert prepared(path, tmp_path / "cache") == b"abc"


def test_cache_that_cannot_be_written(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"abc")
    (tmp_path / "cache").write_bytes(b"a file, not a folder")
    with pytest.raises(DataUnavailable, match="cannot write to the cache"):
        prepared(path, tmp_path / "cache")


FULL_DISK = """
import resource, sys
from pathlib import Path
from peer.errors import DataUnavailable
from peer.training.textfiles import describe_files, prepare_file
path, cache = map(Path, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
(entry,) = describe_files([path])
try:
    prepare_file(entry, path.parent, cache)
except DataUnavailable as error:
    print(error)
"""


def test_no_room_for_the_decompressed_text(tmp_path):
    path, cache = tmp_path / "a.gz", tmp_path / "cache"
    path.write_bytes(gzip.compress(b"a" * 1_000_000))
    command = [sys.executable, "-c", FULL_DISK, str(path), str(cache)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == f"no room for prepared text in {cache}; free some disk space there\n"
    assert not [*cache.glob("*.partial"), *cache.glob("*.text")]


def test_empty_or_absent_file_cannot_be_described(tmp_path):
    (tmp_path / "empty").touch()
    with pytest.raises(DataUnavailable, match="is empty"):
        describe_files([tmp_path / "empty"])
    with pytest.raises(DataUnavailable, match=r"cannot read .*absent \(No such file"):
        describe_files([tmp_path / "absent"])
    (tmp_path / "a\nb").write_bytes(b"abc")
    with pytest.raises(DataUnavailable, match="cannot stand in a manifest"):
        describe_files([tmp_path / "a\nb"])
