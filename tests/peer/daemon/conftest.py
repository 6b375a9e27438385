"""Real peers for tests: processes on real sockets, seen through their events, as a person's machine would run them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.heterogeneous.network import Network, NetworkImpossible, require_network
from peer.places import RuntimeDirectory
from peer.swarm.errors import StateUnavailable
from peer.swarm.identity import load_or_create
from peer.swarm.node import Node
from peer.swarm.state import FetchedState, fetch_state
from protocol.invite import Invite, parse_invite
from protocol.manifest import Manifest, SignedManifest

START_SECONDS = 60.0
Event = dict[str, Any]

RUN_TOML = """\
[run]
name = "test run"
[model]
preset = "nano"
[training]
target_batch_size = {target}
sequence_length = 32
stop_at_epoch = {stop_at}
evaluation_samples = 8
checkpoint_every_epochs = {checkpoint_every}
[schedule]
warmup_epochs = {warmup}
[averaging]
grace_seconds = {grace}
compression = "{compression}"
overlap = {overlap}
"""


class PeerProcess:
    """One `minga` process and all that it tells."""

    def __init__(
        self, arguments: list[str], home: Path, program: list[str] | None = None, bind: str = "127.0.0.1"
    ) -> None:
        command = program or [sys.executable, "-m", "peer"]
        environment = {**os.environ, "MINGA_HOME": str(home), "OMP_NUM_THREADS": "1"}
        self.stderr = home / f"stderr-{time.monotonic_ns()}"
        self.process = subprocess.Popen(
            [*command, *arguments, "--json", "--bind", bind, "--device", "cpu"],
            stdout=subprocess.PIPE,
            stderr=self.stderr.open("wb"),
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        self.events: list[Event] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.events.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for(self, what: Callable[[Event], bool], seconds: float = START_SECONDS) -> Event:
        """The first event that satisfies `what`, past or to come within the deadline."""
        deadline = time.monotonic() + seconds
        seen = 0
        with self._news:
            while True:
                for event in self.events[seen:]:
                    if what(event):
                        return event
                seen = len(self.events)
                left = deadline - time.monotonic()
                if left <= 0 or (self.process.poll() is not None and not self._reader.is_alive()):
                    raise AssertionError(f"waited in vain; {self.story()}")
                self._news.wait(min(left, 0.5))

    def wait_event(self, name: str, seconds: float = START_SECONDS) -> Event:
        return self.wait_for(lambda event: event["event"] == name, seconds)

    def wait_epoch(self, epoch: int, peers: int = 1, seconds: float = START_SECONDS) -> Event:
        """The commit of at least `epoch` in which at least so many peers had samples."""
        return self.wait_for(
            lambda e: e["event"] == "EpochCommitted" and e["epoch"] >= epoch and len(e["samples"]) >= peers, seconds
        )

    @property
    def commits(self) -> list[Event]:
        return [event for event in list(self.events) if event["event"] == "EpochCommitted"]

    @property
    def started(self) -> Event:
        return self.wait_event("Started")

    def story(self) -> str:
        words = self.stderr.read_text(errors="replace") if self.stderr.exists() else ""
        events = [event for event in self.events if event["event"] != "Gathering"]
        return f"exit code {self.process.poll()}, last events {events[-5:]}, stderr {words[-2000:]}"

    def family(self) -> list[psutil.Process]:
        """The daemon and every process that it has started."""
        try:
            daemon = psutil.Process(self.process.pid)
            return [daemon, *daemon.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self, seconds: float = 20.0) -> int:
        """As Ctrl-C would."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(seconds)


class Onlooker:
    """A node that takes no part but asks peers for what they serve, as any newcomer may."""

    def __init__(self, invite: Invite, home: Path) -> None:
        self._invite, self._home = invite, home
        self._runtime = RuntimeDirectory()

    async def __aenter__(self) -> Onlooker:
        key = load_or_create(self._home / "onlooker.key")
        self.node = await Node.start(
            key,
            runtime_dir=self._runtime.path,
            run=self._invite.run,
            host="127.0.0.1",
            initial_peers=self._invite.peers,
        )
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.node.close()
        self._runtime.remove()

    async def manifest(self) -> Manifest:
        peer = self._invite.peers[0].rpartition("/p2p/")[2]
        _, data = await self.node.call(peer, "manifest", {})
        return SignedManifest.from_bytes(data, self._invite.run).manifest

    async def fetch(self, peer: str, kind: str, epoch: int | None, size: int) -> FetchedState:
        return await fetch_state(
            self.node,
            [peer],
            kind,
            epoch,
            self._home / f"spool-{kind}-{peer[-8:]}",
            lambda _done, _total: None,
            expected_size=size,
        )

    async def same_epoch(self, peers: list[str], num_parameters: int) -> list[FetchedState]:
        """The states of all `peers` in one and the same epoch."""
        deadline = time.monotonic() + 60
        while True:
            assert time.monotonic() < deadline, "never saw all peers in the same epoch"
            try:
                states = await asyncio.gather(*(self.fetch(peer, "state", None, 12 * num_parameters) for peer in peers))
            except StateUnavailable:
                continue
            if len({state.header["epoch"] for state in states}) == 1:
                return list(states)


class Swarm:
    """The peers of one test, which all end with it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.peers: list[PeerProcess] = []

    def host(self, *arguments: str, **settings: Any) -> PeerProcess:
        toml = self.home / "run.toml"
        values = {"target": 96, "stop_at": 0, "grace": 2.0, "checkpoint_every": 1000}
        values |= {"compression": "none", "overlap": 1, "warmup": 0}
        where = {name: settings.pop(name) for name in ("program", "bind") if name in settings}
        toml.write_text(RUN_TOML.format(**values | settings))
        return self._add(PeerProcess(["host", str(toml), "--name", "host", *arguments], self.home, **where))

    def join(self, invite: str, *arguments: str, **where: Any) -> PeerProcess:
        return self._add(PeerProcess(["join", invite, *arguments], self.home, **where))

    def _add(self, peer: PeerProcess) -> PeerProcess:
        self.peers.append(peer)
        return peer

    def three(self, rates: tuple[float, float, float] = (60.0, 36.0, 12.0), **settings: Any) -> list[PeerProcess]:
        """Three unequal peers that have committed an epoch together."""
        host = self.host("--emulate-throughput", str(rates[0]), **settings)
        invite = host.started["invite"]
        others = [self.join(invite, "--emulate-throughput", str(rate)) for rate in rates[1:]]
        host.wait_epoch(1, peers=3, seconds=90)
        return [host, *others]

    def end(self) -> list[psutil.Process]:
        """End all peers; returns processes that outlived their daemon."""
        families = [process for peer in self.peers for process in peer.family()]
        for peer in self.peers:
            if peer.process.poll() is None:
                peer.process.send_signal(signal.SIGCONT)
                peer.process.send_signal(signal.SIGTERM)
        for peer in self.peers:
            try:
                peer.process.wait(20)
            except subprocess.TimeoutExpired:
                peer.kill()
        _, alive = psutil.wait_procs(families, timeout=3)
        for process in alive:
            process.kill()
        return alive


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    swarm = Swarm(tmp_path)
    yield swarm
    orphans = swarm.end()
    assert not orphans, f"processes outlived their peer: {orphans}"


@pytest.fixture
def onlooker_of(tmp_path: Path) -> Callable[[Invite], Onlooker]:
    return lambda invite: Onlooker(invite, tmp_path)


@pytest.fixture
def assert_same_replicas(tmp_path: Path) -> Callable[..., None]:
    """Checks that running peers have the same weights and moments, bit for bit, in some epoch of theirs."""

    def check(*peers: PeerProcess) -> None:
        async def look() -> None:
            async with Onlooker(parse_invite(peers[0].started["invite"]), tmp_path) as onlooker:
                names = [peer.started["peer"] for peer in peers]
                states = await onlooker.same_epoch(names, peers[0].started["num_parameters"])
                assert len({state.root for state in states}) == 1

        asyncio.run(look())

    return check


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MB. Needs root."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Callable[[int], dict[str, Any]]]:
    """Where each peer lives, on links of as many Mbit/s as the test's parameter says; 0: not limited."""
    try:
        require_network()
    except NetworkImpossible as error:
        pytest.skip(f"no network namespaces here: {error}")
    program = [sys.executable, "-m", "peer"]
    with Network(f"test-{os.getpid()}", request.param) as network:
        yield lambda peer: {"program": network.command(peer, program), "bind": network.address(peer)}
