"""The bars: what each setting must show. Data first, then how a row is run and judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.heterogeneous.leftovers import Run
from benchmarks.heterogeneous.report import columns
from benchmarks.heterogeneous.scenarios import run_scenario
from benchmarks.heterogeneous.session import Result, Tell, compare
from benchmarks.heterogeneous.setting import Setting


@dataclass(frozen=True)
class Bar:
    """A fact of one system's result, and the bound that it must keep."""

    what: str
    system: str
    fact: str
    at_least: float | None = None
    at_most: float | None = None
    relative_to: str | None = None
    """another system of the row, whose same fact the bound is a multiple of"""

    def value(self, results: Mapping[str, Mapping[str, Any]]) -> float | None:
        """What was measured, as a ratio where `relative_to` is given; None if it was not."""
        own = results[self.system]
        value: float | None = own.get(self.fact)
        if own["void"] or value is None or self.relative_to is None:
            return None if own["void"] else value
        other = results[self.relative_to]
        base: float | None = other.get(self.fact)
        return value / base if base and not other["void"] else None

    def is_kept(self, value: float | None) -> bool:
        if value is None:
            return False
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    @property
    def bound(self) -> str:
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"


@dataclass(frozen=True)
class Row:
    name: str
    setting: Setting
    systems: tuple[str, ...]
    bars: tuple[Bar, ...]
    scenario: str | None = None


USUAL = Setting()
ROWS = (
    Row(
        "T=512, links 100/100/20/5",
        USUAL,
        ("minga", "minga-exact", "hivemind"),
        (
            Bar("efficiency, overlapped", "minga", "efficiency", at_least=0.98),
            Bar("samples/s, overlap = 0", "minga-exact", "samples_per_s", at_least=84),
            Bar(
                "bytes per sample on the slowest link, of hivemind's",
                "minga",
                "bytes_per_sample_slowest_link",
                at_most=0.5,
                relative_to="hivemind",
            ),
        ),
    ),
    Row(
        "T=2048, links 100/100/20/5",
        replace(USUAL, target=2048),
        ("minga", "hivemind-delayed"),
        (
            Bar("efficiency", "minga", "efficiency", at_least=0.99),
            Bar("efficiency, of delayed hivemind's", "minga", "efficiency", at_least=1, relative_to="hivemind-delayed"),
            Bar("control traffic of a peer, bytes/s", "minga", "control_bytes_per_s", at_most=2000),
        ),
    ),
    Row(
        "T=512, links 100/100/100/100",
        replace(USUAL, links=(100.0, 100.0, 100.0, 100.0)),
        ("minga",),
        (Bar("efficiency", "minga", "efficiency", at_least=0.98),),
    ),
    Row(
        "a fifth peer, speed 0.6, link 1",
        USUAL,
        ("minga",),
        (
            Bar("samples/s of the other four, of theirs without it", "minga", "others_kept", at_least=0.97),
            Bar("share of the fifth's samples that count", "minga", "merged_share", at_least=0.9),
        ),
        scenario="cursed",
    ),
    Row(
        "T=256, links 100/100/20/5",
        replace(USUAL, target=256),
        ("minga",),
        (Bar("efficiency", "minga", "efficiency", at_least=0.95),),
    ),
    Row(
        "T=128, links 100/100/20/5",
        replace(USUAL, target=128),
        ("minga",),
        (Bar("efficiency", "minga", "efficiency", at_least=0.94),),
    ),
    Row(
        "a link falls from 100 to 2 and recovers",
        USUAL,
        ("minga",),
        (
            Bar(
                "terms until its link is relieved: no share to average, or the slow lane",
                "minga",
                "demoted_after_terms",
                at_most=2,
            ),
            Bar("terms until it has its share again", "minga", "promoted_after_terms", at_most=8),
            Bar("longest epoch, of its neighbours", "minga", "longest_epoch", at_most=1.5),
            Bar("longest epoch, of those before the fall", "minga", "longest_epoch_of_usual", at_most=1.5),
        ),
        scenario="link-drop",
    ),
    Row(
        "a device slows to a quarter",
        USUAL,
        ("minga",),
        (
            Bar("epochs until quotas follow", "minga", "quota_follows_after_epochs", at_most=1),
            Bar("longest epoch, of its neighbours", "minga", "longest_epoch", at_most=1.3),
        ),
        scenario="slow-down",
    ),
)
ELSEWHERE = (
    "held-out loss at equal samples: python -m benchmarks.convergence",
    "tally of 10,000 ballots: python -m benchmarks.tally",
)


def run_rows(rows: Sequence[Row], run: Run, tell: Tell, *, quick: bool) -> tuple[list[Result], list[Result]]:
    """Run all rows. Returns the verdicts, a dictionary a bar, and all results, with the row's name."""
    verdicts: list[Result] = []
    results: list[Result] = []
    for row in rows:
        tell(f"— {row.name} —")
        setting = replace(row.setting, quick=quick)
        if row.scenario:
            found = run_scenario(row.scenario, setting, row.systems, run, tell)
        else:
            found = compare(setting, row.systems, run, tell)
        results += [{"row": row.name, **result} for result in found]
        verdicts += judge(row, {result["system"]: result for result in found})
        tell(verdict_table(verdicts[-len(row.bars) :]))
    return verdicts, results


def judge(row: Row, results: Mapping[str, Mapping[str, Any]]) -> list[Result]:
    """A verdict a bar. A void measurement keeps no bar."""
    verdicts = []
    for bar in row.bars:
        value = bar.value(results)
        names = [bar.system] + ([bar.relative_to] if bar.relative_to else [])
        verdicts.append(
            {
                "row": row.name,
                "what": bar.what,
                "value": value,
                "bound": bar.bound,
                "pass": bar.is_kept(value),
                "void": next((results[name]["void"] for name in names if results[name]["void"]), None),
            }
        )
    return verdicts


def verdict_table(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """A line a bar: PASS or FAIL, the measured ratio and the bound."""
    lines = [("", "row", "what", "measured", "bar")]
    for verdict in verdicts:
        value = verdict["value"]
        shown = "–" if value is None else f"{value:.3g}"
        lines.append(("PASS" if verdict["pass"] else "FAIL", verdict["row"], verdict["what"], shown, verdict["bound"]))
    text = columns(lines)
    return "\n".join([text, *(f"void: {verdict['void']}" for verdict in verdicts if verdict["void"])])
