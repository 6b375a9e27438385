"""The syntax of the libp2p addresses that travel in invites and records.

Only the syntax: whether somebody answers there is for others to find out. A small grammar of our own, since
addresses are shown to people and dialled by a daemon: what it does not know it refuses. Source:
multiformats/multiaddr, protocols.csv.
"""

from __future__ import annotations

import ipaddress
import re

from protocol.errors import RemoteProtocolError
from protocol.signing import public_key_of
from protocol.units import PeerId

MAX_ADDRESS_LENGTH = 256  # characters

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?")
_WORD = re.compile(r"[A-Za-z0-9_-]+")
_PORT = re.compile(r"0|[1-9][0-9]{0,4}")
_HOSTS = ("ip4", "ip6", "dns", "dns4", "dns6", "dnsaddr")
_FLAGS = ("quic", "quic-v1", "ws", "wss", "tls", "noise", "webtransport", "webrtc-direct", "p2p-circuit")


def peer_at(address: str) -> PeerId:
    """The peer that a full address, such as `/ip4/192.0.2.7/tcp/4001/p2p/12D3KooW…`, leads to.

    Raises `RemoteProtocolError` if the syntax is wrong or the last component is not the id of an Ed25519
    peer.
    """
    shown = repr(address[:80])
    if len(address) > MAX_ADDRESS_LENGTH:
        raise RemoteProtocolError(f"the address {shown} is longer than {MAX_ADDRESS_LENGTH} characters")
    empty, *parts = address.split("/")
    if empty or not parts or parts[0] not in _HOSTS:
        raise RemoteProtocolError(f"the address {shown} does not begin with one of /{', /'.join(_HOSTS)}")
    names: list[str] = []
    value = ""
    while parts:
        names.append(parts.pop(0))
        if names[-1] in _FLAGS:
            continue
        value = parts.pop(0) if parts else ""
        if not _is_value(names[-1], value):
            raise RemoteProtocolError(f"the address {shown} has a wrong component /{names[-1]}/{value}"[:200])
    if names[-1] != "p2p":
        raise RemoteProtocolError(f"the address {shown} does not end with /p2p/ and a peer id")
    public_key_of(value)
    return value


def _is_value(name: str, value: str) -> bool:
    match name:
        case "ip4" | "ip6":
            try:
                # leading zeros and zones are refused there
                return "%" not in value and ipaddress.ip_address(value).version == int(name[2:])
            except ValueError:
                return False
        case "dns" | "dns4" | "dns6" | "dnsaddr":
            return len(value) <= 253 and all(map(_LABEL.fullmatch, value.split(".")))
        case "tcp" | "udp":
            return _PORT.fullmatch(value) is not None and int(value) <= 65535
        case "p2p" | "certhash":
            return _WORD.fullmatch(value) is not None
    return False
