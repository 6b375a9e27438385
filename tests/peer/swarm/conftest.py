"""Real peers on loopback for the tests of the network. Every test must end what it starts; that is checked here."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import peer.swarm
from peer.swarm.node import Node
from protocol.records import LIFETIME_SECONDS, Presence
from protocol.signing import SigningKey

RUN = "ab" * 32


def make_key(number: int) -> SigningKey:
    return SigningKey(bytes([number]) * 32)


class Network:
    """Emulated links: a network namespace a peer, and one more as the switch between them.

    Both ways are limited by token buckets with a queue of 100 ms, as home routers have. Daemons started `inside` a
    namespace live there, while this process goes on talking to them through their sockets in the file system.
    """

    SUBNET = "10.79.0"
    CLONE_NEWNET = 0x40000000

    def __init__(self, links: Sequence[float]) -> None:
        """`links`: Mbit/s of each peer, 0 for no limit."""
        self.links = links
        self._name = f"minga-test-{secrets.token_hex(3)}"

    def __enter__(self) -> Network:
        if os.geteuid() or not shutil.which("tc"):
            pytest.skip("links are emulated with network namespaces: run this on Linux as root, with iproute2")
        try:
            self._run("ip netns add {0}-switch")
            self._run("ip -n {0}-switch link add bridge type bridge")
            self._run("ip -n {0}-switch link set bridge up")
            for peer, mbits in enumerate(self.links):
                self._run(f"ip netns add {{0}}-{peer}")
                ends = f"port{peer} netns {{0}}-switch type veth peer name eth0 netns {{0}}-{peer}"
                self._run(f"ip link add {ends}")
                self._run(f"ip -n {{0}}-{peer} link set lo up")
                self._run(f"ip -n {{0}}-{peer} address add {self.address(peer)}/24 dev eth0")
                self._run(f"ip -n {{0}}-{peer} link set eth0 up")
                self._run(f"ip -n {{0}}-switch link set port{peer} master bridge up")
                self.limit(peer, mbits)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*range(len(self.links)), "switch"):
            subprocess.run(["ip", "netns", "delete", f"{self._name}-{name}"], capture_output=True, check=False)

    def address(self, peer: int) -> str:
        return f"{self.SUBNET}.{peer + 1}"

    def limit(self, peer: int, mbits: float) -> None:
        """Limit a peer's link, both ways, from now on."""
        for namespace, device in ((peer, "eth0"), ("switch", f"port{peer}")):
            burst = max(6000, round(mbits * 500))  # 4 ms
            shape = f"tbf rate {mbits}mbit burst {burst} latency 100ms" if mbits else "pfifo limit 1000"
            self._run(f"tc -n {{0}}-{namespace} qdisc replace dev {device} root {shape}")

    @contextlib.contextmanager
    def inside(self, peer: int) -> Iterator[None]:
        """What this thread starts meanwhile is at the peer's end of its link."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        there = os.open(f"/var/run/netns/{self._name}-{peer}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._enter(there)
            yield
        finally:
            self._enter(home)
            os.close(home)
            os.close(there)

    def _enter(self, descriptor: int) -> None:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, self.CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns failed")

    def _run(self, command: str) -> None:
        subprocess.run(command.format(self._name).split(), capture_output=True, check=True)


class Swarm:
    """Starts peers of one run and ends them."""

    run = RUN

    def __init__(self, runtime_dir: Path) -> None:
        self.runtime_dir = runtime_dir

    @contextlib.asynccontextmanager
    async def nodes(self, count: int, **options: Any) -> AsyncIterator[list[Node]]:
        """`count` peers that know each other, sorted by peer id."""
        started: list[Node] = []
        try:
            first = await self.start(make_key(1), **options)
            started.append(first)
            addresses = await first.addresses()
            others = (self.start(make_key(n), initial_peers=addresses, **options) for n in range(2, count + 1))
            started += await asyncio.gather(*others)
            await eventually(lambda: all(node.num_neighbours == count - 1 for node in started))
            yield sorted(started, key=lambda node: node.peer_id)
        finally:
            for node in started:
                thaw(node)
                await node.close()

    @contextlib.asynccontextmanager
    async def linked(self, *links: float) -> AsyncIterator[tuple[list[Node], Network]]:
        """A peer at the end of each of these links (Mbit/s, both ways), in their order; they know each other."""
        started: list[Node] = []
        with Network([0.0] * len(links)) as network:
            try:
                for number in range(len(links)):
                    addresses = await started[0].addresses() if started else []
                    with network.inside(number):
                        node = await self.start(make_key(number + 1), host="0.0.0.0", initial_peers=addresses)
                    started.append(node)
                await eventually(lambda: all(node.num_neighbours == len(links) - 1 for node in started))
                for number, mbits in enumerate(links):
                    network.limit(number, mbits)
                yield started, network
            finally:
                for node in started:
                    await node.close()

    async def start(self, key: SigningKey, **options: Any) -> Node:
        options = {"host": "127.0.0.1", "run": RUN, "runtime_dir": self.runtime_dir} | options
        return await Node.start(key, **options)


async def eventually(condition: Callable[[], Any], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.02)


def freeze(node: Node) -> None:
    """Stop a peer's daemon where it is: its connections stay open, and nobody serves them."""
    os.kill(node._daemon.pid, signal.SIGSTOP)


def thaw(node: Node) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(node._daemon.pid, signal.SIGCONT)


async def kill(node: Node) -> None:
    os.kill(node._daemon.pid, signal.SIGKILL)
    await asyncio.wait_for(asyncio.shield(node.died), 10)


def make_presence(peer: str, *, seconds: float = LIFETIME_SECONDS["presence"], **changes: Any) -> Presence:
    values = {
        "run": RUN,
        "peer": peer,
        "expires": int((time.time() + seconds) * 1000),
        "name": "a peer",
        "addresses": [],
        "devices": "cpu",
        "state": "training",
    }
    return Presence.model_validate(values | changes)


def daemons_of_this_process() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE and "p2pd" in process.name():
                found.append(process)
    return found


def tasks_of_the_swarm() -> list[asyncio.Task[Any]]:
    """Tasks of ours that are still there; those in the DHT last as long as its requests may."""
    folder = Path(peer.swarm.__file__).parent
    codes = {task: task.get_coro().cr_code for task in asyncio.all_tasks()}
    return [
        task
        for task, code in codes.items()
        if Path(code.co_filename).parent == folder and Path(code.co_filename).name != "engine.py"
    ]


@contextlib.contextmanager
def clean_runtime_dir() -> Iterator[Path]:
    """A short path for sockets; at the end, nothing may be left in it, and no daemon of it may run."""
    path = Path(tempfile.mkdtemp(prefix="minga-", dir="/tmp"))
    yield path
    left = [item.name for item in path.iterdir()]
    shutil.rmtree(path)
    running = [process for process in daemons_of_this_process() if str(path) in " ".join(process.cmdline())]
    for process in running:
        process.kill()
    assert not running, "a libp2p daemon outlived its test"
    assert not left, "files were left in the runtime directory"


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    with clean_runtime_dir() as path:
        yield path


@pytest.fixture
def swarm(runtime_dir: Path) -> Swarm:
    return Swarm(runtime_dir)


@dataclass
class Company:
    """Four peers that the tests of a module share, and the event loop they live on; nobody ends or stops them."""

    runner: asyncio.Runner
    nodes: list[Node]


@pytest.fixture(scope="module")
def company() -> Iterator[Company]:
    with clean_runtime_dir() as path, asyncio.Runner() as runner:
        swarm = Swarm(path).nodes(4)
        yield Company(runner, runner.run(swarm.__aenter__()))
        runner.run(swarm.__aexit__(None, None, None))


class Tools:
    """What tests of this folder share; modules cannot import each other here."""

    run = RUN
    make_key = staticmethod(make_key)
    make_presence = staticmethod(make_presence)
    eventually = staticmethod(eventually)
    freeze = staticmethod(freeze)
    thaw = staticmethod(thaw)
    kill = staticmethod(kill)
    tasks = staticmethod(tasks_of_the_swarm)


@pytest.fixture(scope="session")
def tools() -> type[Tools]:
    return Tools
