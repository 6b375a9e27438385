"""Records: what a peer tells the swarm about itself, signed, short-lived and small.

A record is found in the DHT under `record_key` (subkey: the peer), and travels as 64 bytes of signature
followed by the canonical JSON of its body. A body carries its own expiration and the run, so that it can be
neither kept alive nor moved elsewhere by those who store it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from protocol import PROTOCOL_VERSION
from protocol.encoding import canonical_bytes
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.fields import (
    MAX_EXACT,
    EpochNumber,
    KnownPeer,
    Line,
    Rate,
    SampleCount,
    Section,
    Sha256Hex,
    TermNumber,
)
from protocol.multiaddr import peer_at
from protocol.signing import SigningKey
from protocol.units import RunId

RECORD_DOMAIN = "record"
MAX_RECORD_SIZE = 4096  # bytes, signature included
MAX_LINKS_SEEN = 24  # in a ballot; as many as fit into a record
SKEW_SECONDS = 5  # how far ahead of ours a peer's clock may be

Kind = Literal["presence", "progress", "ballot", "plan-vote", "state-offer"]
LIFETIME_SECONDS: dict[Kind, int] = {
    "presence": 60,
    "progress": 60,
    "ballot": 120,
    "plan-vote": 120,
    "state-offer": 60,
}
"""How long after signing a record of each kind may expire. Votes outlive a term's beginning, not a term."""


def _refuse_bad_address(value: str) -> str:
    try:
        peer_at(value)
    except RemoteProtocolError as error:
        raise ValueError(str(error)) from None
    return value


Address = Annotated[str, AfterValidator(_refuse_bad_address)]
"""A full multiaddr, ending with the peer's id."""
LinkRate = Annotated[int, Field(ge=0, le=10**12)]
"""bytes per second"""


class RecordBody(Section):
    """What every record states."""

    kind: Kind
    run: Sha256Hex
    peer: KnownPeer
    """who speaks, and about whom; the record is signed with this peer's key"""
    expires: int = Field(ge=0, le=MAX_EXACT)
    """unix milliseconds"""


class Presence(RecordBody):
    """This peer is here, and reachable so."""

    kind: Literal["presence"] = "presence"
    name: Annotated[Line, StringConstraints(max_length=40)]
    addresses: list[Address] = Field(max_length=8)
    devices: Line
    """what it computes with, for people"""
    state: Literal["catching-up", "training", "leaving"]

    @model_validator(mode="after")
    def _addresses_are_its_own(self) -> Presence:
        if any(peer_at(address) != self.peer for address in self.addresses):
            raise ValueError("addresses: one leads to another peer")
        return self


class Progress(RecordBody):
    """How far this peer is."""

    kind: Literal["progress"] = "progress"
    epoch: EpochNumber
    samples: SampleCount
    """gathered in this epoch"""
    total_samples: int = Field(ge=0, le=MAX_EXACT)
    """in committed updates, over the peer's life in this run"""
    throughput: Rate
    heldout_epoch: int = Field(default=-1, ge=-1, le=10**9)
    """epoch of the weights behind the next number; -1: not measured"""
    heldout_microbits: int = Field(default=0, ge=0, le=10**9)
    """bits per byte on the held-out text, times 10^6"""


class LinkSeen(Section):
    """What the author of a ballot has seen of a peer's link, in bytes per second; 0: not seen.

    Only that which it has seen itself counts, so an entry about the author is nothing but its own word.
    """

    peer: KnownPeer
    up: LinkRate
    """what the peer sent"""
    down: LinkRate
    """what it received"""

    @model_validator(mode="after")
    def _something_was_seen(self) -> LinkSeen:
        if not (self.up or self.down):
            raise ValueError("nothing was seen")
        return self


class Ballot(RecordBody):
    """What this peer brings to the plan of a term: its speed, and its measurements of others' links.

    The measurements travel inside the ballot, so that a plan follows from one set of signed records.
    """

    kind: Literal["ballot"] = "ballot"
    term: TermNumber
    epoch: EpochNumber
    """updates it had committed when it cast this"""
    throughput: Annotated[Rate, Field(ge=1)]
    in_step: bool = True
    """whether it holds the weights of that epoch, bit for bit: only then can it begin to average with the others"""
    links: list[LinkSeen] = Field(default=[], max_length=MAX_LINKS_SEEN)
    """sorted by peer, each once"""

    @model_validator(mode="after")
    def _links_are_sorted(self) -> Ballot:
        if any(one.peer >= other.peer for one, other in pairwise(self.links)):
            raise ValueError("links: not sorted by peer, or one occurs twice")
        return self


class PlanVote(RecordBody):
    """Which plan this peer computed for a term."""

    kind: Literal["plan-vote"] = "plan-vote"
    term: TermNumber
    plan: Sha256Hex


class StateOffer(RecordBody):
    """A complete state that this peer serves."""

    kind: Literal["state-offer"] = "state-offer"
    epoch: EpochNumber
    root: Sha256Hex
    size: int = Field(ge=0, le=2**50)
    """bytes"""


Record = Presence | Progress | Ballot | PlanVote | StateOffer


def record_key(run: RunId, kind: Kind, term: int | None = None) -> str:
    """The DHT key under which peers publish records of `kind`; ballots and plan votes have one for each term.

    Raises `LocalProtocolError` if a term is missing or out of place.
    """
    if (kind in ("ballot", "plan-vote")) != (term is not None):
        raise LocalProtocolError(f"a key of {kind} records was asked for with term {term}")
    key = f"minga/{PROTOCOL_VERSION}/{run}/{kind}"
    return key if term is None else f"{key}/{term}"


def sign_record(body: Record, key: SigningKey) -> bytes:
    """The bytes that travel.

    Raises `LocalProtocolError` if `key` is not that of `body.peer`, or the record is too large.
    """
    if body.peer != key.peer_id:
        raise LocalProtocolError(f"a record of {body.peer} was to be signed by {key.peer_id}")
    canonical = canonical_bytes(body.model_dump(mode="json"))
    data = key.sign(RECORD_DOMAIN, canonical) + canonical
    if len(data) > MAX_RECORD_SIZE:
        raise LocalProtocolError(f"a {body.kind} record of {len(data)} bytes is over the {MAX_RECORD_SIZE} allowed")
    return data
