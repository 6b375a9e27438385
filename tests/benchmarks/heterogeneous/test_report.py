"""Tables, files, charts and verdicts, from fabricated results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.heterogeneous import rows
from benchmarks.heterogeneous.chart import LEFT, RIGHT, WIDTH, chart
from benchmarks.heterogeneous.measure import Commit, failed
from benchmarks.heterogeneous.report import story, summary, table, write_json
from benchmarks.heterogeneous.scenarios import epochs_until_back, epochs_until_fair, epochs_until_relieved, longest
from benchmarks.heterogeneous.setting import Setting


def result(system: str, efficiency: float, **facts: Any) -> dict[str, Any]:
    return {
        "system": system,
        "efficiency": efficiency,
        "samples_per_s": 110 * efficiency,
        "solo_samples_per_s": 110.0,
        "seconds_per_epoch": 4.7,
        "bytes_per_sample": 12_300.0,
        "bytes_per_sample_slowest_link": 2_000.0,
        "time_share": {"compute": 0.95, "wait": 0.05, "transfer": 0.7},
        "epochs": 9,
        "void": None,
        **facts,
    }


RESULTS = [result("minga", 0.98), result("ddp", 0.49), failed("hivemind", "peer 2 ended with exit code 1")]


def test_the_table_has_ratios_and_marks_what_is_void() -> None:
    _head, ours, theirs, void = table(RESULTS).splitlines()
    assert ours.split() == ["minga", "107.8", "0.980", "1.00×", "4.70", "12.3", "2.0", "95%", "5%", "70%"]
    assert theirs.split()[3] == "0.50×"
    assert void.split()[:4] == ["hivemind", "(void)", "–", "–"]


def test_the_summary_says_why_something_is_void_and_what_is_not_emulated() -> None:
    text = summary(Setting(), RESULTS, ("a remark",))
    assert "hivemind is void: peer 2 ended with exit code 1" in text
    assert "note: a remark" in text
    assert "latency" in text


def test_the_file_holds_results_and_setting(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    write_json(path, Setting(target=256).to_json(), RESULTS)
    facts = json.loads(path.read_text())
    assert [r["system"] for r in facts["results"]] == ["minga", "ddp", "hivemind"]
    assert facts["results"][0]["time_share"] == {"compute": 0.95, "wait": 0.05, "transfer": 0.7}
    assert facts["setting"]["target"] == 256
    assert facts["setting"]["links_mbit_per_s"] == [100, 100, 20, 5]


def test_bars_are_as_long_as_the_efficiencies() -> None:
    tree = ElementTree.fromstring(chart(Setting(), RESULTS))
    space = "{http://www.w3.org/2000/svg}"
    lengths = [float(bar.get("width", "")) for bar in tree.iter(f"{space}rect")]
    full = WIDTH - LEFT - RIGHT
    assert lengths == pytest.approx([0.98 * full, 0.49 * full, 0.0], abs=0.1)
    words = [text.text for text in tree.iter(f"{space}text")]
    assert {"minga", "98%", "ddp", "49%", "no result"} <= set(words)
    assert "prefers-color-scheme: dark" in chart(Setting(), RESULTS)


def test_bars_of_the_table_are_judged() -> None:
    row = rows.ROWS[0]
    found = {
        "minga": result("minga", 0.99, bytes_per_sample_slowest_link=3_000.0),
        "minga-exact": result("minga-exact", 83.9 / 110),
        "hivemind": result("hivemind", 0.67, bytes_per_sample_slowest_link=7_000.0),
    }
    verdicts = rows.judge(row, found)
    assert [verdict["pass"] for verdict in verdicts] == [True, False, True]
    assert verdicts[2]["value"] == pytest.approx(3 / 7)
    text = rows.verdict_table(verdicts)
    assert text.count("PASS") == 2 and text.count("FAIL") == 1


def test_a_void_measurement_keeps_no_bar() -> None:
    row = replace(rows.ROWS[0], bars=rows.ROWS[0].bars[:1])
    (verdict,) = rows.judge(row, {"minga": result("minga", 0.99, void="too busy")})
    assert not verdict["pass"]
    assert "too busy" in rows.verdict_table([verdict])


def test_every_bar_is_of_a_system_that_its_row_runs() -> None:
    for row in rows.ROWS:
        for bar in row.bars:
            assert {bar.system, bar.relative_to or bar.system} <= set(row.systems)
            assert (bar.at_least is None) != (bar.at_most is None)


def test_the_longest_epoch_is_seen_beside_its_neighbours() -> None:
    assert longest([2.0, 2.0, 3.0, 2.0, 2.0]) == pytest.approx(1.5)
    assert longest([2.0, 2.0, 2.0, 4.0, 4.0, 4.0]) == pytest.approx(4 / 3)
    assert longest([]) is None


def test_the_story_of_a_scenario_shows_epochs_and_what_changed() -> None:
    facts = failed("minga", "") | {
        "change": "link of peer 1: 2 Mbit/s",
        "changed_after_epoch": 1,
        "changed_back_after_epoch": None,
        "epoch_seconds": [2.0, 5.0],
        "epoch_samples": [[40.0, 20.0], [40.0, 0.0]],
        "longest_epoch": 2.5,
        "demoted_after_terms": None,
    }
    text = story(facts)
    assert text.splitlines()[2].split() == ["1", "2.00", "40", "20", "←", "link", "of", "peer", "1:", "2", "Mbit/s"]
    assert text.splitlines()[3].split() == ["2", "5.00", "40", "0"]
    assert "longest epoch: 2.50" in text and "demoted after terms: –" in text
    cursed = story(result("minga", 0.9, others_kept=0.99, merged_share=0.95))
    assert "99.0%" in cursed and "95.0%" in cursed


def test_when_a_peer_leaves_the_step_and_comes_back() -> None:
    with_it, without = Commit(0, 0.0, {0: 40.0, 1: 20.0}, {1: 0.4}), Commit(0, 0.0, {0: 40.0}, {1: 0.4})
    shareless = Commit(0, 0.0, {0: 40.0, 1: 20.0}, {0: 1.0, 1: 0.0})
    assert epochs_until_relieved([with_it, with_it, without], 1) == 2
    assert epochs_until_relieved([with_it, shareless], 1) == 1
    assert epochs_until_relieved([with_it], 1) is None
    assert epochs_until_back([without, with_it, without, with_it, with_it, with_it], 1) == 3
    assert epochs_until_back([with_it, without], 1) is None
    assert epochs_until_back([shareless, shareless, shareless, with_it, with_it, with_it], 1) == 3


def test_when_samples_follow_a_speed() -> None:
    usual, fewer = Commit(0, 0.0, {0: 40.0, 1: 40.0}), Commit(0, 0.0, {0: 64.0, 1: 16.0})
    assert epochs_until_fair([usual, fewer], 1, 0.2) == 1
    assert epochs_until_fair([usual], 1, 0.2) is None
