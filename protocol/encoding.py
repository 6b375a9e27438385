"""Canonical bytes: one value has exactly one byte string, so that it can be hashed and signed.

JSON in the form of RFC 8785 (sorted keys, shortest numbers, no white space). Decoding accepts nothing that it
would not itself have written: duplicate keys, NaN, white space or another key order are refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import rfc8785

from protocol.errors import RemoteProtocolError

DIGEST_SIZE = 32  # bytes, SHA-256
MAX_DOCUMENT_SIZE = 64 * 1024  # bytes; nothing that peers sign is larger
MAX_DEPTH = 8  # nested lists and objects

_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.?)*"?|[][{}]', re.DOTALL)
"""A whole string or a bracket; an unfinished string matches too, so that the search stays linear."""


def canonical_bytes(value: Any) -> bytes:
    """The one byte string of a JSON value.

    Integers must lie within ±2^53 and floats must be finite; whole floats beyond ±2^53 cannot be read again.
    Raises `ValueError` (`rfc8785.CanonicalizationError`) for anything else.
    """
    return bytes(rfc8785.dumps(value))


def decode_canonical(data: bytes, max_size: int = MAX_DOCUMENT_SIZE) -> Any:
    """The value whose canonical bytes are `data`.

    Raises `RemoteProtocolError` if `data` is too long, too deep, or not canonical.
    """
    if len(data) > max_size:
        raise RemoteProtocolError(f"document of {len(data)} bytes is longer than the {max_size} allowed")
    _refuse_depth(data)
    try:
        value = json.loads(data)
        again = canonical_bytes(value)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"not a canonical JSON document: {error}") from None
    if again != data:
        raise RemoteProtocolError("document is not in canonical form (RFC 8785)")
    return value


def _refuse_depth(data: bytes) -> None:
    """Bound nesting before the parser recurses."""
    depth = 0
    for token in _STRING_OR_BRACKET.findall(data):
        if token in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise RemoteProtocolError(f"document is nested deeper than {MAX_DEPTH}")
        elif token in b"]}":
            depth -= 1


def digest(domain: str, data: bytes) -> bytes:
    """SHA-256 of `data` under a domain, so that a digest of one kind never stands for another."""
    return hashlib.sha256(_prefix(domain) + data).digest()


def _prefix(domain: str) -> bytes:
    name = domain.encode()
    return b"minga1" + len(name).to_bytes(1, "big") + name
