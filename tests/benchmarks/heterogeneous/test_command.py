"""The command: exit codes and sentences."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.heterogeneous.leftovers import Run

ROOT = Path(__file__).parents[3]


def command(*arguments: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.heterogeneous", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=seconds,
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--speeds", "1,2", "--links", "5"], "2 speeds and 1 links"),
        (["--speeds", "1,two"], "--speeds 1,two is not a list of numbers"),
        (["--json", "/no/such/folder/facts.json"], "cannot be written"),
        (["--target", "many"], "--target"),
        (["--systems", "minga,horovod"], "there is no system 'horovod'"),
        (["--scenario", "earthquake"], "earthquake"),
    ],
)
def test_what_cannot_be_started_ends_with_2_and_a_sentence(arguments: list[str], words: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.netns
def test_a_scenario_that_a_system_cannot_play_is_refused(run: Run) -> None:
    done = command("--scenario", "link-drop", "--systems", "ddp")
    assert done.returncode == 2
    assert "for minga only" in done.stderr


def test_without_root_there_is_a_sentence() -> None:
    code = (
        "import os, sys\n"
        "from benchmarks.heterogeneous.__main__ import main\n"
        "os.geteuid() or os.setuid(65534)\n"  # after the imports: another user may not read this Python
        "sys.exit(main([]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 2
    assert "need root" in done.stderr


@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_peers_of_minga_are_measured(run: Run, tmp_path: Path) -> None:
    facts_file, chart_file = tmp_path / "facts.json", tmp_path / "chart.svg"
    done = command(
        *("--systems", "minga", "--speeds", "0.5,0.25", "--links", "100,100", "--target", "96", "--quick"),
        *("--json", str(facts_file), "--chart", str(chart_file)),
        seconds=380,
    )
    facts = json.loads(facts_file.read_text())
    (result,) = facts["results"]
    assert done.returncode == (1 if result["void"] else 0), done.stderr
    if result["void"]:
        pytest.skip(f"this computer is too busy to measure on: {result['void']}")
    assert result["solo_samples_per_s"] == pytest.approx(30, rel=0.02)
    assert 0.5 < result["efficiency"] <= 1.02
    assert result["samples_by_peer"][0] == pytest.approx(2 * result["samples_by_peer"][1], rel=0.1)
    assert result["bytes_per_sample"] > 0
    assert result["epochs"] >= 3
    assert "minga" in done.stdout and "not emulated" in done.stdout
    assert chart_file.read_text().startswith("<svg")
