import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.encoding import MAX_DEPTH, canonical_bytes, decode_canonical, digest
from protocol.errors import RemoteProtocolError

integers = st.integers(-(2**53) + 1, 2**53 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.none() | st.booleans() | integers | st.floats(-9e15, 9e15) | texts
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20)


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(values)
def test_what_is_written_is_read(value: object) -> None:
    data = canonical_bytes(value)
    if depth(value) <= MAX_DEPTH:
        assert decode_canonical(data) == value
        assert canonical_bytes(decode_canonical(data)) == data
    else:
        with pytest.raises(RemoteProtocolError):
            decode_canonical(data)


@given(st.dictionaries(texts, scalars))
def test_the_order_of_keys_does_not_matter(value: dict[str, object]) -> None:
    assert canonical_bytes(dict(reversed(value.items()))) == canonical_bytes(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"a": 1}',
        b'{"b":1,"a":2}',
        b'{"a":1,"a":1}',
        b"[1.0]",
        b"[1e2]",
        b"[-0]",
        b"[01]",
        b"[NaN]",
        b"[Infinity]",
        b"[9007199254740993]",
        b'["\\u0061"]',
        b'["\\ud800"]',
        b"[1]\n",
        "[1]".encode("utf-16"),
        b"\xef\xbb\xbf[1]",
        b"\xff",
        b"[" + b"9" * 5000 + b"]",
    ],
)
def test_other_spellings_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_canonical(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_answered(data: bytes) -> None:
    try:
        value = decode_canonical(data)
    except RemoteProtocolError:
        return
    assert canonical_bytes(value) == data


def test_too_long_is_refused_unread() -> None:
    with pytest.raises(RemoteProtocolError, match="65537 bytes"):
        decode_canonical(b"[" * 65537)


@pytest.mark.parametrize("inside", [b"", b'"]",', b'"\\"]]]]",', b'"]]]]]]]]]]]]",'])
def test_brackets_in_strings_do_not_hide_depth(inside: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="nested deeper"):
        decode_canonical((b"[" + inside) * 9 + b"]" * 9)


def test_brackets_in_strings_are_not_depth() -> None:
    assert decode_canonical(json.dumps("[" * 100).encode()) == "[" * 100


@pytest.mark.parametrize("data", [b'"\\"' * 20000, b'"' * 60001, b'["\\' * 20000, b'"\\\\' * 20000])
def test_unfinished_strings_cost_no_more_than_their_length(data: bytes) -> None:
    began = time.perf_counter()
    with pytest.raises(RemoteProtocolError):
        decode_canonical(data)
    assert time.perf_counter() - began < 1


def test_domains_keep_digests_apart() -> None:
    assert digest("a", b"bc") != digest("ab", b"c")
