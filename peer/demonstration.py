"""The demonstration: three unequal peers, each with its own processes, train together on this computer.

Everything is real (processes, sockets, DHT, text, gradients) but the speeds: one computer has no three graphics cards,
so each peer is held to an emulated pace, in the proportion of an RTX 4090, an RTX 3090 and a laptop.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer.errors import PeerError
from peer.processes import die_with_parent, end_all

SPEEDS = {"RTX 4090": 100, "RTX 3090": 60, "laptop": 10}
"""emulated, in proportion"""
RUN_TOML = """\
[run]
name = "demonstration"
description = "a tiny transformer learns to write Python, byte by byte"

[model]
preset = "nano"

[training]
target_batch_size = {target}
sequence_length = {sequence_length}
stop_at_epoch = {epochs}
evaluation_samples = 64

[optimizer]
learning_rate = {learning_rate}

[schedule]
warmup_epochs = {warmup}
total_epochs = {epochs}
"""
START_SECONDS = 90.0
LEAVE_SECONDS = 20.0

Report = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """How large a demonstration is."""

    epochs: int = 60
    target: int = 256
    sequence_length: int = 64
    samples_per_second: float = 170.0
    """of all three together"""
    learning_rate: float = 1e-2


@dataclass
class DemoPeer:
    name: str
    emulated: float
    process: subprocess.Popen[bytes]
    stderr: Path
    throughput: float = 0.0
    peer: str = ""
    ended: str = ""


@dataclass
class Demonstration:
    """Runs once: `run()` yields lines of what happens (peer's name, event) and then `report` is there."""

    setting: Setting
    home: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="minga-demo-")))
    peers: list[DemoPeer] = field(default_factory=list)
    events: queue.Queue[tuple[DemoPeer, dict[str, Any] | None]] = field(default_factory=queue.Queue)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    heldout: dict[int, float] = field(default_factory=dict)

    def run(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Start the three, follow them to the last epoch, and see them end. Raises `PeerError` if one fails."""
        try:
            toml = self.home / "run.toml"
            setting = self.setting
            toml.write_text(
                RUN_TOML.format(
                    target=setting.target,
                    sequence_length=setting.sequence_length,
                    epochs=setting.epochs,
                    learning_rate=setting.learning_rate,
                    warmup=max(1, setting.epochs // 12),
                )
            )
            names = list(SPEEDS)
            host = self._start(names[0], ["host", str(toml)])
            invite = None
            deadline = time.monotonic() + START_SECONDS
            while sum(not peer.ended for peer in self.peers) or not self.events.empty():
                try:
                    peer, event = self.events.get(timeout=1.0)
                except queue.Empty:
                    if not self.epochs and time.monotonic() > deadline:
                        raise PeerError(
                            f"no epoch was finished within {START_SECONDS:.0f} s; close other programs and try again"
                        ) from None
                    continue
                if event is None:
                    self._see_end(peer)
                    continue
                self._note(host, peer, event)
                yield peer.name, event
                if event["event"] == "Started" and peer is host and invite is None:
                    invite = event["invite"]
                    for name in names[1:]:
                        self._start(name, ["join", invite])
        finally:
            end_all((peer.process for peer in self.peers), LEAVE_SECONDS)
            shutil.rmtree(self.home, ignore_errors=True)

    def _start(self, name: str, arguments: list[str]) -> DemoPeer:
        rate = self.setting.samples_per_second * SPEEDS[name] / sum(SPEEDS.values())
        stderr = self.home / f"{name}.stderr".replace(" ", "-")
        command = [sys.executable, "-m", "peer", *arguments, "--json", "--bind", "127.0.0.1"]
        command += ["--device", "cpu", "--name", name, "--emulate-throughput", f"{rate:.3f}"]
        # One home for the three shows that peers on one computer keep out of each other's way.
        environment = {**os.environ, "MINGA_HOME": str(self.home / "home"), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr.open("wb"),
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # a Ctrl-C reaches us alone, and we ask them to leave
            preexec_fn=die_with_parent,
        )
        peer = DemoPeer(name, rate, process, stderr)
        self.peers.append(peer)
        threading.Thread(target=self._read, args=(peer,), daemon=True).start()
        return peer

    def _read(self, peer: DemoPeer) -> None:
        assert peer.process.stdout is not None
        for line in peer.process.stdout:
            try:
                self.events.put((peer, json.loads(line)))
            except ValueError:
                continue
        peer.process.wait()
        self.events.put((peer, None))

    def _see_end(self, peer: DemoPeer) -> None:
        code = peer.process.returncode
        peer.ended = f"exit code {code}"
        if code != 0:
            words = peer.stderr.read_text(errors="replace").strip().splitlines() if peer.stderr.exists() else []
            raise PeerError(f"{peer.name} ended with exit code {code}: {words[-1] if words else 'no message'}")

    def _note(self, host: DemoPeer, peer: DemoPeer, event: dict[str, Any]) -> None:
        match event["event"]:
            case "Started":
                peer.peer = event["peer"]
            case "Measured":
                peer.throughput = event["throughput"]
            case "Evaluated":
                self.heldout[event["epoch"]] = event["heldout_bits_per_byte"]
            case "EpochCommitted" if peer is host:
                self.epochs.append(event)

    @property
    def report(self) -> Report:
        """The facts of the run. Shares and efficiency are of the epochs that all three gathered together."""
        names = {peer.peer: peer.name for peer in self.peers}
        together = [epoch for epoch in self.epochs if len(epoch["samples"]) == len(SPEEDS)]
        settled = together[1:]  # the first one began while the last peer was still arriving
        samples = {peer.peer: sum(e["samples"].get(peer.peer, 0) for e in together) for peer in self.peers}
        whole = sum(samples.values()) or 1
        seconds = sum(epoch["seconds"] for epoch in settled)
        speed = sum(sum(epoch["samples"].values()) for epoch in settled) / seconds if seconds else 0.0
        solo = sum(peer.throughput for peer in self.peers)
        return {
            "emulated": True,
            "epochs": [
                {
                    "epoch": epoch["epoch"],
                    "samples": sum(epoch["samples"].values()),
                    "bits_per_byte": self.heldout.get(epoch["epoch"]),
                    "seconds": epoch["seconds"],
                    "peers": {names.get(p, p): n for p, n in epoch["samples"].items()},
                }
                for epoch in self.epochs
            ],
            "epochs_together": len(together),
            "peers": [
                {
                    "name": peer.name,
                    "throughput": peer.throughput,
                    "samples": samples[peer.peer],
                    "share": samples[peer.peer] / whole,
                    "share_of_speed": peer.throughput / solo if solo else 0.0,
                }
                for peer in self.peers
            ],
            "samples_per_second": speed,
            "solo_samples_per_second": solo,
            "efficiency": speed / solo if solo else 0.0,
            "final_bits_per_byte": self.heldout[max(self.heldout)] if self.heldout else None,
        }


def run_demonstration(setting: Setting, show: Callable[[str, dict[str, Any]], None]) -> Report:
    demonstration = Demonstration(setting)
    for name, event in demonstration.run():
        show(name, event)
    return demonstration.report
