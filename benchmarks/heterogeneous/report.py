"""How results are told: a table for people, a file for machines, and what was not emulated."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.heterogeneous.setting import Setting

DEFINITIONS = {
    "samples_per_s": "samples that truly entered an average, per second of the window",
    "efficiency": "samples_per_s / solo_samples_per_s",
    "solo_samples_per_s": "sum of what each device does alone, mean of before and after",
    "bytes_per_sample": "bytes that all peers sent, as their links counted them, per sample",
    "bytes_per_sample_slowest_link": "bytes both ways on the slowest link, per sample of the whole swarm",
    "time_share": "of the window, mean over the peers; transfer that runs behind computing counts in full",
    "busy_cores": "mean number of busy processors of this computer, whoever kept them busy",
    "own_busy_cores": "of them, by the system's processes",
    "longest_epoch": "relative to the median of the two before and the two after it",
    "longest_epoch_of_usual": "relative to the median before the change",
}
SCENARIO_FACTS = (
    "longest_epoch",
    "longest_epoch_of_usual",
    "demoted_after_terms",
    "promoted_after_terms",
    "quota_follows_after_epochs",
)
HEADINGS = (
    "system",
    "samples/s",
    "efficiency",
    "of the first",
    "s/epoch",
    "kB/sample",
    "on slowest link",
    "compute",
    "wait",
    "transfer",
)


def limits() -> tuple[str, ...]:
    """What these numbers cannot tell."""
    return (
        "latency: between peers it is microseconds, plus the time in the queues of limited links",
        "loss and jitter: packets are lost only where a queue of 100 ms is full",
        "lopsided links: up and down are limited alike; NAT and firewalls are absent",
        f"processors of their own: all peers share the {os.cpu_count()} of this computer; what communication and "
        "optimizers compute competes with everything else, and a run whose devices were late is void",
        "real devices: a device's speed never varies, and its memory copies take no time",
        "learning: nothing here says how well a system learns per sample",
    )


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """A line a system, with ratios to the sum of solo speeds and to the first system."""
    first = next((result["efficiency"] for result in results if result["efficiency"] is not None), None)
    lines = [HEADINGS]
    for result in results:
        share = result["time_share"]
        lines.append(
            (
                result["system"] + (" (void)" if result["void"] else ""),
                _number(result["samples_per_s"], 1),
                _number(result["efficiency"], 3),
                _ratio(result["efficiency"], first),
                _number(result["seconds_per_epoch"], 2),
                _number(result["bytes_per_sample"], 1, 1e-3),
                _number(result["bytes_per_sample_slowest_link"], 1, 1e-3),
                *(_percent(share[part]) for part in ("compute", "wait", "transfer")),
            )
        )
    return columns(lines)


def columns(lines: Sequence[Sequence[str]]) -> str:
    """Text in columns; the first is aligned to the left, the others to the right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def summary(setting: Setting, results: Sequence[Mapping[str, Any]], remarks: Sequence[str]) -> str:
    """Everything that a person reads at the end."""
    peers = ", ".join(
        f"{speed:g} on {f'{link:g} Mbit/s' if link else 'an unlimited link'}"
        for speed, link in zip(setting.speeds, setting.links, strict=True)
    )
    solo = next((r["solo_samples_per_s"] for r in results if r["solo_samples_per_s"] is not None), None)
    lines = [f"target {setting.target}; peers of speed {peers}; alone {_number(solo, 1)} samples/s in all", ""]
    lines += [table(results), ""]
    lines += [f"{result['system']} is void: {result['void']}" for result in results if result["void"]]
    lines += [f"note: {remark}" for remark in remarks]
    lines += ["", "not emulated:", *(f"  {limit}" for limit in limits())]
    return "\n".join(lines)


def story(result: Mapping[str, Any]) -> str:
    """What a scenario was like: a line an epoch, or what it did to the others."""
    if "others_kept" in result:
        return (
            f"{result['system']}: the others keep {result['others_kept']:.1%} of their samples/s; of the samples that "
            f"the cursed peer does alone, {result['merged_share']:.1%} count"
        )
    if "epoch_samples" not in result:
        return f"{result['system']}: no story, {result['void']}"
    marks = {result["changed_after_epoch"]: f"← {result['change']}"}
    if result["changed_back_after_epoch"] is not None:
        marks[result["changed_back_after_epoch"]] = "← as before"
    lines = [("epoch", "seconds", "samples by peer", "")]
    for number, (seconds, samples) in enumerate(zip(result["epoch_seconds"], result["epoch_samples"], strict=True), 1):
        counts = " ".join(f"{count:4.0f}" for count in samples)
        lines.append((str(number), f"{seconds:.2f}", counts, marks.get(number, "")))
    found = [f"{key.replace('_', ' ')}: {_number(result[key], 2)}" for key in SCENARIO_FACTS if key in result]
    return "\n".join([f"{result['system']}:", columns(lines), *found])


def write_json(path: Path, setting: Mapping[str, Any], results: Sequence[Mapping[str, Any]], **more: Any) -> None:
    facts = {"results": list(results), "setting": {**setting, "definitions": DEFINITIONS, "not_emulated": limits()}}
    path.write_text(json.dumps({**facts, **more}, indent=2) + "\n")


def _number(value: float | None, digits: int, factor: float = 1.0) -> str:
    return "–" if value is None else f"{value * factor:,.{digits}f}"


def _ratio(value: float | None, first: float | None) -> str:
    return "–" if value is None or not first else f"{value / first:.2f}×"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
