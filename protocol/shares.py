"""What a member of an all-reduce carries, and how the work of reducing is shared out among unequal links.

Of a vector of V bytes, member i of n reduces the share s_i. It sends the other n-1 their parts of its own vector and of
its average: V(1-s_i) + (n-1)V s_i = V(1 + (n-2)s_i) bytes, and receives as many. So a group costs a member between V
and 2V bytes, however large it is, and whoever reduces nothing carries just V: a slow link need only hold its own
vector. All peers hold the same weights bit by bit, so that one group can hold everybody who keeps pace; smaller groups
that mix over time would save nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from protocol.errors import LocalProtocolError
from protocol.manifest import Compression

WHOLE = 1 << 16
"""parts in which shares are counted; fine enough that rounding costs the largest group less than half a percent"""


def encoded_size(num_parameters: int, compression: Compression) -> int:
    """Bytes of a vector on the wire."""
    match compression:
        case "none":
            return 4 * num_parameters
        case "float16":
            return 2 * num_parameters
        case "uniform8":  # a byte for each, and what it takes to read them back
            return num_parameters + -(-num_parameters // 64)
        case "uniform4":  # half of one, and the same for smaller blocks
            return num_parameters // 2 + 5 * -(-num_parameters // 128)


@dataclass(frozen=True)
class Crowd:
    """What the duration of an all-reduce depends on: rates in bytes per second, the slower direction of each link."""

    size: int
    total: int
    slowest: int
    fastest: int

    @classmethod
    def of(cls, rates: Sequence[int]) -> Crowd:
        """Of at least one rate."""
        return cls(len(rates), sum(rates), min(rates), max(rates))

    @classmethod
    def prefixes(cls, rates: Sequence[int]) -> list[Crowd]:
        """Of the first rate, the first two, …"""
        return list(accumulate((cls.of([rate]) for rate in rates), cls.beside))

    def beside(self, other: Crowd | None) -> Crowd:
        """Both together."""
        if other is None:
            return self
        slowest, fastest = min(self.slowest, other.slowest), max(self.fastest, other.fastest)
        return Crowd(self.size + other.size, self.total + other.total, slowest, fastest)

    def microseconds(self, vector: int) -> int:
        """Duration of an all-reduce of `vector` bytes with the best shares, rounded up."""
        if self.size == 1:
            return 0
        own = _microseconds(vector, self.slowest)
        return max(own, self.reducing_microseconds(vector))

    def reducing_microseconds(self, vector: int) -> int:
        """The same, if the slowest link had nothing to carry but what it reduces.

        Together all carry V(2n-2) bytes; and where one link is so fast that it reduces the half that is allowed,
        the others carry V(n-1 + (n-2)/2).
        """
        if self.size == 1:
            return 0
        together = _microseconds(vector * (2 * self.size - 2), self.total)
        others = _microseconds(vector * (3 * self.size - 4), 2 * (self.total - self.fastest))
        return max(together, others)

    def rate_needed(self, vector: int, microseconds: int) -> int:
        """The least rate of one more member with which the all-reduce would last so long at most; 0 if none would."""
        own = -(-vector * 10**6 // microseconds)
        # in reducing_microseconds of n + 1 members, solved for the rate of the last
        together = -(-vector * 2 * self.size * 10**6 // microseconds) - self.total
        others = -(-vector * (3 * self.size - 1) * 10**6 // (2 * microseconds)) - (self.total - self.fastest)
        rate = max(own, together, others, 1)
        return rate if self.beside(Crowd.of([rate])).microseconds(vector) <= microseconds else 0


def _microseconds(size: int, rate: int) -> int:
    return -(-size * 10**6 // rate)


def reduce_shares(rates: Sequence[int]) -> tuple[int, ...]:
    """Each member's share in parts of `WHOLE`, by the rate of its link (bytes per second, at least 1).

    The longest transfer is as short as any shares can make it; so is the longest of those that reduce anything. The
    shares sum to `WHOLE`; of three members or more nobody reduces more than half. Members of the same rate have
    shares that differ by one part at most; which of them has it is the only thing that depends on their positions.
    Raises `LocalProtocolError` without a member.
    """
    if not rates or min(rates) < 1:
        raise LocalProtocolError("a vector is reduced by at least one member, each with a link")
    size = len(rates)
    if size <= 2:  # each carries V bytes, whoever reduces
        return tuple(WHOLE // size for _ in rates)
    # A member with the share s carries V (WHOLE + (size-2) s) / WHOLE bytes. Find the shortest duration, in units of
    # V / WHOLE / scale bytes, within which members can reduce everything. The scale is so fine that durations of
    # two different shares of any two members are never the same number.
    scale = max(rates) ** 2

    def room(duration: int) -> list[int]:
        carried = (duration * rate // scale for rate in rates)
        return [min(max(0, c - WHOLE) // (size - 2), WHOLE // 2) for c in carried]

    low, high = 0, (size * WHOLE * scale) // min(rates) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if sum(room(middle)) >= WHOLE:
            high = middle
        else:
            low = middle
    shares = room(low)
    # Several may have room for one more part at the same moment: the fastest take what is missing.
    growing = [i for i, (one, more) in enumerate(zip(shares, room(high), strict=True)) if more > one]
    for position in sorted(growing, key=lambda i: (-rates[i], i))[: WHOLE - sum(shares)]:
        shares[position] += 1
    return tuple(shares)
