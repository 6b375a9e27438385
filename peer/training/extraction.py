"""Plain UTF-8 text out of a file: decompressed, and taken out of JSON lines. Streams; a file may exceed memory."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from peer.errors import DataUnavailable

CHUNK = 1 << 20  # bytes
MAX_LINE = 64 << 20  # bytes of one JSON line
COMPRESSED = (".gz", ".zst")
JSON_LINES = ".jsonl"


def is_plain(path: Path) -> bool:
    """Whether the file's own bytes are the text."""
    return path.suffix.lower() not in (*COMPRESSED, JSON_LINES)


def text_of(path: Path) -> Iterator[bytes]:
    """The text of a file, in pieces of valid UTF-8 of bounded size.

    Documents of JSON lines are joined by newlines. Raises `DataUnavailable` naming the file and the line or byte.
    """
    name = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    try:
        with _decompressed(path) as file:
            yield from _documents(path, file) if name.suffix.lower() == JSON_LINES else _checked(path, file)
    except (zlib.error, zstandard.ZstdError, gzip.BadGzipFile, EOFError) as error:
        raise DataUnavailable(f"{path} is damaged ({error}); compress the text again") from None
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError) -> DataUnavailable:
    return DataUnavailable(f"cannot read {path} ({error.strerror or error}); check that it exists and is readable")


def _decompressed(path: Path) -> BinaryIO:
    match path.suffix.lower():
        case ".gz":
            return cast(BinaryIO, gzip.open(path, "rb"))
        case ".zst":
            reader = zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(
                path.open("rb"), read_across_frames=True, closefd=True
            )
            return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, reader), CHUNK))
    return path.open("rb")


def _checked(path: Path, file: BinaryIO) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = 0
    while True:
        piece = file.read(CHUNK)
        pending = len(decoder.getstate()[0])  # bytes of a character that the last piece cut
        try:
            decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            raise DataUnavailable(
                f"{path} is not UTF-8 text at byte {position - pending + error.start}; convert it to UTF-8"
            ) from None
        if not piece:
            return
        position += len(piece)
        yield piece


def _documents(path: Path, file: BinaryIO) -> Iterator[bytes]:
    number, joint = 0, b""
    while line := file.readline(MAX_LINE):
        number += 1
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"].encode()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise DataUnavailable(
                f"line {number} of {path} is not a JSON object with a text field; correct or remove that line"
            ) from None
        yield joint + text
        joint = b"\n"
