"""What goes into and comes out of the machine of `round.py`: messages between peers, events, effects.

Events are named in the past, effects in the imperative. Each effect that takes time is finished by exactly
one event: StartAverage by AverageFinished or AverageFailed (none, if CancelAverage came first), FetchResult
by FetchFinished or FetchFailed, Send by MessageReceived (the answer), PeerUnreachable, PeerAhead or
PeerBehind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from protocol.encoding import MAX_DOCUMENT_SIZE, canonical_bytes, decode_canonical
from protocol.errors import RemoteProtocolError
from protocol.fields import MAX_EXACT, EpochNumber, KnownPeer, SampleCount, Section, Sha256Hex, TermNumber
from protocol.lineage import Counted, Lineage
from protocol.plan import MAX_GROUP_SIZE
from protocol.units import Epoch, PeerId

MAX_MESSAGE_SIZE = MAX_DOCUMENT_SIZE

Stage = Literal["gathering", "ready", "failed", "averaged", "excluded", "adopting", "committed"]
"""`ready`: for this attempt, and perhaps averaging already. `failed`: our average of it failed, but we may still
get it from another. `averaged`: we have it; our vote to commit it. `excluded`: we take no part in this epoch
any
more. `adopting`: it is committed, we are getting it. `committed`: it is, here too."""

Peers = Annotated[list[KnownPeer], Field(max_length=MAX_GROUP_SIZE)]


class CountedMember(Section):
    peer: KnownPeer
    samples: SampleCount


class RoundMessage(Section):
    """What one member has to say about one epoch's round. The transport says who it is."""

    run: Sha256Hex
    epoch: EpochNumber
    term: TermNumber
    plan: Sha256Hex
    lineage: Sha256Hex
    """the history that our weights of this epoch come from"""
    history: int = Field(ge=0, le=MAX_EXACT)
    """samples merged into it"""
    started: int = Field(ge=0, le=MAX_EXACT)
    """when this peer began the epoch, its own unix milliseconds: tells a restarted peer from its former self"""
    sequence: int = Field(ge=0, le=MAX_EXACT)
    """of two messages of one peer the later; an older one that arrives late is dropped"""
    attempt: int = Field(ge=0, le=MAX_EXACT)
    stage: Stage
    samples: SampleCount
    """of this peer in this epoch; fixed from `ready` on"""
    suspects: Peers
    """members without which this peer goes on"""
    blames: Peers
    """with `failed`: whom its average of the attempt failed by"""
    members: Annotated[list[CountedMember], Field(max_length=MAX_GROUP_SIZE)]
    """of the attempt, once averaging has begun"""

    @model_validator(mode="after")
    def _lists_are_in_order(self) -> RoundMessage:
        named = {"suspects": self.suspects, "blames": self.blames, "members": [m.peer for m in self.members]}
        for name, peers in named.items():
            if any(a >= b for a, b in pairwise(peers)):
                raise ValueError(f"{name} must be sorted and occur once")
        if self.stage in ("failed", "averaged", "adopting", "committed") and not self.members:
            raise ValueError("members are missing")
        return self

    @property
    def counted(self) -> tuple[Counted, ...]:
        return tuple((member.peer, member.samples) for member in self.members)

    @property
    def order(self) -> tuple[int, int]:
        return self.started, self.sequence

    def to_bytes(self) -> bytes:
        return canonical_bytes(self.model_dump(mode="json"))

    @classmethod
    def from_bytes(cls, data: bytes) -> RoundMessage:
        """Raises `RemoteProtocolError`, also for what `to_bytes` would have written otherwise."""
        try:
            return cls.model_validate(decode_canonical(data, MAX_MESSAGE_SIZE))
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "message"
            raise RemoteProtocolError(f"round message: {place[:80]}: {first['msg'][:160]}") from None


# Events


@dataclass(frozen=True)
class GatheringFinished:
    """The samples of this epoch are gathered, or time is up."""

    samples: int


@dataclass(frozen=True)
class MessageReceived:
    """A member's message, whether it came by itself or as the answer to ours."""

    peer: PeerId
    message: RoundMessage


@dataclass(frozen=True)
class PeerUnreachable:
    """A message could not be delivered or was not answered in time."""

    peer: PeerId


@dataclass(frozen=True)
class PeerLeft:
    """It has said farewell."""

    peer: PeerId


@dataclass(frozen=True)
class PeerAhead:
    """It is at a later epoch and does not know any more how this one ended."""

    peer: PeerId
    epoch: Epoch


@dataclass(frozen=True)
class PeerBehind:
    """It is alive, but has not come to this epoch yet."""

    peer: PeerId
    epoch: Epoch


@dataclass(frozen=True)
class AverageFinished:
    """We have the complete average of the attempt."""

    attempt: int


@dataclass(frozen=True)
class AverageFailed:
    attempt: int
    blamed: tuple[PeerId, ...] = ()
    """members whose silence or broken connection made it fail, as far as this peer can tell"""
    is_pace: bool = False
    """the links hold, but those to blame are so slow that the others would wait long for them"""


@dataclass(frozen=True)
class FetchFinished:
    attempt: int


@dataclass(frozen=True)
class FetchFailed:
    attempt: int


@dataclass(frozen=True)
class Tick:
    """The time of `deadline()` has come."""


Event = (
    GatheringFinished
    | MessageReceived
    | PeerUnreachable
    | PeerLeft
    | PeerAhead
    | PeerBehind
    | AverageFinished
    | AverageFailed
    | FetchFinished
    | FetchFailed
    | Tick
)


# Effects


@dataclass(frozen=True)
class Send:
    """Send our message and report the answer. A newer one to the same peer replaces one not yet sent."""

    peer: PeerId
    message: RoundMessage = field(repr=False)


@dataclass(frozen=True)
class StartAverage:
    """Average with these members. Results of earlier attempts may be dropped."""

    attempt: int
    members: tuple[Counted, ...]


@dataclass(frozen=True)
class CancelAverage:
    attempt: int


@dataclass(frozen=True)
class FetchResult:
    """Get the averaged gradient of this attempt from a member that has it. Replaces an earlier fetch."""

    peer: PeerId
    attempt: int
    members: tuple[Counted, ...]
    reason: str


@dataclass(frozen=True)
class Commit:
    """Update the weights by the average of this attempt, our own or the one fetched. The round is over."""

    attempt: int
    members: tuple[Counted, ...]
    lineage: Lineage
    """of the weights after the update"""
    reason: str


@dataclass(frozen=True)
class CatchUp:
    """This epoch cannot be ended from here: get a state from other peers. The round is over."""

    reason: str
    donors: tuple[PeerId, ...] = ()
    """members known to be further, if any"""


@dataclass(frozen=True)
class PlanDiffers:
    """A member follows another plan that takes precedence: get it, and begin this epoch's round anew with it."""

    peer: PeerId
    term: int
    plan: str


Effect = Send | StartAverage | CancelAverage | FetchResult | Commit | CatchUp | PlanDiffers
