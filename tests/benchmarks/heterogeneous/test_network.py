"""Real namespaces: links carry what they should, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.heterogeneous.leftovers import PREFIX, Run, namespaces, sweep
from benchmarks.heterogeneous.meter import Meter, between
from benchmarks.heterogeneous.network import Network
from benchmarks.heterogeneous.processes import PeerEnded, Processes

pytestmark = pytest.mark.netns

SEND = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 9000), timeout=10) as s:
    began = time.monotonic()
    s.sendall(bytes(int(sys.argv[2])))
    s.shutdown(socket.SHUT_WR)
    s.recv(1)
    print('{"event": "Sent", "seconds": %f}' % (time.monotonic() - began), flush=True)
time.sleep(60)
"""
RECEIVE = """
import socket, sys, time
with socket.create_server((sys.argv[1], 9000)) as server:
    print('{"event": "Listening"}', flush=True)
    s, _ = server.accept()
    while s.recv(1 << 16):
        pass
    s.sendall(b"!")
time.sleep(60)
"""


def transfer(network: Network, directory: Path, size: int) -> float:
    """Seconds in which peer 1 sends so many bytes to peer 0."""
    processes = Processes(directory)
    try:
        processes.start(0, network.command(0, [sys.executable, "-c", RECEIVE, network.address(0)]), {})
        processes.wait_for(0, "Listening", 20)
        processes.start(1, network.command(1, [sys.executable, "-c", SEND, network.address(0), str(size)]), {})
        return float(processes.wait_for(1, "Sent", 60).event["seconds"])
    finally:
        processes.end()


def wait_for_reading(meter: Meter, after: float) -> None:
    deadline = time.monotonic() + 10
    while not meter.readings or meter.readings[-1].at < after:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_link_carries_its_rate_and_is_counted(run: Run) -> None:
    size = 1_000_000
    with Network(run.name, (100.0, 4.0)) as network, Meter(network.switch, 2) as meter:
        wait_for_reading(meter, 0.0)
        began = time.monotonic()
        seconds = transfer(network, run.directory, size)
        wait_for_reading(meter, time.monotonic())
        ended = time.monotonic()
        assert 0.9 * size * 8 / 4e6 <= seconds <= 1.3 * size * 8 / 4e6
        network.limit(1, 40.0)
        assert transfer(network, run.directory, size) < seconds / 3, "the link is ten times as fast now"
        wait_for_reading(meter, ended)
    traffic = between(meter.readings, began, ended)
    assert size <= traffic.sent[1] <= 1.2 * size
    assert size <= traffic.received[0] <= 1.2 * size
    assert traffic.sent[0] < 0.1 * size


def test_nothing_is_left_behind(run: Run) -> None:
    with Network(run.name, (10.0, 0.0)) as network:
        sleeper = subprocess.Popen(network.command(1, ["sleep", "600"]))
        assert len(namespaces(run.name)) == 3
    assert namespaces(run.name) == []
    assert sleeper.wait(10) == -signal.SIGKILL


def test_two_runs_do_not_meet(run: Run) -> None:
    with Run() as other, Network(run.name, (1.0,)), Network(other.name, (1.0,)):
        assert run.name != other.name
        sweep()
        assert len(namespaces(run.name)) == len(namespaces(other.name)) == 2, "both live, so neither is swept"


def test_leftovers_of_a_killed_run_are_removed(run: Run) -> None:
    code = (
        "import subprocess, time\n"
        "from benchmarks.heterogeneous.leftovers import Run\n"
        "from benchmarks.heterogeneous.network import Network\n"
        "with Run() as run, Network(run.name, (1.0,)) as network:\n"
        "    sleeper = subprocess.Popen(network.command(0, ['sleep', '600']), start_new_session=True)\n"
        "    print(run.name, sleeper.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    killed = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    name, sleeper = killed.stdout.readline().split()
    assert name.startswith(PREFIX) and len(namespaces(name)) == 2
    killed.kill()
    killed.wait()
    killed.stdout.close()
    sweep()
    assert namespaces(name) == []
    assert not Path(f"/proc/{sleeper}").exists() or "Z" in Path(f"/proc/{sleeper}/stat").read_text().split(")")[1][:3]


def test_ctrl_c_tears_everything_down(run: Run, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.heterogeneous", "--quick", "--json", str(tmp_path / "facts.json")]
    before = set(namespaces(PREFIX))
    running = subprocess.Popen(
        [*command, "--systems", "ddp", "--speeds", "1,1", "--links", "10,10"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        start_new_session=True,
    )
    try:
        assert running.stderr is not None
        for line in running.stderr:
            if line.startswith("ddp"):
                break
        deadline = time.monotonic() + 30
        while len(set(namespaces(PREFIX)) - before) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(30) == 130
    finally:
        if running.poll() is None:
            running.kill()
            running.wait()
        running.stderr.close()
    assert set(namespaces(PREFIX)) <= before


def test_a_process_that_ends_is_noticed_with_its_last_words(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.start(3, [sys.executable, "-c", "import sys; sys.exit('no such device')"], {})
    with pytest.raises(PeerEnded, match="peer 3 ended with exit code 1: no such device"):
        processes.wait_for(3, "Ready", 30)
    processes.end()
