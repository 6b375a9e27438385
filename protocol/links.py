"""How fast each peer's link is, from what others have seen of it.

A link is the lower median over distinct observers, upload and download apart. The peer's own word counts only for a
direction that nobody else has seen. So, of its own link, a peer cannot change anything by lying once it was observed.
About the link of another, a liar

* that is its only observer can say anything;
* that is one of two can say less, but never more than the other one;
* that is one of three or more cannot move the median beyond what honest observers have seen;

and in general, to raise a link beyond all honest sights takes more liars than honest observers, to lower it as many.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from protocol.records import Ballot
from protocol.units import PeerId

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
    ups: dict[PeerId, list[int]] = {peer: [] for peer in cast}
    downs: dict[PeerId, list[int]] = {peer: [] for peer in cast}
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
                    ups[peer].append(seen.up)
                if seen.down:
                    downs[peer].append(seen.down)
    links = {}
    for peer in cast:
        said_up, said_down = own.get(peer, (0, 0))
        up = _lower_median(ups[peer]) or said_up or DEFAULT_LINK
        down = _lower_median(downs[peer]) or said_down or DEFAULT_LINK
        links[peer] = Link(up, down, observers[peer])
    return links


def _lower_median(rates: list[int]) -> int:
    rates.sort()
    return rates[(len(rates) - 1) // 2] if rates else 0
