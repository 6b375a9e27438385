"""How fast each peer's link is, from what others have seen of it.

A link is the lower median over distinct observers, upload and download apart, but for those whose own slower link was
in the way. The peer's own word counts only for a direction that nobody else has seen. So, of its own link, a peer
cannot change anything by lying once it was observed. About the link of another, a liar

* that is its only observer can say anything, and also where the links of all others are too slow to see more;
* that is one of two can say less, but else never more than the other one;
* that is one of three or more cannot move the median beyond what honest observers have seen;

and in general, to raise a link beyond all honest sights takes more liars than honest observers, to lower it as many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from protocol.records import Ballot
from protocol.units import PeerId

FAR = 3, 2
"""what is less than a rate by more is clearly less"""
BEYOND = 5, 4
"""how far a rate may be above what the observer's own link can do: measurements err"""
DEFAULT_LINK = 12_500_000
"""bytes per second (100 Mbit/s), of a link of which nothing is known yet: a guess that the first epochs correct"""


@dataclass(frozen=True)
class Link:
    """Rates in bytes per second, both at least 1."""

    up: int
    down: int
    observers: int
    """peers other than its own that have seen it, in either direction"""

    @property
    def slower(self) -> int:
        """Of the two directions: averaging uses both at once, equally."""
        return min(self.up, self.down)


def links_of(ballots: Iterable[Ballot]) -> dict[PeerId, Link]:
    """The link of each peer that cast one of `ballots` (one of each peer)."""
    cast = {ballot.peer: ballot for ballot in ballots}
    ups: dict[PeerId, list[_Sight]] = {peer: [] for peer in cast}
    downs: dict[PeerId, list[_Sight]] = {peer: [] for peer in cast}
    observers = dict.fromkeys(cast, 0)
    own: dict[PeerId, tuple[int, int]] = {}
    for observer, ballot in cast.items():
        for seen in ballot.links:
            peer = seen.peer
            if peer == observer:
                own[peer] = seen.up, seen.down
            elif peer in cast:
                observers[peer] += 1
                if seen.up:
                    ups[peer].append((seen.up, observer))
                if seen.down:
                    downs[peer].append((seen.down, observer))
    # what an observer's link is known to do at least: it may have been in the way
    up_limits = {peer: max(sights)[0] for peer, sights in ups.items() if sights}
    down_limits = {peer: max(sights)[0] for peer, sights in downs.items() if sights}
    links = {}
    for peer in cast:
        said_up, said_down = own.get(peer, (0, 0))
        up = _lower_median(_telling(ups[peer], down_limits)) or said_up or DEFAULT_LINK
        down = _lower_median(_telling(downs[peer], up_limits)) or said_down or DEFAULT_LINK
        links[peer] = Link(up, down, observers[peer])
    return links


_Sight = tuple[int, PeerId]
"""a rate, and who has seen it"""


def _telling(sights: list[_Sight], limits: Mapping[PeerId, int]) -> list[int]:
    """The rates of those observers whose own links could have carried about the most that was seen.

    Nobody is believed to have seen clearly more than its own link can do. Who has seen about as much as anybody counts
    in any case.
    """
    bounded = [(min(rate, limits.get(observer, rate) * BEYOND[0] // BEYOND[1]), observer) for rate, observer in sights]
    most = max(bounded, default=(0, ""))[0]
    return [rate for rate, observer in bounded if max(rate, limits.get(observer, most)) * FAR[0] >= most * FAR[1]]


def _lower_median(rates: list[int]) -> int:
    rates.sort()
    return rates[(len(rates) - 1) // 2] if rates else 0
