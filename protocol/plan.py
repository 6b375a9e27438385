"""The plan of a term: who averages with whom in every epoch, who hands in at a slower cadence and to whom, and how many
samples each is asked for.

Every peer computes it for itself from the ballots that it has seen (`protocol/tally.py`), in integers and independent
of their order, and votes for its digest; two thirds of the live weight adopt it. Nobody leads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator

from protocol.encoding import canonical_bytes, digest
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.fields import MAX_EXACT, KnownPeer, Rate, SampleCount, Section, Sha256Hex, TermNumber
from protocol.manifest import Compression, Manifest
from protocol.units import MilliRate, PeerId, RunId

PLAN_DOMAIN = "plan"
MAX_GROUP_SIZE = 256
"""peers; bounds every list of members that travels in a round"""
MAX_SLOW_PEERS = 10_000
MAX_CADENCE = 1024
"""epochs"""
SPONSORS = 2
"""of each peer in the slow lane, where the step lane has so many"""
GENESIS_DEADLINE_MILLISECONDS = 3_600_000
"""before the host's speed is known; nobody waits for it, so this only keeps an epoch finite"""

Lane = Literal["step", "slow"]


@dataclass(frozen=True)
class Member:
    """A peer in the step lane: it averages with its group in every epoch."""

    peer: PeerId
    throughput: MilliRate
    quota: int
    """samples that it is asked for in each epoch of the term"""
    share: int
    """of the vector that it reduces: a weight among those of its group"""


@dataclass(frozen=True)
class Group:
    """Peers that average together, sorted by id."""

    members: tuple[Member, ...]

    @property
    def whole(self) -> int:
        """The sum of their shares."""
        return sum(member.share for member in self.members)


@dataclass(frozen=True)
class SlowMember:
    """A peer in the slow lane: it hands in what it gathered during `cadence` epochs."""

    peer: PeerId
    throughput: MilliRate
    quota: int
    """samples that it is asked for in each epoch of the term; it hands in `cadence` times as many at once"""
    cadence: int
    """epochs, a power of two"""
    sponsors: tuple[PeerId, ...]
    """members of the step lane that take what it hands in and give it new weights: the first of them, and who stands
    in for that one"""
    promote: bool = False
    """its link suits the step lane: it is to come into step, and a following plan will place it there"""


@dataclass(frozen=True)
class Plan:
    term: int
    groups: tuple[Group, ...]
    """the step lane: one group, since all hold the same weights"""
    slow: tuple[SlowMember, ...]
    """the slow lane, sorted by peer"""
    compression: Compression
    """of the step lane's vectors on the wire"""
    deadline_milliseconds: int
    """from the start of an epoch: who has not worked its quota then hands in what it has"""
    pace_milliseconds: int
    """from the start of a round: who is then clearly behind what its link was measured to do is left behind"""
    run: RunId

    @property
    def digest(self) -> str:
        """hexadecimal SHA-256 of the canonical bytes"""
        return digest(PLAN_DOMAIN, canonical_bytes(self.to_data())).hex()

    @property
    def step(self) -> tuple[Member, ...]:
        """The members of the step lane, of all groups."""
        return tuple(member for group in self.groups for member in group.members)

    @property
    def weights(self) -> dict[PeerId, MilliRate]:
        """The throughput of everybody in the plan, in both lanes."""
        step = {member.peer: member.throughput for member in self.step}
        return step | {member.peer: member.throughput for member in self.slow}

    def group_of(self, peer: PeerId) -> Group | None:
        """The group in which `peer` averages; None if it is not in the step lane."""
        for group in self.groups:
            if any(member.peer == peer for member in group.members):
                return group
        return None

    def slow_member(self, peer: PeerId) -> SlowMember | None:
        """The place of `peer` in the slow lane; None if it is not there."""
        return next((member for member in self.slow if member.peer == peer), None)

    def lane_of(self, peer: PeerId) -> Lane | None:
        """Where `peer` is; None if the plan is without it."""
        if self.group_of(peer) is not None:
            return "step"
        return "slow" if self.slow_member(peer) is not None else None

    def to_data(self) -> dict[str, Any]:
        """Plain data (JSON)."""
        return {
            "run": self.run,
            "term": self.term,
            "deadline_milliseconds": self.deadline_milliseconds,
            "pace_milliseconds": self.pace_milliseconds,
            "compression": self.compression,
            "groups": [{"members": [{**vars(member)} for member in group.members]} for group in self.groups],
            "slow": [{**vars(member), "sponsors": list(member.sponsors)} for member in self.slow],
        }

    @classmethod
    def from_data(cls, value: Any) -> Plan:
        """A plan from plain data. Raises `RemoteProtocolError` unless `to_data` could have made it."""
        try:
            data = _PlanData.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "plan"
            raise RemoteProtocolError(f"plan: {place[:80]}: {first['msg'][:160]}") from None
        groups = tuple(Group(tuple(Member(**dict(m)) for m in group.members)) for group in data.groups)
        slow = tuple(SlowMember(**{**dict(m), "sponsors": tuple(m.sponsors)}) for m in data.slow)
        _refuse_inconsistent(groups, slow)
        times = data.deadline_milliseconds, data.pace_milliseconds
        return cls(data.term, groups, slow, data.compression, *times, data.run)


def _refuse_inconsistent(groups: tuple[Group, ...], slow: tuple[SlowMember, ...]) -> None:
    step = [member.peer for group in groups for member in group.members]
    for peers in (*([member.peer for member in group.members] for group in groups), [member.peer for member in slow]):
        if any(one > other for one, other in pairwise(peers)):
            raise RemoteProtocolError("plan: members are not sorted by peer id")
    if len({*step, *(member.peer for member in slow)}) != len(step) + len(slow):
        raise RemoteProtocolError("plan: a peer occurs twice")
    for group in groups:
        if not any(member.share for member in group.members):
            raise RemoteProtocolError("plan: a group in which nobody reduces")
    possible = set(step)
    for member in slow:
        if len(set(member.sponsors)) != min(SPONSORS, len(step)) or not possible.issuperset(member.sponsors):
            raise RemoteProtocolError("plan: the sponsors of a slow peer are not distinct members of the step lane")


class _MemberData(Section):
    peer: KnownPeer
    throughput: Annotated[Rate, Field(ge=1)]
    quota: Annotated[SampleCount, Field(ge=1)]
    share: int = Field(ge=0, le=10**6)


class _GroupData(Section):
    members: list[_MemberData] = Field(min_length=1, max_length=MAX_GROUP_SIZE)


class _SlowMemberData(Section):
    peer: KnownPeer
    throughput: Annotated[Rate, Field(ge=1)]
    quota: Annotated[SampleCount, Field(ge=1)]
    cadence: int = Field(ge=1, le=MAX_CADENCE)
    sponsors: list[PeerId] = Field(min_length=1, max_length=SPONSORS)
    promote: bool

    @field_validator("cadence")
    @classmethod
    def _is_a_power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("a cadence must be a power of two")
        return value


class _PlanData(Section):
    run: Sha256Hex
    term: TermNumber
    deadline_milliseconds: int = Field(ge=1, le=MAX_EXACT)
    pace_milliseconds: int = Field(ge=1, le=MAX_EXACT)
    compression: Compression
    groups: list[_GroupData] = Field(min_length=1, max_length=1)
    slow: list[_SlowMemberData] = Field(max_length=MAX_SLOW_PEERS)


def genesis(manifest: Manifest, run: RunId) -> Plan:
    """The plan of term 0: the host alone, asked for everything."""
    # Its speed is not known yet; as the only weight, any will do.
    host = Member(manifest.host, throughput=1, quota=manifest.training.target_batch_size, share=1)
    chosen = manifest.averaging.compression
    compression = "none" if chosen == "auto" else chosen
    times = GENESIS_DEADLINE_MILLISECONDS, GENESIS_DEADLINE_MILLISECONDS
    return Plan(0, (Group((host,)),), (), compression, *times, run)


def decide(votes: Mapping[PeerId, str], weights: Mapping[PeerId, MilliRate]) -> tuple[str | None, str]:
    """The plan digest that two thirds of the weight voted for, and why; None if there is no such digest.

    `weights` are those of all live peers, also of those that have not voted; votes of peers without weight
    are ignored. Two different digests cannot both be decided from the same weights.
    """
    if any(weight < 0 for weight in weights.values()):
        raise LocalProtocolError("weights of votes must not be negative")
    whole = sum(weights.values())
    voted: dict[str, MilliRate] = {}
    for peer, plan in votes.items():
        if weights.get(peer, 0) > 0:
            voted[plan] = voted.get(plan, 0) + weights[peer]
    if not voted:
        return None, "nobody with weight has voted"
    # The smaller digest among equals, so that the reason does not depend on the order.
    leading, weight = min(voted.items(), key=lambda item: (-item[1], item[0]))
    share = f"{100 * weight // whole} % of the live weight voted for plan {leading[:8]}"
    if 3 * weight >= 2 * whole:
        return leading, share
    return None, f"{share}; two thirds are needed" + (f", votes are split {len(voted)} ways" if len(voted) > 1 else "")
