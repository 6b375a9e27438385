"""Emulated links: a network namespace a peer, one more as the switch between them, and limits both ways.

    peer 0 ─ eth0 ═══ port0 ─┐
    peer 1 ─ eth0 ═══ port1 ─┤ bridge      upload is limited at eth0, download at the switch's port
    …                        ┘

A limit is a token bucket (`tc tbf`) with a queue of 100 ms, like a home router's; what does not fit is dropped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType

from benchmarks.heterogeneous.leftovers import Run, kill_all_in, remove_namespace

SUBNET = "10.77.0"
"""of each run alone: its switch is connected to nothing else"""
QUEUE_MILLISECONDS = 100
BURST_SECONDS = 0.004
MIN_BURST = 6000
"""bytes: four packets, or the bucket never holds enough for one"""


class NetworkImpossible(Exception):
    """Links cannot be emulated here; the message is one sentence with a remedy."""


class Network:
    """The namespaces of one run, from `with` to its end."""

    def __init__(self, run: str, links: Sequence[float]) -> None:
        """`run`: its unique name; `links`: Mbit/s of each peer, 0 for no limit."""
        self._run, self._links = run, links
        self.switch = f"{run}-switch"

    def namespace(self, peer: int) -> str:
        return f"{self._run}-{peer}"

    @staticmethod
    def address(peer: int) -> str:
        return f"{SUBNET}.{peer + 1}"

    def __enter__(self) -> Network:
        try:
            _ip("netns", "add", self.switch)
            _ip("-n", self.switch, "link", "set", "lo", "up")
            _ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
            _ip("-n", self.switch, "link", "set", "bridge", "up")
            for peer, mbits in enumerate(self._links):
                self._add(peer)
                self.limit(peer, mbits)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for peer in range(len(self._links)):
            remove_namespace(self.namespace(peer))
        remove_namespace(self.switch)

    def limit(self, peer: int, mbits: float) -> None:
        """Limit a peer's link, both ways, from now on."""
        port = f"port{peer}"
        for namespace, device in ((self.namespace(peer), "eth0"), (self.switch, port)):
            if not mbits:
                _tc("-n", namespace, "qdisc", "replace", "dev", device, "root", "pfifo", "limit", "1000")
                continue
            burst = max(MIN_BURST, round(mbits * 1e6 / 8 * BURST_SECONDS))
            shape = ["rate", f"{round(mbits * 1e6)}bit", "burst", str(burst), "latency", f"{QUEUE_MILLISECONDS}ms"]
            _tc("-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *shape)

    def command(self, peer: int, command: Sequence[str]) -> list[str]:
        """The same command, run where the peer lives."""
        return ["ip", "netns", "exec", self.namespace(peer), *command]

    def kill(self, peer: int) -> None:
        """Every process of the peer."""
        kill_all_in(self.namespace(peer))

    def _add(self, peer: int) -> None:
        here, port = self.namespace(peer), f"port{peer}"
        _ip("netns", "add", here)
        _ip("link", "add", port, "netns", self.switch, "type", "veth", "peer", "name", "eth0", "netns", here)
        _ip("-n", here, "link", "set", "lo", "up")
        _ip("-n", here, "address", "add", f"{self.address(peer)}/24", "dev", "eth0")
        _ip("-n", here, "link", "set", "eth0", "up")
        _ip("-n", self.switch, "link", "set", port, "master", "bridge", "up")


def require_network() -> None:
    """Raises `NetworkImpossible` unless links can be emulated on this computer."""
    if sys.platform != "linux":
        raise NetworkImpossible("links are emulated with network namespaces, which only Linux has; run this on Linux")
    if os.geteuid() != 0:
        raise NetworkImpossible("network namespaces need root, which this user is not; run this with sudo")
    if not shutil.which("ip") or not shutil.which("tc"):
        raise NetworkImpossible("the commands ip and tc are missing; install the package iproute2")
    try:
        with Run() as run, Network(run.name, (1.0,)):
            pass
    except NetworkImpossible as error:
        raise NetworkImpossible(
            f"this system does not let us emulate links ({error}); run it outside a container, or in one with "
            "--privileged"
        ) from None


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _tc(*arguments: str) -> None:
    _run("tc", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        words = done.stderr.strip().splitlines()
        raise NetworkImpossible(f"`{' '.join(command)}` failed: {words[0] if words else 'no message'}")
