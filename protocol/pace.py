"""Who keeps pace: with whom a step lane gathers most.

An epoch lasts E = B / Σr, with everybody's throughput r, slow lane included. Where averaging runs behind the next
epoch's gathering (`overlapped`), it costs nothing as long as it fits into E with some room to spare, so everybody
steps with whom it fits. Where everybody in the step lane waits for it (`exact`), those step together who gather most
samples a second, rounds included. In both, the fastest links come first.

Measured links jitter, and lanes must not. Whoever is in the step lane stays while its rounds take `STAY_PERCENT` of an
epoch; whoever is not must do with `JOIN_PERCENT`. Their ratio, 9/7, is more than that of a link measured 10 % too high
to one measured 10 % too low, 11/9, so that such jitter alone never moves a peer back and forth. 90 % leave time for
what is not transfer (agreeing on the round, the optimizer's step); with 70 %, a link may lose a fifth of its rate
before its owner has to leave. Where two jittering links are compared, the ratio is `JITTER_OF_TWO`.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import accumulate

from protocol.plan import MAX_GROUP_SIZE
from protocol.shares import Crowd
from protocol.units import MilliRate, PeerId

JOIN_PERCENT = 70
STAY_PERCENT = 90
JITTER_OF_TWO = 3, 2
"""more than (11/9)²: the ratio of two links, or of two rounds, that jitter does not explain"""


@dataclass(frozen=True)
class Candidate:
    peer: PeerId
    throughput: MilliRate
    rate: int
    """bytes per second that its link carries each way at once"""
    in_step: bool = True
    """whether it has the weights to average with the others"""


def by_link(one: Candidate) -> tuple[int, PeerId]:
    """The order in which candidates are taken: the fastest link first."""
    return -one.rate, one.peer


def overlapped(ordered: Sequence[Candidate], before: AbstractSet[PeerId], vector: int, epoch: int) -> list[Candidate]:
    """The step lane, by link, where rounds are hidden behind gathering.

    `ordered` has all candidates by link, `before` the peers of the present step lane; `vector` are the bytes of a
    round, `epoch` the microseconds of gathering.
    """
    step = [one for one in ordered if one.peer in before]
    for one in ordered:
        if len(step) == MAX_GROUP_SIZE:
            break
        if one.peer in before:
            continue
        # Members with a clearly slower link do not keep a newcomer out: rather it takes their place.
        near = [other.rate for other in step if not _is_clearly_slower(other, one)]
        own = -(-vector * 10**6 // one.rate)
        needed = max(own, Crowd.of([*near, one.rate]).reducing_microseconds(vector))
        if near and needed * 100 > JOIN_PERCENT * epoch:
            break  # a slower link does not fit either
        step.append(one)
    step.sort(key=by_link)
    crowds = Crowd.prefixes([one.rate for one in step])
    while len(crowds) > 1 and crowds[-1].microseconds(vector) * 100 > STAY_PERCENT * epoch:
        crowds.pop()
    return step[: len(crowds)]


def exact(ordered: Sequence[Candidate], before: AbstractSet[PeerId], vector: int, epoch: int) -> list[Candidate]:
    """The step lane, by link, where everybody in it waits for each round. Arguments as for `overlapped`.

    Any first ones of the newcomers may join any first ones of the present members, if not at the expense of those
    whose links are not clearly slower. A change has to pay even if the new round is longer than predicted.
    """
    known = [one for one in ordered if one.peer in before]
    new = [one for one in ordered if one.peer not in before][:MAX_GROUP_SIZE]
    staying_crowds = [None, *Crowd.prefixes([one.rate for one in known])]
    joining_crowds = [None, *Crowd.prefixes([one.rate for one in new])]
    gathered = list(accumulate((one.throughput for one in known), initial=0))
    best: list[Candidate] = []
    best_value = -1
    throughput = 0
    for joining, newcomers in enumerate(joining_crowds):
        near, least = 0, 0
        if newcomers is not None:
            throughput += new[joining - 1].throughput
            near = sum(not _is_clearly_slower(one, new[joining - 1]) for one in known)
            least = _unless_jitter(newcomers.beside(staying_crowds[near]).microseconds(vector)) if before else 0
        for staying in range(near, min(len(known), MAX_GROUP_SIZE - joining) + 1):
            crowd = newcomers.beside(staying_crowds[staying]) if newcomers else staying_crowds[staying]
            if crowd is None:
                continue
            round_ = crowd.microseconds(vector)
            waiting = max(least, round_ if staying == len(known) else _unless_jitter(round_))
            value = (throughput + gathered[staying]) * 10**12 // (epoch + waiting)
            if (value, joining + staying) > (best_value, len(best)):
                best, best_value = new[:joining] + known[:staying], value
    return sorted(best, key=by_link)


def _is_clearly_slower(one: Candidate, other: Candidate) -> bool:
    return one.rate * JITTER_OF_TWO[0] < other.rate * JITTER_OF_TWO[1]


def _unless_jitter(microseconds: int) -> int:
    return microseconds * JITTER_OF_TWO[0] // JITTER_OF_TWO[1]
