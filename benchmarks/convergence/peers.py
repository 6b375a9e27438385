"""The same runs by real peers, as users run them: processes and sockets, in network namespaces of their own.

Their samples are others than those of the replay (each peer has its own identity, and quotas follow measured speeds),
and the first epochs belong to the founder alone. So a value near the replay's is what one can hope for, not the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.convergence.jobs import Run, Tell
from benchmarks.convergence.report import Row
from benchmarks.convergence.setting import NUM_PEERS, SPEEDS, Setting
from benchmarks.convergence.variants import EXACT, OVERLAPPED, SLOW_LANE, Variant
from benchmarks.heterogeneous import leftovers
from benchmarks.heterogeneous import setting as harness
from benchmarks.heterogeneous.network import Network
from benchmarks.heterogeneous.processes import PeerEnded, Processes, Said
from benchmarks.heterogeneous.systems import Stage
from benchmarks.heterogeneous.systems.minga import HOST, START_SECONDS, Minga

VARIANTS = (EXACT, OVERLAPPED, SLOW_LANE)
PACE = 0.3
"""of each device, of its speed in `benchmarks.heterogeneous`, so that this computer's processors suffice"""
SLOW_LINK = 2.0
"""Mbit/s"""
PATIENCE = 6
"""times the seconds that the epochs take if nobody ever waits"""
LOOK_SECONDS, TELL_SECONDS = 0.5, 30.0


class ConfiguredMinga(Minga):
    """`minga host` with this run, and `minga join` for everybody else."""

    def __init__(self, run_toml: str) -> None:
        super().__init__("minga", exact=False)
        self._run_toml = run_toml

    def start(self, stage: Stage) -> None:
        toml = stage.directory / "run.toml"
        toml.write_text(self._run_toml)
        self._start(stage, HOST, ["host", str(toml)])
        invite = stage.processes.wait_for(HOST, "Started", START_SECONDS).event["invite"]
        for peer in stage.setting.peers:
            if peer != HOST:
                self._start(stage, peer, ["join", invite])


def run_peers(setting: Setting, variants: Sequence[Variant], tell: Tell, logs: Path | None) -> list[Run]:
    """One after the other, since all share this computer. Raises `PeerEnded`."""
    runs = []
    with leftovers.Run(logs) as bench:
        for seed in range(setting.seeds):
            for variant in variants:
                tell(f"peers, {variant.name}, seed {seed} …")
                runs.append(_run(setting, variant, seed, bench, tell))
                tell(f"peers, {variant.name}, seed {seed}: {runs[-1].final:.4f} bits per byte")
    return runs


def _run(setting: Setting, variant: Variant, seed: int, bench: leftovers.Run, tell: Tell) -> Run:
    links = (0.0,) * (NUM_PEERS - 1) + ((0.0,) if variant.lane is None else (SLOW_LINK,))
    swarm = harness.Setting(speeds=tuple(PACE * speed for speed in SPEEDS), links=links, target=setting.target)
    directory = bench.directory / f"{variant.name.replace(' ', '-')}-{seed}"
    directory.mkdir()
    began = time.monotonic()
    with ExitStack() as stack:
        network = stack.enter_context(Network(bench.name, links))
        processes = Processes(directory)
        if bench.logs:
            stack.callback(processes.keep, bench.logs / directory.name)
        stack.callback(processes.end)
        ConfiguredMinga(run_toml(setting, variant, seed)).start(Stage(swarm, network, processes, directory))
        patience = START_SECONDS + PATIENCE * setting.updates * swarm.epoch_seconds
        said = _follow(setting, processes, began + patience, tell)
    return Run(
        variant.name, seed, curve(said), sum(merged(said).values()), time.monotonic() - began, facts(said, setting)
    )


def _follow(setting: Setting, processes: Processes, deadline: float, tell: Tell) -> list[Said]:
    """Everything that was said until the held-out loss of the last epoch."""
    began = told = time.monotonic()
    while True:
        said = processes.said()
        points = curve(said)
        if points and points[-1][0] >= setting.updates:
            return said
        made, now = max(merged(said), default=0), time.monotonic()
        if made < setting.updates:  # then they leave, one after the other
            processes.check()
        if now > deadline:
            raise PeerEnded(f"the peers made only {made} of {setting.updates} updates; give fewer with --updates")
        if made and now - told >= TELL_SECONDS:
            told = now
            speed = made / (now - began)
            tell(f"{made} of {setting.updates} updates, {(setting.updates - made) / speed / 60:.1f} min left")
        processes.wait(LOOK_SECONDS)
        time.sleep(LOOK_SECONDS)


def curve(said: Sequence[Said]) -> tuple[tuple[int, float], ...]:
    """Updates made and held-out bits per byte, as peers measured them."""
    found = {s.event["epoch"]: float(s.event["heldout_bits_per_byte"]) for s in said if s.name == "Evaluated"}
    return tuple(sorted(found.items()))


def merged(said: Sequence[Said]) -> dict[int, int]:
    """Samples of each update, as any member knows them."""
    return {s.event["epoch"]: sum(s.event["samples"].values()) for s in said if s.name == "EpochCommitted"}


def facts(said: Sequence[Said], setting: Setting) -> dict[str, Any]:
    """What tells whether these peers did what the replay does."""
    commits = [s.event for s in said if s.name == "EpochCommitted"]
    handed_in = [s.event for s in said if s.name == "HandedIn"]
    own = sum(commit["samples"].get(peer, 0) for commit, peer in _with_author(said))
    every = [sum(commit["samples"].values()) for commit in {c["epoch"]: c for c in commits}.values()]
    return {
        "stale_part": sum(commit["stale_samples"] for commit in commits) / own if own else None,
        "guest_samples": sum(sum(commit["guests"].values()) for commit in commits),
        "cadences": sorted({event["cadence"] for event in handed_in}),
        "samples_per_update": sum(every) / len(every) if every else None,
        "samples_of_target": sum(every) / (setting.target * setting.updates),
    }


def _with_author(said: Sequence[Said]) -> list[tuple[Mapping[str, Any], str]]:
    authors = {s.peer: str(s.event["peer"]) for s in said if s.name == "Started"}
    return [(s.event, authors.get(s.peer, "")) for s in said if s.name == "EpochCommitted"]


def run_toml(setting: Setting, variant: Variant, seed: int) -> str:
    averaging = {"overlap": variant.overlap, "compression": variant.compression}
    tables = {**setting.run_tables(seed), "averaging": averaging}
    lines = []
    for section, values in tables.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()), ""]
    return "\n".join(lines)


def ratios(found: Sequence[Row], replayed: Sequence[Row]) -> dict[str, float]:
    """Of real peers' values at the end to those of the replay, by variant."""
    return {row.variant.name: row.mean / other.mean for row, other in zip(found, replayed, strict=True)}


def story(runs: Sequence[Run]) -> list[str]:
    """What the peers did, a sentence a run."""
    lines = []
    for run in runs:
        told = run.facts
        stale = "none" if told["stale_part"] is None else f"{told['stale_part']:.0%}"
        line = (
            f"{run.variant}, seed {run.seed}: {run.merged_samples:,} samples merged "
            f"({told['samples_of_target']:.1%} of those asked for), {stale} ahead of their weights"
        )
        if told["cadences"]:
            cadences = " or ".join(map(str, told["cadences"]))
            line += f"; {told['guest_samples']:,} came through the slow lane, every {cadences} epochs"
        lines.append(line)
    return lines
