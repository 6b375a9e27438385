"""The command `python -m benchmarks.convergence`; see the package's docstring and `--help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.command import (
    CANNOT_START,
    DONE,
    INTERRUPTED,
    NOT_ALL_KEPT,
    InvalidSetting,
    interruptible,
    require_writable,
    tell,
)
from benchmarks.convergence.setting import Setting
from benchmarks.heterogeneous.network import NetworkImpossible, require_network
from benchmarks.heterogeneous.processes import PeerEnded

QUICK = Setting(updates=120, seeds=1)
QUICK_REMARK = "--quick shows whether everything works; differences of so short a run say little"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 all bars kept, 1 not all, 2 could not start with what was given, 130 interrupted."""
    options = _parser().parse_args(arguments)
    interruptible()
    try:
        setting = _setting(options)
        require_writable(options.json, options.chart)
        if options.peers:
            require_network()
        return _run(options, setting)
    except (InvalidSetting, NetworkImpossible) as error:
        tell(f"benchmarks.convergence: {error}")
        return CANNOT_START
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(options: argparse.Namespace, setting: Setting) -> int:
    # Here, so that --help and bad input answer at once.
    from benchmarks.convergence import peers, report
    from benchmarks.convergence.chart import chart
    from benchmarks.convergence.jobs import Job, JobFailed, run_jobs
    from benchmarks.convergence.variants import VARIANTS, seeds_of

    variants = peers.VARIANTS if options.peers else VARIANTS
    try:
        jobs = [Job(v.name, seed) for v in variants for seed in seeds_of(v, setting.seeds)]
        jobs.sort(key=lambda job: job.seed)
        replayed = run_jobs(setting, jobs, tell)
        runs = peers.run_peers(setting, variants, tell, options.logs) if options.peers else replayed
    except (JobFailed, PeerEnded) as error:
        tell(f"benchmarks.convergence: {error}")
        return NOT_ALL_KEPT
    found = report.rows(variants, runs)
    if options.peers:
        of_replay = peers.ratios(found, report.rows(variants, replayed))
        more: dict[str, object] = {"of_replay": of_replay}
        words, shown = "real peers on emulated links", report.table(found, of_replay)
    else:
        more, shown = {}, report.table(found)
        words = f"replay, {setting.stale:.0%} of the samples ahead of their weights where overlapped"
    if options.json:
        report.write_json(options.json, setting, found, runs, **more)
    if options.chart:
        options.chart.write_text(chart(setting, found, runs))
    print(report.headline(setting, found, words), "", shown, sep="\n")
    if options.peers:
        print("", *peers.story(runs), sep="\n")
    if options.quick:
        print("", QUICK_REMARK, sep="\n")
    return DONE if report.all_kept(found) else NOT_ALL_KEPT


def _setting(options: argparse.Namespace) -> Setting:
    setting = QUICK if options.quick else Setting(seeds=1) if options.peers else Setting()
    given = {
        name: getattr(options, name) for name in ("updates", "seeds", "stale") if getattr(options, name) is not None
    }
    return replace(setting, **given)


def _parser() -> argparse.ArgumentParser:
    usual = Setting()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.convergence",
        description="Held-out loss at equal samples: overlap, few bits and a slow lane beside exact training.",
    )
    add = parser.add_argument
    add("--seeds", type=int, metavar="N", help=f"of weights and data (default: {usual.seeds}; with --peers: 1)")
    add("--updates", type=int, metavar="N", help=f"of the weights, in each run (default: {usual.updates})")
    add("--stale", type=float, metavar="PART", help=f"of the samples, where overlapped (default: {usual.stale:g})")
    add("--quick", action="store_true", help=f"{QUICK.seeds} seed and {QUICK.updates} updates: at most 4 minutes")
    add("--peers", action="store_true", help="real peers on emulated links beside the replay; needs root on Linux")
    add("--json", type=Path, metavar="FILE", help="write the facts there")
    add("--chart", type=Path, metavar="FILE.svg", help="draw the loss curves there")
    add("--logs", type=Path, metavar="FOLDER", help="with --peers: keep there what every process said")
    return parser


if __name__ == "__main__":
    sys.exit(main())
