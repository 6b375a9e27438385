"""From what was observed to numbers. Pure: nothing here starts, waits or reads.

An *observation* holds commits (updates of the weights, with the samples that truly entered each) and spells (how a
peer spent a stretch of time). A window of it is chosen and measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from benchmarks.heterogeneous.meter import Reading, between
from benchmarks.heterogeneous.setting import Setting

MAX_OVERRUNS = 0.1
"""part of a peer's microbatches that may be late; each epoch's last one is short and often counts as late"""
MAX_SOLO_ERROR = 0.02
"""how far a device alone may be from its nominal speed"""
MIN_QUIET_SECONDS = 5.0
PATIENCE = 2.5
"""times the shortest window, after which it is closed even where a rare peer's cycle is not complete"""


@dataclass(frozen=True)
class Commit:
    """One update of the weights."""

    epoch: int
    at: float
    samples: Mapping[int, float]
    """that truly entered the average, by peer"""
    reduces: Mapping[int, float] = field(default_factory=dict)
    """part of the vector that each peer averages for the others, where the system tells"""

    @property
    def total(self) -> float:
        return sum(self.samples.values())


@dataclass(frozen=True)
class Spell:
    """How a peer spent some time that ended at `at`; in seconds."""

    peer: int
    at: float
    compute: float
    wait: float
    """for others"""
    transfer: float
    """of gradients; counted also where it runs behind computing"""
    overruns: int
    microbatches: int


@dataclass(frozen=True)
class Observation:
    commits: tuple[Commit, ...] = ()
    spells: tuple[Spell, ...] = ()
    settled: int | None = None
    """position in `commits` from which on may be measured; None while not everybody has joined"""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """further facts for the report"""
    fault: str | None = None
    """why nothing of this may be believed"""


@dataclass(frozen=True)
class Length:
    """How long a window has to be, at least."""

    seconds: float
    epochs: int


FULL = Length(seconds=40.0, epochs=4)
QUICK = Length(seconds=15.0, epochs=3)


@dataclass(frozen=True)
class Window:
    """What happened after the commit `first` up to and with the commit `last` (positions in the commits)."""

    first: int
    last: int


def choose_window(commits: Sequence[Commit], settled: int, length: Length) -> Window | None:
    """The earliest window that is long enough; None if there is none yet.

    It begins and ends with commits that hold samples of the peer whose samples are in the fewest commits, so that
    it counts whole cycles of a peer that hands in only now and then.
    """
    eligible = range(settled, len(commits))
    peers = {peer for i in eligible for peer, count in commits[i].samples.items() if count}
    places = {peer: [i for i in eligible if commits[i].samples.get(peer)] for peer in peers}
    if not places:
        return None
    rarest = min(places.values(), key=lambda found: (len(found), found))
    window = _first_long_enough(commits, rarest, length)
    patient = Length(PATIENCE * length.seconds, round(PATIENCE * length.epochs))
    return window or _first_long_enough(commits, list(eligible), patient)


def _first_long_enough(commits: Sequence[Commit], places: Sequence[int], length: Length) -> Window | None:
    first = places[0]
    for last in places:
        long_enough = commits[last].at - commits[first].at >= length.seconds
        if long_enough and last - first >= length.epochs:
            return Window(first, last)
    return None


def measured(
    setting: Setting, system: str, observation: Observation, window: Window, readings: Sequence[Reading]
) -> dict[str, Any]:
    """The result of one system, without what depends on the solo speeds (see `judged`)."""
    start, end = observation.commits[window.first].at, observation.commits[window.last].at
    inside = observation.commits[window.first + 1 : window.last + 1]
    spells = [spell for spell in observation.spells if start < spell.at <= end]
    seconds = end - start
    by_peer = {peer: sum(commit.samples.get(peer, 0) for commit in inside) for peer in setting.peers}
    samples = sum(by_peer.values())
    traffic = between(readings, start, end)
    slowest = setting.slowest_link
    return {
        "system": system,
        "efficiency": None,
        "samples_per_s": samples / seconds,
        "solo_samples_per_s": None,
        "seconds_per_epoch": seconds / len(inside),
        "bytes_per_sample": sum(traffic.sent) / samples if samples else None,
        "bytes_per_sample_slowest_link": _slowest(traffic.sent, traffic.received, slowest, samples),
        "time_share": time_share(spells, seconds),
        "control_bytes_per_s": control_traffic(observation.commits[window.first : window.last + 1], spells, readings),
        "epochs": len(inside),
        "void": observation.fault or overrun(spells),
        "window_seconds": seconds,
        "samples_by_peer": [by_peer[peer] for peer in setting.peers],
        "epoch_seconds": epoch_seconds(observation.commits[window.first : window.last + 1]),
        "overruns": sum(spell.overruns for spell in spells),
        "microbatches": sum(spell.microbatches for spell in spells),
        "busy_cores": traffic.busy_cores,
        **observation.extras,
    }


def failed(system: str, reason: str) -> dict[str, Any]:
    """The result of a system that gave no measurement."""
    return {
        "system": system,
        "efficiency": None,
        "samples_per_s": None,
        "solo_samples_per_s": None,
        "seconds_per_epoch": None,
        "bytes_per_sample": None,
        "bytes_per_sample_slowest_link": None,
        "time_share": {"compute": None, "wait": None, "transfer": None},
        "epochs": 0,
        "void": reason,
    }


def judged(
    setting: Setting, result: Mapping[str, Any], before: Sequence[float], after: Sequence[float]
) -> dict[str, Any]:
    """The result with its efficiency, and void where a device alone was not as fast as it should be."""
    solo = sum((x + y) / 2 for x, y in zip(before, after, strict=True))
    reasons = [result["void"]] if result["void"] else []
    for moment, speeds in (("before", before), ("after", after)):
        for peer, (found, nominal) in enumerate(zip(speeds, setting.rates, strict=True)):
            if abs(found / nominal - 1) > MAX_SOLO_ERROR:
                reasons.append(f"alone, peer {peer} did {found:.2f} instead of {nominal:g} samples/s {moment} the run")
    speed = result["samples_per_s"]
    return {
        **result,
        "efficiency": None if speed is None else speed / solo,
        "solo_samples_per_s": solo,
        "void": "; ".join(reasons) or None,
    }


def time_share(spells: Sequence[Spell], seconds: float) -> dict[str, float]:
    """Of the window, mean over the peers that took part. Transfer that runs behind computing adds to more than 1."""
    whole = seconds * (len({spell.peer for spell in spells}) or 1)
    return {
        "compute": sum(spell.compute for spell in spells) / whole,
        "wait": sum(spell.wait for spell in spells) / whole,
        "transfer": sum(spell.transfer for spell in spells) / whole,
    }


def overrun(spells: Sequence[Spell]) -> str | None:
    """Why the pacing makes a measurement void, or None."""
    for peer in sorted({spell.peer for spell in spells}):
        late = sum(spell.overruns for spell in spells if spell.peer == peer)
        of = sum(spell.microbatches for spell in spells if spell.peer == peer)
        if late > max(1, MAX_OVERRUNS * of):
            return (
                f"the emulated device of peer {peer} was late in {late} of {of} microbatches: this computer is too "
                "busy or too slow"
            )
    return None


def epoch_seconds(commits: Sequence[Commit]) -> list[float]:
    """From each commit to the next."""
    return [later.at - earlier.at for earlier, later in pairwise(commits)]


def in_one_commit_an_epoch(commits: Sequence[Commit]) -> tuple[Commit, ...]:
    """Several averages of one epoch (of groups that split) as one commit, at the time of the last."""
    merged: dict[int, Commit] = {}
    for commit in commits:
        known = merged.get(commit.epoch)
        if known is None:
            merged[commit.epoch] = commit
            continue
        samples = dict(known.samples)
        for peer, count in commit.samples.items():
            samples[peer] = samples.get(peer, 0) + count
        merged[commit.epoch] = replace(known, at=max(known.at, commit.at), samples=samples)
    return tuple(sorted(merged.values(), key=lambda commit: commit.at))


def control_traffic(commits: Sequence[Commit], spells: Sequence[Spell], readings: Sequence[Reading]) -> float | None:
    """Bytes per second that a peer sends while nothing is averaged, mean over peers; None where that is too short.

    From half a second after a commit, so that ballots and votes are in, to a second before the next average begins.
    """
    seconds = sent = 0.0
    for earlier, later in pairwise(commits):
        transfers = [spell.transfer for spell in spells if spell.at == later.at]
        start, end = earlier.at + 0.5, later.at - max(transfers, default=0.0) - 1.0
        if end - start >= MIN_QUIET_SECONDS:
            traffic = between(readings, start, end)
            seconds, sent = seconds + end - start, sent + sum(traffic.sent) / len(traffic.sent)
    return sent / seconds if seconds else None


def _slowest(sent: Sequence[float], received: Sequence[float], peer: int, samples: float) -> float | None:
    """Bytes, both ways, on the slowest link for each sample of the whole swarm."""
    return (sent[peer] + received[peer]) / samples if samples else None
