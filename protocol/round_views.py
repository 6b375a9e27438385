"""What a member knows of the others in a round, and the small judgements that follow from it. Pure functions of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from protocol.lineage import Counted, Lineage
from protocol.round_messages import RoundMessage, Stage
from protocol.units import PeerId


@dataclass
class View:
    """One other member, as far as it is known."""

    message: RoundMessage | None = None
    """the last one of our history and plan"""
    last: RoundMessage | None = None
    """the last one of any"""
    asked_at: float = math.inf
    """when it was first asked for what we wait for, since it was last heard"""
    ready_at: float = math.inf
    """when it was first heard to have gathered its samples"""
    unreachable: int = 0
    """deliveries that failed since it was last heard of"""

    def is_ready(self, attempt: int, suspects: Collection[PeerId], participants: Collection[PeerId]) -> bool:
        """Whether it waits for, or is already in, this attempt of these participants."""
        message = self.message
        if message is None or message.attempt != attempt:
            return False
        if message.stage not in ("ready", "failed", "averaged"):
            return False
        if message.members:
            return {peer for peer, _ in message.counted} == set(participants)
        return set(message.suspects) == set(suspects)

    def says(self, stage: Stage, attempt: int, members: tuple[Counted, ...]) -> bool:
        """Whether it is at this stage of exactly this attempt."""
        message = self.last
        return (
            message is not None and (message.stage, message.attempt) == (stage, attempt) and message.counted == members
        )

    def forget_exit(self) -> None:
        """It may have begun the epoch anew since it stepped out: its next answer tells."""
        if self.is_out:
            self.message = self.last = None

    def lateness(self, plan: str) -> str:
        """Why it is not where we wait for it, as far as can be told."""
        if self.last is None:
            return "has not been heard of"
        if self.last.plan != plan:
            return f"follows plan {self.last.plan[:8]} of term {self.last.term}"
        return "was still gathering" if self.last.stage == "gathering" else "fell silent or behind"

    @property
    def is_over(self) -> bool:
        """Whether it knows the commit of the epoch."""
        return self.last is not None and self.last.stage in ("adopting", "committed")

    @property
    def is_out(self) -> bool:
        return self.last is not None and self.last.stage == "excluded"


def accusation_stands(
    me: PeerId,
    accuser: PeerId,
    present: Collection[PeerId],
    theirs: Collection[PeerId],
    mine: Collection[PeerId],
    mutual: bool,
) -> bool:
    """Whether we give way to a member that goes on without us.

    `theirs` is who the accuser goes on with, `mine` whom we would go on with if not with the accuser. Whoever
    has lost a minority of the members may exclude it; who has lost the majority is itself the one that is cut
    off. If we had suspected the accuser as well, the larger side stands, and of equal ones that with the
    smallest peer id.
    """
    if not mutual:
        return 2 * len(theirs) >= len(present)
    if len(theirs) != len(mine):
        return len(theirs) > len(mine)
    return min(set(theirs) - set(mine), default=accuser) < min(set(mine) - set(theirs), default=me)


def stronger_history(
    here: Collection[PeerId], lineage: Lineage, foreign: Mapping[PeerId, Lineage]
) -> tuple[PeerId, ...]:
    """The members of another history to which ours gives way; empty if ours is the strongest.

    Stronger is the history that more members hold; then that with more samples; then the larger digest.
    """
    strongest = (len(here), lineage.samples, lineage.digest)
    holders: tuple[PeerId, ...] = ()
    for other in sorted(set(foreign.values()), key=lambda history: history.digest):
        group = tuple(sorted(peer for peer, history in foreign.items() if history == other))
        strength = (len(group), other.samples, other.digest)
        if strength > strongest:
            strongest, holders = strength, group
    return holders


def to_blame(blames: Iterable[tuple[PeerId, PeerId]]) -> PeerId | None:
    """Whom to go on without after repeated failures, from pairs (who blames, whom).

    Whom most members blame, if at least two do. A single complaint does not tell which end of a connection is
    broken: then it is the larger id of the two, so that both ends conclude the same.
    """
    pairs = {pair for pair in blames if pair[0] != pair[1]}
    if not pairs:
        return None
    counts: dict[PeerId, int] = {}
    for _, blamed in pairs:
        counts[blamed] = counts.get(blamed, 0) + 1
    most, peer = max((count, blamed) for blamed, count in counts.items())
    return peer if most > 1 else max(max(pair) for pair in pairs)
