"""Whether a round is held up by the link of one member, so that the others had better go on without it.

Each reducer says again and again how much it has of the sums of each member, as long as it has to wait; and whoever
gets its means sees how many have come. So all know, of every pair, how far the transfer is. Where all that is late
involves one and the same member, and nothing else is late, it is that one's link. Where more is late, or there are just
two members, nobody can tell, and the round takes the time that it takes.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from peer.swarm.codec import Encoded
from peer.swarm.pace import MIN_SECONDS, Arrival, Traffic
from peer.swarm.parts import Contribution
from protocol.units import PeerId

FIRST_LOOK, LOOKS = 3, 8  # parts of the pace: before the first look, and between looks
MAX_TOLD = 16  # members; the others are at least as far
ALL = 1000
Progress = dict[PeerId, int]
"""how much a reducer has of what each member sends it, in thousandths; all, if it has the member's sums"""


def straggler(
    has: Mapping[PeerId, Mapping[PeerId, int]], means: Mapping[PeerId, int], elapsed: float, allowed: float
) -> PeerId | None:
    """The member that alone is late, if there is one. Pure.

    `has`: by reducer, how much it has of each other member that has samples; `means`: how much has come of the means of
    each other reducer; all in thousandths, after `elapsed` seconds. Late is what would take `allowed` seconds more.
    """

    def is_late(progress: int) -> bool:
        return elapsed * (ALL - progress) > allowed * progress

    late = {(reducer, peer) for reducer, row in has.items() for peer, progress in row.items() if is_late(progress)}
    late_means = {reducer for reducer, progress in means.items() if is_late(progress)}
    if not late:
        return late_means.pop() if len(late_means) == 1 and len(means) > 1 else None
    found = []
    for peer in {peer for pair in late for peer in pair}:
        to_it = {(peer, other) for other in has.get(peer, {})}
        from_it = {(reducer, peer) for reducer, row in has.items() if peer in row}
        if late <= to_it | from_it and any(pairs and pairs <= late for pairs in (to_it, from_it)):
            found.append(peer)
    return found[0] if len(found) == 1 else None


class PaceWatch:
    """One member's view of the progress of a round, to be kept current by whoever carries it out."""

    def __init__(
        self,
        me: PeerId,
        traffic: Traffic,
        members: Sequence[Contribution],
        arrivals: Mapping[PeerId, Arrival],
        pace: float | None,
    ) -> None:
        """`pace` are the seconds that the round should take, and some; None: nobody is left behind."""
        self.pace = pace
        self.waiting_sums: dict[PeerId, asyncio.Queue[Encoded]] = {}
        """that have come, but are not needed yet"""
        self._me, self._traffic, self._arrivals = me, traffic, arrivals
        self._senders = [member.peer for member in members if member.samples]
        self._reducers = [member.peer for member in members if traffic.part(member.peer)]
        self._said: dict[PeerId, Progress] = {}
        self._mean_bytes: Counter[PeerId] = Counter()
        self._began = time.monotonic()

    async def straggler(self) -> PeerId:
        """Runs until it shows that one member alone will hold up the others.

        That is if the round would last half as long again as the pace, or half the pace from now; on two looks, since
        a moment of silence may have many causes.
        """
        assert self.pace is not None
        await asyncio.sleep(self.pace / FIRST_LOOK)
        before = None
        while True:
            means = {reducer: self._means_of(reducer) for reducer in self._reducers if reducer != self._me}
            has = {reducer: self._has(reducer) for reducer in self._reducers}
            elapsed = time.monotonic() - self._began
            found = straggler(has, means, elapsed, max(1.5 * self.pace - elapsed, self.pace / 2))
            if found is not None and found == before:
                return found
            before = found
            await asyncio.sleep(self.pace / LOOKS)

    # What this reducer says.

    @property
    def interval(self) -> float:
        """Seconds after which a reducer that waits says what it has: not at first, then often."""
        if self.pace is None:
            return math.inf
        return max(self.pace / LOOKS, self._began + self.pace / FIRST_LOOK - time.monotonic())

    def progress(self) -> Progress:
        """What this reducer has. Who has sent more than it takes is not late."""
        return {
            peer: ALL if peer in self.waiting_sums and self.waiting_sums[peer].full() else self._sums_of(peer)
            for peer in self._senders
            if peer != self._me
        }

    def told(self) -> Progress:
        """What this reducer tells the others: of those that are furthest behind."""
        ordered = sorted((progress, peer) for peer, progress in self.progress().items())
        return {peer: progress for progress, peer in ordered[:MAX_TOLD]}

    # What others say.

    def hear(self, reducer: PeerId, said: Any) -> None:
        """What a waiting reducer tells; nonsense is ignored."""
        if isinstance(said, dict):
            told = {peer: found for peer, found in said.items() if type(found) is int and 0 <= found <= ALL}
            self._said[reducer] = dict.fromkeys(self._senders, max(told.values(), default=0)) | told

    def note_means(self, reducer: PeerId, num_bytes: int) -> None:
        """Means have come."""
        self._mean_bytes[reducer] += num_bytes

    def rate(self, peer: PeerId) -> float:
        """Bytes per second that the peer sends to all, as far as what has come to us tells."""
        come = self._mean_bytes[peer] + (self._arrivals[peer].num_bytes if peer in self._arrivals else 0)
        part = self._traffic.all_up(peer) / max(1, self._traffic.between_us(peer))
        return part * come / max(time.monotonic() - self._began, MIN_SECONDS)

    def _has(self, reducer: PeerId) -> Progress:
        if reducer == self._me:
            return self.progress()
        said, at_least = self._said.get(reducer, {}), self._means_of(reducer)
        return {peer: max(said.get(peer, 0), at_least) for peer in self._senders if peer != reducer}

    def _means_of(self, reducer: PeerId) -> int:
        return ALL * self._mean_bytes[reducer] // max(1, self._traffic.part(reducer))

    def _sums_of(self, peer: PeerId) -> int:
        """As part of all that the peer has to send us: its means come after its sums, and take as long a byte."""
        come = self._arrivals[peer].num_bytes if peer in self._arrivals else 0
        return ALL if come == self._traffic.part(self._me) else ALL * come // self._traffic.between_us(peer)
