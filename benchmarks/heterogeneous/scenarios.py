"""Runs in which something changes: a link that breaks down, a device that slows down, a peer that is cursed.

* `link-drop`: the link of one of the best connected peers falls to a fiftieth, and later recovers.
* `slow-down`: one of the fastest devices does a quarter of its speed, as if another program used it.
* `cursed`: a fifth peer with a link of 1 Mbit/s joins the others.

The first two tell the seconds and samples of each epoch, so that one can see who had to wait, and when.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from benchmarks.command import InvalidSetting
from benchmarks.heterogeneous.leftovers import Run
from benchmarks.heterogeneous.measure import Commit, Length, Observation, epoch_seconds, failed, overrun
from benchmarks.heterogeneous.processes import PeerEnded
from benchmarks.heterogeneous.session import Result, Tell, compare, perform, usual_length
from benchmarks.heterogeneous.setting import Setting
from benchmarks.heterogeneous.slowing import slowed_worker
from benchmarks.heterogeneous.systems import Stage, system_of
from benchmarks.heterogeneous.systems.minga import HOST
from protocol.manifest import AveragingSection

MAX_SECONDS = 600.0
"""after everybody has joined, when a scenario ends however far it has come"""
EPOCHS_BEFORE, EPOCHS_DURING, EPOCHS_AFTER = 6, 12, 24
DROP = 50
"""how many times slower the link becomes: 100 Mbit/s fall to 2"""
UNLIMITED_DROPS_TO = 2.0
"""Mbit/s"""
SLOW_DOWN = 4
CURSED_SPEED, CURSED_LINK = 0.6, 1.0
CURSED_WINDOWS = 2
"""the cursed peer's cycles are long, and so is the window"""
FOLLOWS = 0.25
"""how far the samples of a peer may be from its fair share to be said to follow its speed"""
BACK_EPOCHS = 3
"""in a row with samples, after which a peer is in again"""


def run_scenario(name: str, setting: Setting, systems: Sequence[str], run: Run, tell: Tell) -> list[Result]:
    """The results of a scenario. Raises `InvalidSetting` where a system cannot play it."""
    if name == "cursed":
        return cursed(setting, systems, run, tell)
    if any(not system.startswith("minga") for system in systems):
        raise InvalidSetting(f"the scenario {name} is for minga only; give --systems minga")
    play = link_drop if name == "link-drop" else slow_down
    return [play(setting, system, run, tell) for system in systems]


@dataclass
class Timeline:
    """A director: lets some epochs pass, changes something, lets more pass, and may change it back."""

    change: Callable[[Stage], object]
    change_back: Callable[[Stage], object] | None
    changed: int | None = field(default=None, init=False)
    """position of the last commit before the change"""
    changed_back: int | None = field(default=None, init=False)
    _ends_at: float | None = field(default=None, init=False)

    def __call__(self, stage: Stage, observation: Observation) -> bool:
        if observation.settled is None:
            return False
        self._ends_at = self._ends_at or time.monotonic() + MAX_SECONDS
        if time.monotonic() > self._ends_at:
            return True
        last = len(observation.commits) - 1
        if self.changed is None:
            if last - observation.settled >= EPOCHS_BEFORE:
                self.change(stage)
                self.changed = last
            return False
        if self.change_back is None or self.changed_back is not None:
            begin = self.changed if self.changed_back is None else self.changed_back
            return last - begin >= EPOCHS_AFTER
        if last - self.changed >= EPOCHS_DURING:
            self.change_back(stage)
            self.changed_back = last
        return False


def link_drop(setting: Setting, system: str, run: Run, tell: Tell) -> Result:
    peer = max((p for p in setting.peers if p != HOST), key=lambda p: (setting.links[p] or float("inf"), -p))
    usual = setting.links[peer]
    dropped = usual / DROP if usual else UNLIMITED_DROPS_TO
    tell(f"{system}: the link of peer {peer} will fall from {usual:g} to {dropped:g} Mbit/s and recover …")
    timeline = Timeline(lambda s: s.network.limit(peer, dropped), lambda s: s.network.limit(peer, usual))
    result, commits = _play(setting, system, run, timeline, f"link of peer {peer}: {dropped:g} Mbit/s")
    if timeline.changed is None:
        return result
    term = AveragingSection().term_epochs
    recovered = len(commits) if timeline.changed_back is None else timeline.changed_back + 1
    left = epochs_until_relieved(commits[timeline.changed + 1 : recovered], peer)
    back = epochs_until_back(commits[recovered:], peer)
    return result | {
        "demoted_after_terms": None if left is None else left / term,
        "promoted_after_terms": None if left is None or back is None else back / term,
    }


def slow_down(setting: Setting, system: str, run: Run, tell: Tell) -> Result:
    peer = max((p for p in setting.peers if p != HOST), key=lambda p: (setting.speeds[p], -p))
    rate = setting.rates[peer]
    tell(f"{system}: the device of peer {peer} will do {rate / SLOW_DOWN:g} instead of {rate:g} samples/s …")
    with ExitStack() as stack:
        timeline = Timeline(
            lambda stage: stack.enter_context(slowed_worker(stage.processes.pid(peer), rate, SLOW_DOWN)), None
        )
        result, commits = _play(setting, system, run, timeline, f"speed of peer {peer}: a quarter", exempt=peer)
    if timeline.changed is None:
        return result
    speeds = [speed / (SLOW_DOWN if p == peer else 1) for p, speed in enumerate(setting.speeds)]
    fair = speeds[peer] / sum(speeds)
    return result | {"quota_follows_after_epochs": epochs_until_fair(commits[timeline.changed + 1 :], peer, fair)}


def cursed(setting: Setting, systems: Sequence[str], run: Run, tell: Tell) -> list[Result]:
    """Each system without and with the cursed peer."""
    length = usual_length(setting)
    longer = Length(CURSED_WINDOWS * length.seconds, CURSED_WINDOWS * length.epochs)
    more = replace(setting, speeds=(*setting.speeds, CURSED_SPEED), links=(*setting.links, CURSED_LINK))
    without = compare(setting, systems, run, tell, longer)
    tell(f"now with one more peer, of speed {CURSED_SPEED:g} on {CURSED_LINK:g} Mbit/s")
    results = compare(more, systems, run, tell, longer)
    for alone, together in zip(without, results, strict=True):
        together["without_it"] = alone
        together["void"] = together["void"] or alone["void"]
        if alone["samples_per_s"] and together["samples_per_s"]:
            *others, fifth = (count / together["window_seconds"] for count in together["samples_by_peer"])
            together["others_samples_per_s"] = sum(others)
            together["others_kept"] = sum(others) / alone["samples_per_s"]
            together["merged_share"] = fifth / more.rates[-1]
    return results


def _play(
    setting: Setting, system: str, run: Run, timeline: Timeline, what: str, exempt: int | None = None
) -> tuple[Result, tuple[Commit, ...]]:
    try:
        observation, _ = perform(setting, system_of(system, setting), run, timeline, 2 * MAX_SECONDS)
    except PeerEnded as error:
        return failed(system, str(error)), ()
    if observation.settled is None or timeline.changed is None:
        return failed(system, f"it made too few updates within {MAX_SECONDS:.0f} s"), ()
    commits = observation.commits
    shown = commits[observation.settled :]
    seconds = epoch_seconds(shown)
    spells = [s for s in observation.spells if s.at > shown[0].at and s.peer != exempt]
    result = failed(system, "") | {
        "void": observation.fault or overrun(spells),
        "epochs": len(seconds),
        "change": what,
        "changed_after_epoch": timeline.changed - observation.settled,
        "changed_back_after_epoch": None
        if timeline.changed_back is None
        else timeline.changed_back - observation.settled,
        "epoch_seconds": seconds,
        "epoch_samples": [[c.samples.get(p, 0) for p in setting.peers] for c in shown[1:]],
        "longest_epoch": longest(seconds),
        "longest_epoch_of_usual": max(seconds, default=0.0) / statistics.median(seconds[:EPOCHS_BEFORE]),
        **observation.extras,
    }
    return result, commits


def longest(seconds: Sequence[float]) -> float | None:
    """The longest an epoch ever was, relative to the median of the two before and the two after it."""
    ratios = []
    for i, one in enumerate(seconds):
        neighbours = [*seconds[max(0, i - 2) : i], *seconds[i + 1 : i + 3]]
        if neighbours:
            ratios.append(one / statistics.median(neighbours))
    return max(ratios, default=None)


def epochs_until_relieved(commits: Sequence[Commit], peer: int) -> int | None:
    """After how many epochs the peer's link had less to carry: the first without its samples, or reduction by it."""
    carries = (commit.samples.get(peer) and commit.reduces.get(peer) for commit in commits)
    return next((i for i, it_does in enumerate(carries) if not it_does), None)


def epochs_until_back(commits: Sequence[Commit], peer: int) -> int | None:
    """After how many epochs the peer's samples were in every one of `BACK_EPOCHS`, and it averaged for others."""
    for i in range(len(commits) - BACK_EPOCHS + 1):
        if all(c.samples.get(peer) and c.reduces.get(peer) for c in commits[i : i + BACK_EPOCHS]):
            return i
    return None


def epochs_until_fair(commits: Sequence[Commit], peer: int, fair: float) -> int | None:
    """After how many epochs the peer's part of the samples was `fair`, but for a quarter and one sample."""
    for i, commit in enumerate(commits):
        if abs(commit.samples.get(peer, 0) - fair * commit.total) <= FOLLOWS * fair * commit.total + 1:
            return i
    return None
