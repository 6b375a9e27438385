"""What a round shows of the links of others.

A reducer sees how fast the sums of each member come, and how long each takes to have all means: it closes its stream
then. All members send the same number of bytes to a reducer, and get the same. So whoever is much slower than the
fastest is held up by its own link. That link carries other streams at the same time, so what we see is scaled to all of
them, as if connections that begin together shared it fairly.

The others may have been held up by our own link, or by whoever the round waits for: their links can do at least what we
have seen, by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from peer.swarm.parts import Contribution
from protocol.units import PeerId

Saw = Callable[[PeerId, float, bool], None]
"""a peer, bytes per second, and whether its link can do at least that, instead of just that"""
SawDrop = Callable[[PeerId, float], None]
"""a peer, and the bytes per second that its link does now, so few that a round was not made to wait for it"""

MIN_BYTES = 64 * 1024
MIN_SECONDS = 0.005
WAITED_SECONDS = 0.002  # a read that takes less found everything there already
MUCH_SLOWER = 1.5
MAX_RATE = 1.25e9  # bytes per second


@dataclass
class Arrival:
    """The sums of one member as they come. Times are of any steady clock, in seconds."""

    came: float
    """when its stream was opened; some of it may have come before this peer began the round"""
    num_bytes: int = 0
    _last: float = 0.0
    _seconds_waited: float = 0.0
    _bytes_waited: int = 0

    def note(self, before: float, after: float, num_bytes: int) -> None:
        """A piece was read between these times. What was there already, before the first wait, shows nothing."""
        if self._bytes_waited or after - before > WAITED_SECONDS:
            self._seconds_waited += after - before
            self._bytes_waited += num_bytes
        self.num_bytes += num_bytes
        self._last = after

    @property
    def is_measured(self) -> bool:
        """Whether this peer had to wait for enough of it."""
        return self._bytes_waited >= MIN_BYTES and self._seconds_waited >= MIN_SECONDS

    @property
    def rate(self) -> float:
        """Bytes per second, at which it came when this peer waited for it."""
        return self._bytes_waited / self._seconds_waited if self.is_measured else self.least_rate

    @property
    def least_rate(self) -> float:
        """Bytes per second from the first moment to the last, whatever it waited for."""
        return self.num_bytes / max(self._last - self.came, MIN_SECONDS)


class Departures:
    """When members have all means of this reducer."""

    def __init__(self, num_others: int) -> None:
        self.are_void = False
        """the round has failed, so streams are closed for other reasons"""
        self._are_several = num_others > 1
        self._first_mean = self._last_mean = 0.0
        self._fastest: float | None = None

    def mean_is_ready(self, now: float) -> None:
        self._first_mean, self._last_mean = self._first_mean or now, now

    def note(self, came: float, now: float) -> tuple[float, bool]:
        """Somebody who came at `came` has all now: the seconds it took, and whether only its link took so long.

        Without others to compare it with, that is so if it took much longer than this peer took to make the means.
        """
        seconds = max(now - max(self._first_mean, came), MIN_SECONDS)
        quickly = self._fastest if self._are_several else max(self._last_mean - self._first_mean, MIN_SECONDS)
        self._fastest = min(seconds, self._fastest or seconds)
        return seconds, quickly is not None and seconds >= MUCH_SLOWER * quickly


class Traffic:
    """The bytes of a round between all its members, by the encoded sizes of the parts."""

    def __init__(self, me: PeerId, members: Sequence[Contribution], sizes: Mapping[PeerId, int]) -> None:
        self._me, self._members, self._sizes = me, members, sizes

    @property
    def is_telling(self) -> bool:
        """Whether we reduce enough for the rates of our streams to say much: short ones are mostly beginnings."""
        return 2 * self._sizes.get(self._me, 0) >= max(self._sizes.values())

    @property
    def means(self) -> float:
        """The bytes that each member gets from us."""
        return self._sizes[self._me]

    def up(self, peer: PeerId, *, with_means: bool) -> float:
        """What the peer's link carries up while one byte of its sums comes to us.

        If the round waits for that peer, its means are under way at the same time; else they wait for others.
        """
        sender = next(member for member in self._members if member.peer == peer)
        means = self._sizes.get(peer, 0) if with_means else 0
        to = {
            other.peer: means + (self._sizes.get(other.peer, 0) if sender.samples else 0)
            for other in self._members
            if other.peer != peer
        }
        return _carried(to[self._me], to.values()) / self._sizes[self._me]

    def part(self, peer: PeerId) -> int:
        """The bytes that everybody sends to this reducer, and gets from it."""
        return self._sizes.get(peer, 0)

    def between_us(self, peer: PeerId) -> int:
        """The bytes that the peer sends us: sums of our part, means of its own."""
        return self._sizes.get(self._me, 0) + self._sizes.get(peer, 0)

    def all_up(self, peer: PeerId) -> int:
        """The bytes that the peer sends to all others, if it has samples."""
        own = self._sizes.get(peer, 0)
        return sum(own + self._sizes.get(other.peer, 0) for other in self._members if other.peer != peer)

    def means_down(self, peer: PeerId) -> int:
        """The bytes of means that the peer gets from all others while it gets ours: they come at the same pace."""
        return _carried(self.part(self._me), (self.part(other.peer) for other in self._members if other.peer != peer))

    def down(self, peer: PeerId) -> float:
        """The bytes that the peer's link carries down while it gets from us all that it gets."""
        come_from = {
            other.peer: self._sizes.get(other.peer, 0) + (self._sizes.get(peer, 0) if other.samples else 0)
            for other in self._members
            if other.peer != peer
        }
        return _carried(come_from[self._me], come_from.values())


def _carried(ours: int, all_of_them: Iterable[int]) -> int:
    """By a link that several connections share fairly, until ours has carried `ours`."""
    return sum(min(ours, others) for others in all_of_them)


def report_arrivals(arrivals: Mapping[PeerId, Arrival], traffic: Traffic, saw: Saw) -> None:
    """Tell what the arrivals of a whole round show."""
    rates = {peer: arrival.rate for peer, arrival in arrivals.items() if arrival.num_bytes >= MIN_BYTES}
    if not traffic.is_telling or not rates:
        return
    slowest, fastest = min(rates.values()), max(rates.values())
    for peer, rate in rates.items():
        arrival = arrivals[peer]
        if arrival.is_measured and (len(rates) == 1 or rate * MUCH_SLOWER <= fastest):
            scale = traffic.up(peer, with_means=rate <= MUCH_SLOWER * slowest)
            saw(peer, min(rate * scale, MAX_RATE), False)
        else:
            saw(peer, min(arrival.least_rate, MAX_RATE), True)


def report_departure(
    peer: PeerId, arrival: Arrival, now: float, departures: Departures, traffic: Traffic, saw: Saw
) -> None:
    """Tell what it shows that a member has all means now."""
    seconds, is_slow = departures.note(arrival.came, now)
    num_bytes = traffic.down(peer) if is_slow else traffic.means_down(peer)
    if num_bytes >= MIN_BYTES and traffic.is_telling:
        saw(peer, min(num_bytes / seconds, MAX_RATE), not is_slow)
