"""Into which lane each peer goes: the step lane, whose members average in every epoch (`protocol/pace.py` says who), or
the slow lane, whose members hand in every 2^k epochs, with the least k with which their links and those of their
sponsors carry it. Whoever is here is put where nobody waits for its link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from protocol.links import DEFAULT_LINK, Link
from protocol.manifest import Compression
from protocol.pace import JITTER_OF_TWO, JOIN_PERCENT, STAY_PERCENT, Candidate, by_link, exact, overlapped
from protocol.plan import MAX_CADENCE, MAX_GROUP_SIZE, Plan
from protocol.shares import Crowd, encoded_size
from protocol.units import MilliRate, PeerId

SPONSOR_PERCENT = 25
"""of a step member's link that the slow lane may take; where one peer alone is the step lane, `JOIN_PERCENT`"""
EXACT_CODEC_PART, HIDDEN_CODEC_PART = 5, 3
"""without and with overlap: a less lossy codec is taken if its round takes at most this part of `JOIN_PERCENT`, or
`STAY_PERCENT`, of an epoch"""

Chosen = Literal["auto"] | Compression
SLOW_LANE_CODEC: Compression = "uniform4"
"""of all that sponsors and the slow lane send each other, but for a first copy of the weights"""


@dataclass(frozen=True)
class Work:
    """What a plan is made for."""

    num_parameters: int
    target_batch_size: int
    """samples of an epoch"""
    overlap: int
    """1 if averaging runs behind the gathering of the next epoch, else 0"""
    compression: Chosen

    @property
    def codecs(self) -> tuple[Compression, ...]:
        """Those that the step lane may use, the least lossy first."""
        return get_args(Compression) if self.compression == "auto" else (self.compression,)

    def size(self, codec: Compression) -> int:
        """Bytes of a round's vector."""
        return encoded_size(self.num_parameters, codec)

    def gathering_microseconds(self, throughput: MilliRate) -> int:
        """How long peers of this throughput in all need for an epoch's samples."""
        return max(1, self.target_batch_size * 10**9 // throughput)

    def goodput(self, throughput: MilliRate, round_microseconds: int) -> MilliRate:
        """Samples per 1000 seconds that enter the average, with rounds of this duration."""
        gathering = self.gathering_microseconds(throughput)
        epoch = max(gathering, round_microseconds) if self.overlap else gathering + round_microseconds
        return self.target_batch_size * 10**9 // epoch


@dataclass(frozen=True)
class Lanes:
    step: tuple[Candidate, ...]
    """the fastest link first; never empty"""
    slow: tuple[tuple[Candidate, int], ...]
    """with the cadence in epochs; the fastest link first"""
    left_out: tuple[tuple[Candidate, Literal["link", "sponsors"]], ...]
    """with what is too slow for them even at the longest cadence: their own link, or those of all sponsors"""
    compression: Compression
    gathering_microseconds: int
    """how long all candidates need for an epoch's samples: what transfers have to fit into"""
    round_microseconds: int
    """an all-reduce of the step lane"""
    goodput: MilliRate
    """samples per 1000 seconds that enter the average, if all keep their speeds"""


def place(candidates: Sequence[Candidate], work: Work, previous: Plan | None) -> Lanes:
    """Put each of `candidates` (at least one) into a lane or leave it out, independent of their order.

    The plan's predicted goodput is at least that of all candidates in one group. With overlap 0 and a previous plan
    it may be less by what jitter explains.
    """
    ordered = sorted(candidates, key=by_link)
    able = [one for one in ordered if one.in_step] or ordered
    throughput = sum(one.throughput for one in ordered)
    epoch = work.gathering_microseconds(throughput)
    before = frozenset(m.peer for m in previous.step) if previous else frozenset()
    compact = work.codecs[-1]
    step = (overlapped if work.overlap else exact)(able, before, work.size(compact), epoch)
    lanes = _around(step, ordered, work, _codec(step, work, epoch, previous), previous)
    if len(step) == len(able) or len(able) > MAX_GROUP_SIZE:
        return lanes
    together = _around(able, ordered, work, _codec(able, work, epoch, previous), previous)
    bar = together.goodput
    if before and not work.overlap:
        bar = work.goodput(throughput, together.round_microseconds * JITTER_OF_TWO[0] // JITTER_OF_TWO[1])
    if lanes.goodput < bar:
        lanes = _around(step, ordered, work, compact, previous)
    # Together only for who is left out, with most of the throughput behind a link that hardly exists.
    return lanes if lanes.goodput >= bar else together


def predict(plan: Plan, links: Mapping[PeerId, Link], num_parameters: int, overlap: int) -> MilliRate:
    """Samples per 1000 seconds that enter the average under `plan`, if speeds and `links` hold."""
    rates = [links[m.peer].slower if m.peer in links else DEFAULT_LINK for m in plan.step]
    quotas = [m.quota for m in plan.step] + [m.quota for m in plan.slow]
    work = Work(num_parameters, sum(quotas), overlap, plan.compression)
    return work.goodput(sum(plan.weights.values()), Crowd.of(rates).microseconds(work.size(plan.compression)))


def _codec(step: Sequence[Candidate], work: Work, epoch: int, previous: Plan | None) -> Compression:
    """The least lossy codec with which a round is short, or else the most compact one."""
    crowd = Crowd.of([one.rate for one in step])
    part = HIDDEN_CODEC_PART if work.overlap else EXACT_CODEC_PART
    percent = JOIN_PERCENT
    for codec in work.codecs:
        if previous is not None and codec == previous.compression:
            percent = STAY_PERCENT  # for this one and more compact ones
        if crowd.microseconds(work.size(codec)) * 100 * part <= percent * epoch:
            return codec
    return work.codecs[-1]


def _around(
    step: Sequence[Candidate], ordered: Sequence[Candidate], work: Work, codec: Compression, previous: Plan | None
) -> Lanes:
    """The lanes, given the members of the step lane."""
    epoch = work.gathering_microseconds(sum(one.throughput for one in ordered))
    crowd = Crowd.of([one.rate for one in step])
    stepping = {one.peer for one in step}
    others = [one for one in ordered if one.peer not in stepping]
    before = {member.peer: member.cadence for member in previous.slow} if previous else {}
    vector = work.size(SLOW_LANE_CODEC)

    slow: list[tuple[Candidate, int]] = []
    left_out: list[tuple[Candidate, Literal["link", "sponsors"]]] = []
    for one in others:
        cadence = _cadence(one.rate, vector, epoch, before.get(one.peer))
        if cadence is None:
            left_out.append((one, "link"))
        else:
            slow.append((one, cadence))
    percent = SPONSOR_PERCENT if len(step) > 1 else JOIN_PERCENT
    own = Counter(cadence for _, cadence in slow)
    # both in 10^-8 bytes, each way in an epoch
    carried, handed_in = crowd.total * epoch * percent, vector * 100 * 10**6
    least, places = _sponsored(own, handed_in, carried, min(before.values(), default=0))
    if places < len(slow):
        chosen = {one.peer for one, _ in sorted(slow, key=lambda s: (-s[0].throughput, s[0].peer))[:places]}
        left_out += [(one, "sponsors") for one, _ in slow if one.peer not in chosen]
        slow = [(one, cadence) for one, cadence in slow if one.peer in chosen]
    slow = [(one, max(least, cadence)) for one, cadence in slow]
    throughput = sum(one.throughput for one in (*step, *(one for one, _ in slow)))
    waiting = crowd.microseconds(work.size(codec))
    goodput = work.goodput(throughput, waiting)
    return Lanes(tuple(step), tuple(slow), tuple(left_out), codec, epoch, waiting, goodput)


def _cadence(rate: int, vector: int, epoch: int, before: int | None) -> int | None:
    """The least power of two of epochs in which the link carries `vector` bytes both ways; None if none is enough."""
    needed = -(-vector * 10**6 // rate)
    cadence = 1
    while cadence <= MAX_CADENCE:
        percent = STAY_PERCENT if before is not None and cadence >= before else JOIN_PERCENT
        if needed * 100 <= percent * cadence * epoch:
            return cadence
        cadence *= 2
    return None


def _sponsored(cadences: Counter[int], vector: int, carried: int, before: int) -> tuple[int, int]:
    """The least cadence at which sponsors, who carry so much in an epoch, can serve all, and how many they can.

    `cadences` says how many peers have each as the least for their own link; `before` is the least of the previous
    plan, or 0.
    """
    least = 1
    while True:
        demand = sum(count * vector * MAX_CADENCE // max(least, cadence) for cadence, count in cadences.items())
        room = carried * MAX_CADENCE
        if not before or least < before:
            room = room * JOIN_PERCENT // STAY_PERCENT
        if demand <= room:
            return least, sum(cadences.values())
        if least == MAX_CADENCE:
            return least, room // vector
        least *= 2
