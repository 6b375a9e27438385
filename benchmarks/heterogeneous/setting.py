"""What is measured: peers with their speeds and links, and how many samples make an update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from benchmarks.command import InvalidSetting
from protocol.quota import apportion

SAMPLES_PER_SECOND = 40.0
"""of a device of speed 1.0"""
MAX_PEERS = 200


@dataclass(frozen=True)
class Setting:
    speeds: tuple[float, ...] = (1.0, 1.0, 0.6, 0.15)
    """of the peers' devices; 1.0 is `SAMPLES_PER_SECOND`"""
    links: tuple[float, ...] = (100.0, 100.0, 20.0, 5.0)
    """of the peers, each way, in Mbit/s; 0 is not limited"""
    target: int = 512
    """samples of an update"""
    exact: bool = False
    """minga without overlap: exact large-batch training"""
    quick: bool = False
    """shorter windows"""

    def __post_init__(self) -> None:
        if len(self.speeds) != len(self.links):
            raise InvalidSetting(
                f"there are {len(self.speeds)} speeds and {len(self.links)} links; give one of each for every peer"
            )
        if not 2 <= len(self.speeds) <= MAX_PEERS:
            raise InvalidSetting(f"{len(self.speeds)} peers cannot be compared; give 2 to {MAX_PEERS} speeds and links")
        if not all(math.isfinite(speed) and speed > 0 for speed in self.speeds):
            raise InvalidSetting("a speed is not a positive number; give for example --speeds 1,1,0.6,0.15")
        if not all(math.isfinite(link) and link >= 0 for link in self.links):
            raise InvalidSetting("a link is a negative number; give Mbit/s, or 0 for a link without a limit")
        if self.target < len(self.speeds):
            raise InvalidSetting(f"a target of {self.target} is less than a sample a peer; give a larger --target")

    @property
    def peers(self) -> range:
        return range(len(self.speeds))

    @property
    def rates(self) -> tuple[float, ...]:
        """Samples per second of each peer alone."""
        return tuple(SAMPLES_PER_SECOND * speed for speed in self.speeds)

    @property
    def epoch_seconds(self) -> float:
        """How long an epoch lasts if nobody ever waits."""
        return self.target / sum(self.rates)

    @property
    def slowest_link(self) -> int:
        """The peer with the slowest link, among equals the one with the slowest device."""
        return min(self.peers, key=lambda i: (self.links[i] or math.inf, self.speeds[i], i))

    @property
    def slowest_mbits(self) -> float:
        """The slowest link, in Mbit/s; infinite if none is limited."""
        return min(link or math.inf for link in self.links)

    def quotas(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """The target, shared out among these peers in proportion to their speeds."""
        return apportion(self.target, [round(1000 * self.rates[i]) for i in members])

    def to_json(self) -> dict[str, Any]:
        return {
            "speeds": list(self.speeds),
            "links_mbit_per_s": list(self.links),
            "target": self.target,
            "exact": self.exact,
            "quick": self.quick,
            "samples_per_s_of_speed_1": SAMPLES_PER_SECOND,
        }


def parse_numbers(text: str, option: str) -> tuple[float, ...]:
    """Numbers that are separated by commas. Raises `InvalidSetting`."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidSetting(f"{option} {text} is not a list of numbers; give them like {option} 1,1,0.6") from None


def parse_systems(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Names of systems that are separated by commas. Raises `InvalidSetting`."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in known:
            raise InvalidSetting(f"there is no system {name!r}; choose among {', '.join(known)}")
    return names
