import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import RemoteProtocolError
from protocol.signing import SigningKey, is_signed_by, peer_id_of, public_key_of

KEY = SigningKey(bytes(32))
OTHER = SigningKey(bytes([1]) * 32)


def test_peer_id_is_that_of_libp2p() -> None:
    """The example of the libp2p specification (peer-ids, Ed25519 test vector)."""
    public = bytes.fromhex("1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e")
    assert peer_id_of(public) == "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq"


@given(st.binary(min_size=32, max_size=32))
def test_peer_ids_carry_their_key(public: bytes) -> None:
    assert public_key_of(peer_id_of(public)) == public


RSA = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"


@pytest.mark.parametrize(
    "peer",
    ["", "12D3KooW", KEY.peer_id + " ", KEY.peer_id[:-1], "1" + KEY.peer_id, RSA, "ü" * 52, "0" * 52, "z" * 100_000],
)
def test_other_names_are_refused(peer: str) -> None:
    with pytest.raises(RemoteProtocolError):
        public_key_of(peer)
    assert not is_signed_by(peer, bytes(64), "test", b"data")


@given(st.binary(max_size=100), st.integers(0, 63), st.integers(1, 255))
def test_only_the_owner_signs(data: bytes, at: int, change: int) -> None:
    signature = KEY.sign("test", data)
    assert is_signed_by(KEY.peer_id, signature, "test", data)
    assert not is_signed_by(OTHER.peer_id, signature, "test", data)
    assert not is_signed_by(KEY.peer_id, signature, "tes", b"t" + data)
    assert not is_signed_by(KEY.peer_id, signature, "test", data + b"\0")
    altered = bytearray(signature)
    altered[at] ^= change
    assert not is_signed_by(KEY.peer_id, bytes(altered), "test", data)


@given(st.binary(max_size=100))
def test_any_signature_is_answered(signature: bytes) -> None:
    assert not is_signed_by(KEY.peer_id, signature, "test", b"data")
