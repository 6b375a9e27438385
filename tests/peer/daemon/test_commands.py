"""The commands against a running peer, as a person types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.swarm


def minga(home: Path, *arguments: str, code: int = 0) -> str:
    environment = {**os.environ, "MINGA_HOME": str(home)}
    command = [sys.executable, "-m", "peer", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_look_keep_and_leave(swarm, tmp_path: Path) -> None:
    host = swarm.host("--emulate-throughput", "120", target=60)
    host.wait_epoch(4)

    [status] = json.loads(minga(tmp_path, "status", "--json"))
    assert status["peer"] == host.started["peer"] and status["name"] == "host"
    assert status["epoch"] >= 4 and status["session_samples"] >= 240
    [row] = status["peers"]
    assert row["quota"] == 60 and row["throughput"] == pytest.approx(120, rel=0.1)
    shown = minga(tmp_path, "status")
    assert "test run" in shown and "host (this one)" in shown

    [why] = json.loads(minga(tmp_path, "explain", "--json"))
    assert why["lane"] == "step"
    assert why["last_epoch"]["compute"] == pytest.approx(0.5, rel=0.5)
    assert "why:" in minga(tmp_path, "explain")

    assert minga(tmp_path, "invite").strip() == json.loads(minga(tmp_path, "invite", "--json"))["invite"]

    exported = tmp_path / "model"
    facts: dict[str, Any] = json.loads(minga(tmp_path, "export", str(exported), "--json"))
    assert facts["run"] == host.started["run"] and facts["epoch"] >= 4
    assert sorted(path.name for path in exported.iterdir()) == ["config.json", "model.safetensors"]
    text = minga(tmp_path, "sample", str(exported), "--prompt", "def ", "--length", "40", "--seed", "7")
    assert text.startswith("def ") and len(text.encode(errors="replace")) >= 40
    assert text == minga(tmp_path, "sample", str(exported), "--prompt", "def ", "--length", "40", "--seed", "7")

    minga(tmp_path, "leave")
    assert host.process.wait(20) == 0
    assert host.events[-1]["event"] == "Left"
    after = json.loads(minga(tmp_path, "export", str(tmp_path / "again"), "--json"))
    assert after["epoch"] == host.events[-1]["epoch"], "the farewell's checkpoint is what is exported"
    minga(tmp_path, "status", code=2)


def test_two_peers_on_one_computer_must_be_named(swarm, tmp_path: Path) -> None:
    host = swarm.host("--emulate-throughput", "60", target=60)
    second = swarm.join(host.started["invite"], "--emulate-throughput", "60")
    assert second.started["state_dir"] != host.started["state_dir"]
    assert len(json.loads(minga(tmp_path, "status", "--json"))) == 2
    minga(tmp_path, "leave", code=2)
    minga(tmp_path, "leave", "--state-dir", second.started["state_dir"])
    assert second.process.wait(20) == 0
    host.wait_epoch(2)
