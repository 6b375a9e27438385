"""Tables, verdicts, charts, and what peers' events tell: from fabricated runs."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.convergence import peers, report
from benchmarks.convergence.chart import LONE, RIGHT, chart
from benchmarks.convergence.jobs import Run
from benchmarks.convergence.setting import Setting
from benchmarks.convergence.variants import BITS, EXACT, NESTEROV, OVERLAPPED, SLOW_LANE, VARIANTS, seeds_of
from benchmarks.heterogeneous.processes import Said
from peer.swarm.codec import CODECS
from protocol.manifest import parse_manifest

SETTING = Setting(updates=10, seeds=2)


def run(variant: str, seed: int, final: float) -> Run:
    return Run(variant, seed, ((0, 8.0), (5, final + 0.5), (10, final)), 320, 12.0)


RUNS = [
    run(EXACT.name, 0, 2.0),
    run(EXACT.name, 1, 3.0),
    run(OVERLAPPED.name, 1, 3.06),
    run(OVERLAPPED.name, 0, 1.98),
    run(SLOW_LANE.name, 0, 2.1),
    run(SLOW_LANE.name, 1, 3.1),
    run(NESTEROV.name, 0, 4.0),  # without a bar: one seed is enough
]
SHOWN = (EXACT, OVERLAPPED, SLOW_LANE, NESTEROV)


def test_bars_are_judged_by_the_mean_over_seeds() -> None:
    exact, overlapped, slow, beside = report.rows(SHOWN, RUNS)
    assert exact.above_exact == 0 and exact.is_kept is None
    assert overlapped.finals == (1.98, 3.06)
    assert overlapped.above_exact == pytest.approx(5.04 / 5 - 1)
    assert overlapped.above_exact_by_seed == pytest.approx((-0.01, 0.02))
    assert overlapped.is_kept is True
    assert slow.above_exact == pytest.approx(0.04)
    assert slow.is_kept is False
    assert beside.finals == (4.0,) and beside.exact == (2.0,)
    assert beside.above_exact == 1.0 and beside.above_exact_by_seed == (1.0,)
    assert beside.is_kept is None
    assert not report.all_kept([exact, overlapped, slow, beside])
    assert report.all_kept([exact, overlapped, beside])


def test_the_table_says_pass_and_fail() -> None:
    _head, exact, overlapped, slow, beside = report.table(report.rows(SHOWN, RUNS)).splitlines()
    assert exact.split() == ["exact", "2.5000", "2.000", "3.000"]
    assert overlapped.split()[-5:] == ["+0.80%", "-1.00%", "+2.00%", "+1%", "PASS"]
    assert slow.split()[-2:] == ["+2%", "FAIL"]
    assert beside.split()[-4:] == ["4.0000", "4.000", "+100.00%", "+100.00%"]


def test_only_what_has_a_bar_is_run_with_every_seed() -> None:
    assert [len(seeds_of(v, 3)) for v in VARIANTS] == [3, 3, 3, 3, 1, 1, 1]
    assert [len(seeds_of(v, 1)) for v in VARIANTS] == [1] * len(VARIANTS)


def test_the_headline_says_who_has_fewer_seeds() -> None:
    found = report.rows(SHOWN, RUNS)
    assert "seeds: 2 (without a bar: 1" in report.headline(SETTING, found, "replay")
    assert "seeds: 2; " in report.headline(SETTING, found[:-1], "replay")


def test_what_diverged_keeps_no_bar() -> None:
    runs = [run(EXACT.name, 0, 2.0), run(OVERLAPPED.name, 0, math.nan)]
    assert report.rows((EXACT, OVERLAPPED), runs)[1].is_kept is False


def test_real_peers_stand_beside_the_replay() -> None:
    real = report.rows((EXACT, SLOW_LANE), RUNS)
    replayed = report.rows((EXACT, SLOW_LANE), [replace(r, curve=((10, 2.5),)) for r in RUNS])
    of_replay = peers.ratios(real, replayed)
    assert of_replay == {EXACT.name: 1.0, SLOW_LANE.name: pytest.approx(1.04)}
    assert "1.0400×" in report.table(real, of_replay)


def test_the_file_holds_all_runs(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    report.write_json(path, SETTING, report.rows(SHOWN, RUNS), RUNS)
    facts = json.loads(path.read_text())
    assert [result["pass"] for result in facts["results"]] == [None, True, False, None]
    assert facts["results"][0]["runs"][1]["curve"] == [[0, 8.0], [5, 3.5], [10, 3.0]]
    assert [len(result["runs"]) for result in facts["results"]] == [2, 2, 2, 1]
    assert facts["setting"]["samples_per_update"] == sum(facts["setting"]["quotas"]) == 32


def test_the_chart_has_a_line_a_run_and_one_a_variant() -> None:
    tree = ElementTree.fromstring(chart(SETTING, report.rows(SHOWN, RUNS), RUNS))
    lines = list(tree.iter("{http://www.w3.org/2000/svg}polyline"))
    kinds = [line.get("class", "").split()[0] for line in lines]
    assert kinds.count("seed") == len(RUNS)
    assert kinds.count("mean") == len(SHOWN)
    assert all(len(line.get("points", "").split()) == 2 for line in lines)  # the steep beginning is left out
    assert [line.get("class") for line in lines if "lone" in line.get("class", "")] == ["mean of3 lone"]
    assert "prefers-color-scheme: dark" in (tree[0].text or "")


def test_the_chart_tells_of_lone_seeds_only_where_there_are_some() -> None:
    assert LONE in chart(SETTING, report.rows(SHOWN, RUNS), RUNS)
    assert LONE not in chart(SETTING, report.rows(SHOWN[:-1], RUNS), RUNS)


def test_the_chart_has_room_for_every_name() -> None:
    pixels_per_letter = 6.0  # of a sans-serif at 12 pixels
    assert max(len(f"{v.name} (+99.99%)") for v in VARIANTS) * pixels_per_letter < RIGHT - 38


def test_variants_have_names_of_their_own_and_codecs_that_exist() -> None:
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS)
    assert {v.compression for v in VARIANTS} | {v.slow_codec for v in VARIANTS} <= set(CODECS)
    assert {v.name: v.bar for v in VARIANTS if v.bar} == {BITS.name: 0.01, OVERLAPPED.name: 0.01, SLOW_LANE.name: 0.02}


def test_real_peers_train_what_the_replay_trains() -> None:
    text = peers.run_toml(SETTING, OVERLAPPED, 3)
    manifest = parse_manifest({**tomllib.loads(text), "host": SETTING.manifest(0).host})
    assert manifest.averaging.overlap == 1
    assert manifest.averaging.compression == OVERLAPPED.compression == "uniform4"
    assert replace_averaging(manifest.model_dump()) == replace_averaging(SETTING.manifest(3).model_dump())


def replace_averaging(manifest: dict[str, object]) -> dict[str, object]:
    return {**manifest, "averaging": None}


def test_what_peers_did_follows_from_their_events() -> None:
    def commit(peer: int, epoch: int, samples: dict[str, int], stale: int, guests: dict[str, int]) -> Said:
        event = {"event": "EpochCommitted", "epoch": epoch, "samples": samples}
        return Said(peer, 0.0, {**event, "stale_samples": stale, "guests": guests})

    said = [
        Said(0, 0.0, {"event": "Started", "peer": "a"}),
        Said(1, 0.0, {"event": "Started", "peer": "b"}),
        commit(0, 1, {"a": 10, "b": 10}, 0, {}),
        commit(1, 1, {"a": 10, "b": 10}, 5, {}),
        commit(0, 2, {"a": 10, "b": 10, "c": 40}, 5, {"c": 40}),
        commit(1, 2, {"a": 10, "b": 10, "c": 40}, 10, {}),
        Said(2, 0.0, {"event": "HandedIn", "cadence": 4}),
        Said(0, 0.0, {"event": "Evaluated", "epoch": 2, "heldout_bits_per_byte": 3.5}),
        Said(0, 0.0, {"event": "Evaluated", "epoch": 0, "heldout_bits_per_byte": 8.0}),
    ]
    assert peers.curve(said) == ((0, 8.0), (2, 3.5))
    assert peers.merged(said) == {1: 20, 2: 60}
    facts = peers.facts(said, replace(SETTING, updates=2))
    assert facts["stale_part"] == pytest.approx(0.5)
    assert facts["guest_samples"] == 40
    assert facts["cadences"] == [4]
    assert facts["samples_of_target"] == pytest.approx(80 / 64)
    (line,) = peers.story([Run("x", 0, ((2, 3.5),), 80, 1.0, facts)])
    assert "50% ahead of their weights" in line and "every 4 epochs" in line
