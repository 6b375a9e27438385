"""The command: exit codes, sentences, and a tiny run from end to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.convergence.variants import VARIANTS, seeds_of
from benchmarks.heterogeneous.network import NetworkImpossible, require_network

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "benchmarks.convergence"]


def command(*arguments: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=seconds)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--updates", "0"], "0 updates cannot be made"),
        (["--seeds", "many"], "--seeds"),
        (["--stale", "2"], "2 is no part of the samples"),
        (["--json", "/no/such/folder/facts.json"], "cannot be written"),
    ],
)
def test_what_cannot_be_started_ends_with_2_and_a_sentence(arguments: list[str], words: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(400)
def test_a_tiny_run_compares_all_variants(tmp_path: Path) -> None:
    facts_file, chart_file = tmp_path / "facts.json", tmp_path / "chart.svg"
    done = command(
        *("--seeds", "2", "--updates", "8", "--json", str(facts_file), "--chart", str(chart_file)), seconds=390
    )
    facts = json.loads(facts_file.read_text())
    kept = all(result["pass"] is not False for result in facts["results"])
    assert done.returncode == (0 if kept else 1), done.stderr
    assert [result["variant"] for result in facts["results"]] == [variant.name for variant in VARIANTS]
    for variant, result in zip(VARIANTS, facts["results"], strict=True):
        assert variant.name in done.stdout
        assert [run["seed"] for run in result["runs"]] == list(seeds_of(variant, 2))
        for run in result["runs"]:
            assert run["curve"][0] == [0, pytest.approx(8.0)]
            assert run["curve"][-1] == [8, run["bits_per_byte"]]
            assert run["bits_per_byte"] < 8
    samples = {result["variant"]: result["runs"][0]["merged_samples"] for result in facts["results"]}
    assert samples["exact"] == samples["overlapped, 4 bits"] == 8 * 32
    slow_lane = samples["overlapped, one in the slow lane"]
    assert slow_lane == 8 * 30 + 4 * 2  # of the guest's two cycles, the first has come in
    assert samples["the same without that peer"] == 8 * 30
    assert "min left" in done.stderr or "bits per byte in" in done.stderr
    assert chart_file.read_text().startswith("<svg")


@pytest.mark.timeout(100)
def test_ctrl_c_leaves_nothing_behind() -> None:
    process = subprocess.Popen(
        [*COMMAND, "--seeds", "1", "--updates", "1000"], stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        top = psutil.Process(process.pid)
        children: list[psutil.Process] = []
        while len(children) < 2:
            assert process.poll() is None
            children = top.children()
        os.kill(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "ended by SIGINT" in stderr and "Traceback" not in stderr
    _, left = psutil.wait_procs(children, timeout=30)  # one that was just being started ends with its parent
    assert not left


@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_peers_stand_beside_the_replay(tmp_path: Path) -> None:
    try:
        require_network()
    except NetworkImpossible as error:
        pytest.skip(str(error))
    facts_file = tmp_path / "facts.json"
    done = command("--peers", "--updates", "12", "--json", str(facts_file), seconds=880)
    assert done.returncode in (0, 1), done.stderr
    facts = json.loads(facts_file.read_text())
    assert all(0.8 < ratio < 1.25 for ratio in facts["of_replay"].values())
    assert "ahead of their weights" in done.stdout
