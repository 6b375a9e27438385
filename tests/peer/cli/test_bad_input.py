"""What a person can get wrong: one sentence with a remedy, exit code 2, nothing started, nothing lost."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from protocol.invite import Invite, format_invite, parse_invite
from protocol.manifest import parse_manifest, sign_manifest
from protocol.signing import SigningKey

GOOD = '[run]\nname = "x"\n[model]\npreset = "nano"\n'
KEY = SigningKey(bytes(32))
DEAD_PEER = f"/ip4/127.0.0.1/tcp/9/p2p/{SigningKey(b'd' * 32).peer_id}"


def invite(run: str = "ab" * 32) -> str:
    return format_invite(Invite(run, (DEAD_PEER,)))


def minga(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MINGA_HOME": str(tmp_path / "home")}
    return subprocess.run(
        [sys.executable, "-m", "peer", *arguments], capture_output=True, text=True, env=environment, timeout=60
    )


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2, done
    assert len(lines) == 1 and lines[0].startswith("minga: "), done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in lines[0], lines[0]
    children = psutil.Process().children(recursive=True)
    assert not [c for c in children if c.status() != psutil.STATUS_ZOMBIE], children


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (invite()[:-9], ["cut short", "copy"]),
        (invite()[: len(invite()) // 2], ["cut short"]),
        (invite().replace("tcp/9", "tcp/8"), ["mistyped"]),
        (invite().replace("minga:1:", "minga:7:"), ["version 7", "install"]),
        ("https://example.org", ["not an invite"]),
    ],
)
def test_invites(tmp_path: Path, text: str, words: list[str]) -> None:
    assert_refused(minga(tmp_path, "join", text), *words)
    assert not (tmp_path / "home" / "state").exists()


@pytest.mark.swarm
def test_an_address_that_nobody_answers(tmp_path: Path) -> None:
    assert_refused(minga(tmp_path, "join", invite(), "--bind", "127.0.0.1"), "invite")


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        (GOOD + "[training]\ntarget_batch_sizes = 3\n", ["training.target_batch_sizes", "unknown key"]),
        (GOOD + "[training]\ntarget_batch_size = -1\n", ["training.target_batch_size", "greater than"]),
        (GOOD + '[training]\nsequence_length = "8"\n', ["training.sequence_length", "integer"]),
        (GOOD + "[optimizer]\nlearning_rate = nan\n", ["optimizer.learning_rate"]),
        (GOOD + '[data]\nkind = "files"\nfiles = ["missing.txt"]\n', ["missing.txt"]),
        (GOOD + '[data]\nkind = "files"\n', ["files"]),
        ("version = 9\n" + GOOD, ["version 9"]),
        ("[run\n", ["not valid TOML", "line 1"]),
        ("a = " + "[" * 5000, ["not valid TOML"]),
        (GOOD + '[data]\nkind = "files"\nfiles = ["a\\u0000b.txt"]\n', ["data.files"]),
        ("[model]\n", ["run"]),
    ],
)
def test_run_descriptions(tmp_path: Path, toml: str, words: list[str]) -> None:
    path = tmp_path / "run.toml"
    path.write_text(toml)
    assert_refused(minga(tmp_path, "host", str(path)), *words)


def test_a_run_description_that_is_not_there(tmp_path: Path) -> None:
    assert_refused(minga(tmp_path, "host", str(tmp_path / "none.toml")), "none.toml", "No such file")


@pytest.mark.swarm
def test_a_port_in_use(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(GOOD)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = minga(tmp_path, "host", str(path), "--bind", "127.0.0.1", "--port", str(port))
        assert_refused(done, f"port {port}", "--port")


def test_a_state_directory_of_another_run(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    manifest = parse_manifest({"run": {"name": "another"}, "host": KEY.peer_id})
    (state / "manifest.minga").write_bytes(sign_manifest(manifest, KEY).to_bytes())
    before = sorted(path.name for path in state.iterdir())
    assert_refused(minga(tmp_path, "join", invite(), "--state-dir", str(state)), "another", "--state-dir")
    assert sorted(path.name for path in state.iterdir() if path.name != "lock") == before


@pytest.mark.parametrize("device", ["cuda:7", "tpu"])
@pytest.mark.swarm
def test_a_device_that_is_not_there(tmp_path: Path, device: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(GOOD)
    assert_refused(minga(tmp_path, "host", str(path), "--bind", "127.0.0.1", "--device", device), "device", "cpu")


@pytest.mark.parametrize("options", [["--name", "a" * 41], ["--name", "a\x1b[31m"], ["--emulate-throughput", "nan"]])
def test_options_that_make_no_sense(tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "run.toml"
    path.write_text(GOOD)
    done = minga(tmp_path, "host", str(path), *options)
    assert done.returncode == 2
    assert options[0] in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("command", ["status", "invite", "leave"])
def test_no_peer_running(tmp_path: Path, command: str) -> None:
    assert_refused(minga(tmp_path, command), "no peer is running", "minga host")


def test_nothing_to_export(tmp_path: Path) -> None:
    assert_refused(minga(tmp_path, "export", str(tmp_path / "out")), "checkpoint")
    assert not (tmp_path / "out").exists()


def test_a_manifest_that_does_not_hash_to_the_invite() -> None:
    """`minga join` shows this sentence for each peer that serves an altered manifest."""
    from protocol.errors import InvalidManifest
    from protocol.manifest import SignedManifest

    signed = sign_manifest(parse_manifest({"run": {"name": "true"}, "host": KEY.peer_id}), KEY)
    other = sign_manifest(parse_manifest({"run": {"name": "false"}, "host": KEY.peer_id}), KEY)
    run = parse_invite(invite(signed.run_id)).run
    with pytest.raises(InvalidManifest, match="altered"):
        SignedManifest.from_bytes(other.to_bytes(), run)
