"""Ed25519 signatures with domain separation, and the PeerID that a public key is.

A peer's key is its libp2p identity: the PeerID is an *identity multihash* of the public key, so whoever knows
a PeerID can check the peer's signatures without looking anything up. Source: libp2p specification, peer-ids.
"""

from __future__ import annotations

from functools import lru_cache

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocol.encoding import digest
from protocol.errors import RemoteProtocolError

SIGNATURE_SIZE = 64  # bytes
PUBLIC_KEY_SIZE = 32  # bytes
MAX_PEER_ID_LENGTH = 64  # characters; an Ed25519 PeerID has 52
PEER_ID_PREFIX = bytes.fromhex("002408011220")
"""Identity multihash (0x00) of length 0x24 around protobuf PublicKey{type=Ed25519, 32 bytes}."""


class SigningKey:
    """A peer's private key, made from 32 secret bytes (entropy is the caller's)."""

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.seed = seed
        raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
        self.public_key: bytes = self._key.public_key().public_bytes(*raw)
        self.peer_id: str = peer_id_of(self.public_key)

    def sign(self, domain: str, data: bytes) -> bytes:
        return self._key.sign(digest(domain, data))


def peer_id_of(public_key: bytes) -> str:
    """The base58 PeerID (`12D3KooW…`) of a 32-byte Ed25519 public key."""
    return base58.b58encode(PEER_ID_PREFIX + public_key).decode()


@lru_cache(maxsize=4096)
def public_key_of(peer_id: str) -> bytes:
    """The public key inside a base58 PeerID. Raises `RemoteProtocolError` if it is not an Ed25519 PeerID."""
    try:
        raw = bytes(base58.b58decode(peer_id)) if len(peer_id) <= MAX_PEER_ID_LENGTH else b""
    except ValueError:
        raw = b""
    key = raw[len(PEER_ID_PREFIX) :]
    # Written again and compared: base58 overlooks white space at the end, and a peer must have one name only.
    if len(key) != PUBLIC_KEY_SIZE or peer_id_of(key) != peer_id:
        raise RemoteProtocolError(f"{peer_id[:60]!r} is not an Ed25519 peer id")
    return key


def is_signed_by(peer_id: str, signature: bytes, domain: str, data: bytes) -> bool:
    """Whether `signature` over (domain, data) was made by the owner of `peer_id`."""
    try:
        key = Ed25519PublicKey.from_public_bytes(public_key_of(peer_id))
        key.verify(signature, digest(domain, data))
    except (InvalidSignature, RemoteProtocolError, ValueError):
        return False
    return True
