"""What a peer tells its owner while it runs: values, shown by `peer/cli/render.py` as lines, progress or JSON.

Never contains a secret.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from protocol.plan import Lane, Plan
from protocol.units import Epoch, PeerId, RunId


@dataclass(frozen=True)
class Event:
    def to_json(self) -> dict[str, Any]:
        return {"event": type(self).__name__, **asdict(self)}


@dataclass(frozen=True)
class Preparing(Event):
    """A step of the start that can take seconds."""

    what: str


@dataclass(frozen=True)
class Started(Event):
    run: RunId
    name: str
    """of the run"""
    peer: PeerId
    peer_name: str
    state_dir: str
    invite: str
    num_parameters: int
    target_batch_size: int


@dataclass(frozen=True)
class Measured(Event):
    """How fast this machine trains alone."""

    device: str
    throughput: float
    """samples per second"""
    microbatch: int
    emulated: bool


@dataclass(frozen=True)
class LinkMeasured(Event):
    """What other peers saw of this one's link when it came."""

    rate: float
    """bytes per second, the lesser of up and down"""
    observers: int


@dataclass(frozen=True)
class Transferring(Event):
    what: str
    done: int
    """bytes"""
    total: int
    """bytes"""


@dataclass(frozen=True)
class CaughtUp(Event):
    epoch: Epoch
    size: int
    """bytes received"""
    seconds: float
    gradients: int
    """of so many epochs that were missed; 0: the whole state"""


@dataclass(frozen=True)
class Share(Event):
    peer: PeerId
    name: str
    throughput: float
    """samples per second, as voted"""
    quota: int
    """samples in an epoch"""
    lane: Lane
    cadence: int
    """epochs, after which it hands in"""
    reduces: float
    """part of the vector that it averages for all"""


def shares_of(plan: Plan, name_of: Callable[[PeerId], str]) -> tuple[Share, ...]:
    """Of everybody in the plan, the step lane first."""
    step = [
        Share(m.peer, name_of(m.peer), m.throughput / 1000, m.quota, "step", 1, m.share / group.whole)
        for group in plan.groups
        for m in group.members
    ]
    slow = [Share(m.peer, name_of(m.peer), m.throughput / 1000, m.quota, "slow", m.cadence, 0.0) for m in plan.slow]
    return (*step, *slow)


@dataclass(frozen=True)
class PlanAdopted(Event):
    term: int
    shares: tuple[Share, ...]
    reason: str


@dataclass(frozen=True)
class Gathering(Event):
    """Progress within an epoch."""

    epoch: Epoch
    samples: int
    quota: int
    throughput: float
    """samples per second"""


@dataclass(frozen=True)
class EpochCommitted(Event):
    epoch: Epoch
    """updates committed so far, this one included"""
    samples: dict[PeerId, int]
    """that entered the average, by peer"""
    seconds: float
    """since the last commit"""
    gather_seconds: float
    """in which this peer gathered its samples"""
    wait_seconds: float
    """in which its worker had nothing to do before that"""
    transfer_seconds: float
    """of averaging; behind the next epoch's gathering where the run overlaps them"""
    stale_samples: int
    """of this peer, worked before the weights of the epoch were there"""
    guests: dict[PeerId, int]
    """slow peers whose samples entered with this peer's"""
    training_bits_per_byte: float | None
    """of this peer's own samples"""
    heldout_bits_per_byte: float | None
    """latest known in the swarm"""
    heldout_epoch: Epoch | None
    learning_rate: float
    attempt: int
    reason: str
    """why the round ended so: also without whom"""
    bytes_sent: int
    bytes_received: int
    overruns: int
    """microbatches that took longer than their emulated duration"""


@dataclass(frozen=True)
class HandedIn(Event):
    """A slow peer's samples of one cycle are with its sponsor, and enter the next round."""

    samples: int
    sponsor: PeerId
    epoch: Epoch
    """of the step lane"""
    cadence: int
    """epochs between hand-ins"""
    seconds: float
    """that the transfer took, behind the gathering"""


@dataclass(frozen=True)
class Evaluated(Event):
    epoch: Epoch
    heldout_bits_per_byte: float


@dataclass(frozen=True)
class CheckpointSaved(Event):
    epoch: Epoch
    path: str


@dataclass(frozen=True)
class Notice(Event):
    """Something the owner may want to know; training goes on."""

    text: str


@dataclass(frozen=True)
class Left(Event):
    epoch: Epoch
    reason: str
    total_samples: int
    """this peer's, in this session"""


Listener = Callable[[Event], None]
