"""From runs to a table with verdicts, and a file for machines."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.convergence.jobs import Run
from benchmarks.convergence.setting import Setting
from benchmarks.convergence.variants import EXACT, Variant
from benchmarks.heterogeneous.report import columns

HEADINGS = ("variant", "bits per byte", "of each seed", "above exact", "of each seed", "at most", "")
LONE = " (without a bar: 1, beside exact training with that one)"
DEFINITIONS = {
    "curve": "updates made, held-out bits per byte",
    "bits_per_byte": "held-out, at the end, mean over the variant's seeds",
    "above_exact": "bits_per_byte / that of exact training with the same seeds - 1",
    "merged_samples": "that entered an update; a guest's last ones are still under way at the end",
    "of_replay": "bits_per_byte of real peers / that of the replay with the same seed",
}


@dataclass(frozen=True)
class Row:
    """A variant beside exact training."""

    variant: Variant
    finals: tuple[float, ...]
    """bits per byte at the end, by seed"""
    exact: tuple[float, ...]
    """of exact training with the same seeds"""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.finals)

    @property
    def above_exact(self) -> float:
        """Of the means over seeds."""
        return self.mean / statistics.fmean(self.exact) - 1

    @property
    def above_exact_by_seed(self) -> tuple[float, ...]:
        return tuple(final / exact - 1 for final, exact in zip(self.finals, self.exact, strict=True))

    @property
    def is_kept(self) -> bool | None:
        """The bar; None where there is none. What is not a number keeps no bar."""
        return None if self.variant.bar is None else self.above_exact <= self.variant.bar


def rows(variants: Sequence[Variant], runs: Sequence[Run]) -> list[Row]:
    """One a variant, in their order, beside exact training with the same seeds."""

    def finals(variant: Variant) -> dict[int, float]:
        return {run.seed: run.final for run in sorted(runs, key=lambda r: r.seed) if run.variant == variant.name}

    exact = finals(EXACT)
    found = [(variant, finals(variant)) for variant in variants]
    return [Row(variant, tuple(own.values()), tuple(exact[seed] for seed in own)) for variant, own in found]


def table(found: Sequence[Row], of_replay: Mapping[str, float] | None = None) -> str:
    """`of_replay`: the ratio to the replay's value, by variant, where real peers were measured."""
    lines = [HEADINGS[:-1] + (("of replay", "") if of_replay is not None else ("",))]
    for row in found:
        is_exact, bar = row.variant == EXACT, row.variant.bar
        cells = [
            row.variant.name,
            f"{row.mean:.4f}",
            " ".join(f"{final:.3f}" for final in row.finals),
            "" if is_exact else f"{row.above_exact:+.2%}",
            "" if is_exact else " ".join(f"{above:+.2%}" for above in row.above_exact_by_seed),
            "" if bar is None else f"{bar:+.0%}",
        ]
        if of_replay is not None:
            cells.append(f"{of_replay[row.variant.name]:.4f}×")
        cells.append("" if row.is_kept is None else "PASS" if row.is_kept else "FAIL")
        lines.append(tuple(cells))
    return columns(lines)


def all_kept(found: Sequence[Row]) -> bool:
    return all(row.is_kept is not False for row in found)


def headline(setting: Setting, found: Sequence[Row], who: str) -> str:
    lone = LONE if any(len(row.finals) < setting.seeds for row in found) else ""
    return (
        f"{who}; {setting.updates:,} updates of {setting.target} samples of {setting.sequence_length} bytes; "
        f"seeds: {setting.seeds}{lone}; held-out bits per byte at the end (untrained: 8)"
    )


def write_json(path: Path, setting: Setting, found: Sequence[Row], runs: Sequence[Run], **more: Any) -> None:
    facts = {
        "results": [
            {
                "variant": row.variant.name,
                "bits_per_byte": row.mean,
                "above_exact": row.above_exact,
                "at_most": row.variant.bar,
                "pass": row.is_kept,
                "runs": [
                    {
                        "seed": run.seed,
                        "bits_per_byte": run.final,
                        "curve": run.curve,
                        "merged_samples": run.merged_samples,
                        "seconds": run.seconds,
                        **run.facts,
                    }
                    for run in runs
                    if run.variant == row.variant.name
                ],
            }
            for row in found
        ],
        "setting": {**setting.to_json(), "definitions": DEFINITIONS},
    }
    path.write_text(json.dumps({**facts, **more}, indent=2) + "\n")
