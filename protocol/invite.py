"""The invite: one line that is all a newcomer needs.

    minga:1:<base58 of the run's 32-byte digest>?peer=<multiaddr>&peer=<multiaddr>…&sum=<6 base58 characters>

The digest is that of the manifest, so whoever answers at the addresses cannot alter the run. The sum is taken
over everything before it and comes last, so that an invite that was cut short or mistyped is recognised as
such.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import base58

from protocol import PROTOCOL_VERSION
from protocol.encoding import DIGEST_SIZE, digest
from protocol.errors import IncompatibleVersion, InvalidInvite, LocalProtocolError, RemoteProtocolError
from protocol.multiaddr import peer_at
from protocol.units import RunId

INVITE_DOMAIN = "invite"
SCHEME = "minga:"
MAX_PEERS = 16
MAX_INVITE_LENGTH = 8192  # characters
SUM_LENGTH = 6  # characters

# What chat programs and mail put between or around the characters of a long line.
_SPACE = re.compile(r"[\s\u200b-\u200d\u2060\ufeff]+")
_VERSION = re.compile(r"minga:([0-9]{1,9}):")
_DAMAGED = "This invite was cut short or mistyped: copy the whole line again, from minga: to the end."


@dataclass(frozen=True)
class Invite:
    run: RunId
    peers: tuple[str, ...]
    """full multiaddrs of peers that may answer, 1 to `MAX_PEERS`"""


def format_invite(invite: Invite) -> str:
    """The text of an invite. Raises `LocalProtocolError` for an invite that could not be read again."""
    peers = "&".join(f"peer={address}" for address in invite.peers)
    body = f"{SCHEME}{PROTOCOL_VERSION}:{base58.b58encode(bytes.fromhex(invite.run)).decode()}?{peers}"
    text = f"{body}&sum={_sum(body)}"
    try:
        read_again = parse_invite(text)
    except RemoteProtocolError as error:
        raise LocalProtocolError(f"no invite can be made: {error}") from None
    if read_again != invite:
        raise LocalProtocolError("no invite can be made: it would be read as another one")
    return text


def parse_invite(text: str) -> Invite:
    """Read an invite, whatever white space and line breaks were put into it on its way.

    Raises `InvalidInvite` (not an invite; cut short or mistyped) or `IncompatibleVersion`.
    """
    text = _SPACE.sub("", text[: 2 * MAX_INVITE_LENGTH])
    if not text.startswith(SCHEME):
        raise InvalidInvite(
            f"{text[:30]!r} is not an invite: it begins with {SCHEME}, ask a member of the run for one."
        )
    version = _VERSION.match(text)
    if version is not None and int(version[1]) != PROTOCOL_VERSION:
        raise IncompatibleVersion(
            f"This invite is of version {int(version[1])} and this minga reads version {PROTOCOL_VERSION}: "
            "install the version of minga that the run uses."
        )
    body, mark, checksum = text.rpartition("&sum=")
    if version is None or not mark or len(text) > MAX_INVITE_LENGTH or checksum != _sum(body):
        raise InvalidInvite(_DAMAGED)
    run, _, query = body[version.end() :].partition("?")
    return Invite(_run_of(run), _peers_of(query))


def _sum(body: str) -> str:
    return base58.b58encode(digest(INVITE_DOMAIN, body.encode(errors="replace"))).decode()[:SUM_LENGTH]


def _run_of(text: str) -> RunId:
    try:
        raw = bytes(base58.b58decode(text)) if len(text) <= 2 * DIGEST_SIZE else b""
    except ValueError:
        raw = b""
    if len(raw) != DIGEST_SIZE or base58.b58encode(raw).decode() != text:
        raise InvalidInvite("This invite names no run: ask for another one.")
    return raw.hex()


def _peers_of(query: str) -> tuple[str, ...]:
    fields = query.split("&")
    if len(fields) > MAX_PEERS or not all(field.startswith("peer=") for field in fields):
        raise InvalidInvite(f"This invite does not list 1 to {MAX_PEERS} peers: ask for another one.")
    addresses = tuple(field.removeprefix("peer=") for field in fields)
    for address in addresses:
        try:
            peer_at(address)
        except RemoteProtocolError as error:
            raise InvalidInvite(f"This invite cannot be used, {error}: ask for another one.") from None
    return addresses
