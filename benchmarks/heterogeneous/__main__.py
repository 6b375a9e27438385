"""The command `python -m benchmarks.heterogeneous`; see the package's docstring and `--help`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
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
from benchmarks.heterogeneous import systems
from benchmarks.heterogeneous.network import NetworkImpossible, require_network
from benchmarks.heterogeneous.processes import PeerEnded
from benchmarks.heterogeneous.setting import Setting, parse_numbers, parse_systems


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 all valid (or all bars kept), 1 not all, 2 could not start with what was given."""
    options = _parser().parse_args(arguments)
    interruptible()
    try:
        setting = Setting(
            speeds=parse_numbers(options.speeds, "--speeds"),
            links=parse_numbers(options.links, "--links"),
            target=options.target,
            exact=options.exact,
            quick=options.quick,
        )
        names = parse_systems(options.systems, systems.NAMES)
        require_writable(options.json, options.chart)
        require_network()
        return _run(options, setting, names)
    except (InvalidSetting, NetworkImpossible) as error:
        print(f"benchmarks.heterogeneous: {error}", file=sys.stderr)
        return CANNOT_START
    except PeerEnded as error:
        print(f"benchmarks.heterogeneous: {error}; the devices alone could not be measured", file=sys.stderr)
        return NOT_ALL_KEPT
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(options: argparse.Namespace, setting: Setting, names: Sequence[str]) -> int:
    # Here, so that --help and bad input answer at once.
    from benchmarks.heterogeneous import rows, scenarios, session
    from benchmarks.heterogeneous.chart import chart
    from benchmarks.heterogeneous.leftovers import Run
    from benchmarks.heterogeneous.report import story, summary, write_json

    verdicts = None
    with Run(options.logs) as run:
        tell(f"load of this computer: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
        if options.table:
            verdicts, results = rows.run_rows(rows.ROWS, run, tell, quick=options.quick)
            names = tuple(dict.fromkeys(result["system"] for result in results))
        elif options.scenario:
            results = scenarios.run_scenario(options.scenario, setting, names, run, tell)
        else:
            results = session.compare(setting, names, run, tell)
    facts = setting.to_json() | {"scenario": options.scenario}
    if options.json:
        write_json(options.json, facts, results, **({} if verdicts is None else {"verdicts": verdicts}))
    if options.chart:
        options.chart.write_text(chart(setting, results))
    if verdicts is not None:
        print(rows.verdict_table(verdicts))
        print("measured elsewhere:", *rows.ELSEWHERE, sep="\n  ")
        return DONE if all(verdict["pass"] for verdict in verdicts) else NOT_ALL_KEPT
    remarks = dict.fromkeys(remark for name in names for remark in systems.system_of(name, setting).remarks)
    if options.scenario:
        print(*(story(result) for result in results), "", sep="\n")
    print(summary(setting, results, tuple(remarks)))
    return NOT_ALL_KEPT if any(result["void"] for result in results) else DONE


def _parser() -> argparse.ArgumentParser:
    usual = Setting()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.heterogeneous",
        description="Unequal peers on unequal links: minga beside hivemind and PyTorch DDP. Needs root on Linux.",
    )
    add = parser.add_argument
    add("--systems", default="minga,hivemind,ddp", help="names, separated by commas (default: %(default)s)")
    add("--speeds", default=_join(usual.speeds), help="of the peers; 1.0 is 40 samples/s (default: %(default)s)")
    add("--links", default=_join(usual.links), help="of the peers, Mbit/s, 0 for no limit (default: %(default)s)")
    add("--target", type=int, default=usual.target, help="samples of an update (default: %(default)s)")
    add("--exact", action="store_true", help="minga without overlap: exact large-batch training")
    add("--quick", action="store_true", help="shorter windows; three systems in about 5 minutes")
    add(
        "--scenario",
        choices=("link-drop", "slow-down", "cursed"),
        help="something happens in the midst; the first two are for minga only",
    )
    add("--table", action="store_true", help="run all settings that have a bar, and print which are kept")
    add("--json", type=Path, metavar="FILE", help="write the facts there")
    add("--logs", type=Path, metavar="FOLDER", help="keep there what every process said")
    add("--chart", type=Path, metavar="FILE.svg", help="draw the efficiencies there")
    return parser


def _join(numbers: Sequence[float]) -> str:
    return ",".join(f"{number:g}" for number in numbers)


if __name__ == "__main__":
    sys.exit(main())
