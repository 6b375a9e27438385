"""Why a plan is as it is, in sentences for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.lanes import Lanes, Work
from protocol.pace import JOIN_PERCENT, STAY_PERCENT, Candidate
from protocol.plan import MAX_CADENCE, MAX_GROUP_SIZE
from protocol.shares import WHOLE, Crowd
from protocol.units import PeerId


@dataclass(frozen=True)
class Verdict:
    reason: str
    """of the whole plan, or why there is none"""
    of_peer: Mapping[PeerId, str] = field(default_factory=dict)
    """for every peer that cast a ballot: its lane, what put it there, and what would change that"""


def explain(lanes: Lanes, shares: Mapping[PeerId, int], work: Work) -> dict[PeerId, str]:
    """The reason for the place of every candidate. `shares`: of the vector that step members reduce."""
    crowd = Crowd.of([one.rate for one in lanes.step])
    least = _rate_to_join(lanes, crowd, work)
    reasons = {one.peer: _of_step(one, shares[one.peer], lanes, work) for one in lanes.step}
    for one, cadence in lanes.slow:
        reasons[one.peer] = f"slow lane{_every(cadence)}: {_why_not_step(one, crowd, lanes, work, least)}"
    for one, too_slow in lanes.left_out:
        if too_slow == "link":
            why = f"its {rate(one.rate)} cannot carry a transfer even in {MAX_CADENCE} epochs; a faster link would do"
        else:
            why = "the links of the step lane cannot serve more peers; more fast links would do"
        reasons[one.peer] = f"left out: {why}"
    return reasons


def _of_step(one: Candidate, share: int, lanes: Lanes, work: Work) -> str:
    size = len(lanes.step)
    if size == 1:
        return "step lane: it is alone there, with nothing to transfer"
    vector = work.size(lanes.compression)
    carried = vector * (WHOLE + (size - 2) * share) // WHOLE
    text = (
        f"step lane: its {rate(one.rate)} carry the {amount(carried)} of a round in "
        f"{seconds(carried * 10**6 // one.rate)} of the epoch's {seconds(lanes.gathering_microseconds)}"
    )
    if not work.overlap:
        return f"{text}, and {seconds(lanes.round_microseconds)} of waiting for the round come after it"
    lowest = -(-work.size(work.codecs[-1]) * 10**6 * 100 // (STAY_PERCENT * lanes.gathering_microseconds))
    return f"{text}; below {rate(lowest)} it would go to the slow lane" if lowest < one.rate else text


def _why_not_step(one: Candidate, crowd: Crowd, lanes: Lanes, work: Work, least: int) -> str:
    vector = work.size(work.codecs[-1])
    needed = crowd.beside(Crowd.of([one.rate])).microseconds(vector)
    text = f"with its {rate(one.rate)}, a round would need {seconds(needed)}"
    epoch = seconds(lanes.gathering_microseconds)
    if work.overlap:
        text += f" of the epoch's {epoch}, of which {JOIN_PERCENT} % are allowed"
    else:
        text += f" on top of the epoch's {epoch}, for which all would wait"
    if len(lanes.step) == MAX_GROUP_SIZE:
        return f"{text}; the step lane holds no more than {MAX_GROUP_SIZE} peers"
    if least > one.rate:
        return f"{text}; from {rate(least)} on it would step with the others"
    return f"{text}; a larger batch would make room for more peers in the step lane"


def _rate_to_join(lanes: Lanes, crowd: Crowd, work: Work) -> int:
    """The link with which one more peer would step with the others; 0 if none would do."""
    if not work.overlap:
        return 0
    allowed = lanes.gathering_microseconds * JOIN_PERCENT // 100
    return crowd.rate_needed(work.size(work.codecs[-1]), allowed) if allowed else 0


def _every(cadence: int) -> str:
    return ", every epoch" if cadence == 1 else f" every {cadence} epochs"


def rate(bytes_per_second: int) -> str:
    """As people name links."""
    kilobits = bytes_per_second * 8 / 1000
    return f"{_short(kilobits / 1000)} Mbit/s" if kilobits >= 1000 else f"{_short(kilobits)} kbit/s"


def amount(size: int) -> str:
    if size >= 10**6:
        return f"{_short(size / 10**6)} MB"
    return f"{_short(size / 1000)} kB"


def seconds(microseconds: int) -> str:
    return f"{_short(microseconds / 10**6)} s"


def _short(value: float) -> str:
    """Two digits or so."""
    digits = 0 if value >= 100 else 1 if value >= 1 else 2 if value >= 0.1 else 3
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
