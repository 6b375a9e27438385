"""What this peer has seen of the links of others, for its ballots.

Rates are bytes per second. A rate is seen from this side, so it is never above what this peer's own link can do; the
plan takes the median over observers (`protocol/links.py`).

Some transfers show what a link can do; others only that it can do so much at least, because something else held them
up. Those confirm what is known, or refute it if it is far below.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from protocol.units import PeerId

KEPT = 5  # sightings of each direction; so three in a row change what is reported
FORGET_SECONDS = 900.0
FAR_ABOVE = 1.5  # times what is known; less may be an error of measuring, and those that are too high would add up
LEAST_RATE = 1000
STEP_PERCENT = 10
"""reported rates lie on a grid of such steps, so that jitter does not make every ballot different"""
LEEWAY_PERCENT = 12  # how far rates may leave their step of the grid before another is reported


@dataclass(frozen=True)
class Seen:
    """Rates of one peer; 0: not seen."""

    up: int
    down: int


@dataclass
class _Direction:
    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    _renewed: float = 0.0
    _reported: int = 0

    def saw(self, rate: float, now: float, at_least: bool) -> None:
        if not self.at(now):
            self._rates.clear()
            self._reported = 0
        if at_least and not self._rates:
            return  # it may be far too low
        self._renewed = now
        if at_least and rate < FAR_ABOVE * self._median:
            return
        self._rates.append(rate)
        median = self._median
        lowest = self._reported * (100 - LEEWAY_PERCENT) / 100
        highest = self._reported * (100 + STEP_PERCENT) / 100 * (100 + LEEWAY_PERCENT) / 100
        if not lowest <= median < highest:
            self._reported = _on_grid(median)

    def saw_anew(self, rate: float, now: float) -> None:
        self._rates.clear()
        self._reported = 0
        self.saw(rate, now, at_least=False)

    def at(self, now: float) -> int:
        return self._reported if now - self._renewed < FORGET_SECONDS else 0

    @property
    def _median(self) -> float:
        """Of an even number, the upper one: a single low rate may have many causes."""
        return sorted(self._rates)[len(self._rates) // 2]


class LinkBook:
    """Sightings of recent transfers. `now` is any steady clock, in seconds."""

    def __init__(self) -> None:
        self._up: dict[PeerId, _Direction] = {}
        self._down: dict[PeerId, _Direction] = {}

    def saw_up(self, peer: PeerId, rate: float, now: float, *, at_least: bool = False) -> None:
        """`peer` sent to us at `rate` while only its link held it up; `at_least`: or something else did."""
        self._up.setdefault(peer, _Direction()).saw(rate, now, at_least)

    def saw_down(self, peer: PeerId, rate: float, now: float, *, at_least: bool = False) -> None:
        """`peer` took from us at `rate` while only its link held us up; `at_least`: or something else did."""
        self._down.setdefault(peer, _Direction()).saw(rate, now, at_least)

    def saw_alone(self, peer: PeerId, up: float, down: float, now: float) -> None:
        """What a measurement of its own showed. If that is far above what is known, it counts at once: nothing that
        comes in the midst of other work shows how much faster a link has become."""
        for directions, rate in ((self._up, up), (self._down, down)):
            direction = directions.setdefault(peer, _Direction())
            if rate >= FAR_ABOVE * direction.at(now):
                direction.saw_anew(rate, now)
            else:
                direction.saw(rate, now, at_least=False)

    def saw_drop(self, peer: PeerId, rate: float, now: float) -> None:
        """`peer` sent so slowly that others went on without it: what was seen before holds no more."""
        self._up.setdefault(peer, _Direction()).saw_anew(rate, now)

    def seen(self, now: float) -> dict[PeerId, Seen]:
        """What the last sightings of each peer show, on the grid, unless they are too old."""
        for directions in (self._up, self._down):
            for peer in [peer for peer, direction in directions.items() if not direction.at(now)]:
                del directions[peer]
        nothing = _Direction()
        return {
            peer: Seen(self._up.get(peer, nothing).at(now), self._down.get(peer, nothing).at(now))
            for peer in sorted(self._up.keys() | self._down.keys())
        }


def _on_grid(rate: float) -> int:
    """The nearest lower of 1000, 1100, 1210, … bytes per second."""
    step = LEAST_RATE
    while step + step * STEP_PERCENT // 100 <= rate:
        step += step * STEP_PERCENT // 100
    return step
