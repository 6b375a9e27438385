"""Our all-reduce beside hivemind's `DecentralizedAverager`, in one run, on loopback.

    python -m benchmarks.allreduce [--peers 2 3] [--megabytes 4 50] [--rounds 5] [--json FILE]

Each peer is a process with all that it needs; peers begin each round together. hivemind gets its best case: the
group is given (no matchmaking), parts are equal, nothing is compressed on either side. Reported are the median
seconds of a round (the slowest peer's), its processor seconds for each peer, seconds from imports to readiness of
the last peer, and the resident memory (PSS) of a peer with its child processes. The engines take turns, so that a
busy machine is busy for both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

ENGINES = ("minga", "hivemind")
RUN = "ab" * 32
SAMPLES = (5, 11, 3, 8)  # of each peer: unequal, as in life


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.allreduce")
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--megabytes", type=int, nargs="+", default=[4, 50])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peer", nargs=3, metavar=("ENGINE", "NUMBER", "DIRECTORY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        engine, number, directory = options.peer
        be_a_peer(engine, int(number), Path(directory))
        return
    results = [
        measure(engine, peers, megabytes, options.rounds)
        for peers in options.peers
        for megabytes in options.megabytes
        for engine in ENGINES
    ]
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def measure(engine: str, peers: int, megabytes: int, rounds: int) -> dict[str, Any]:
    """Start `peers` processes, let them average `rounds` times, check the result, end them."""
    with tempfile.TemporaryDirectory(prefix="ar-", dir="/tmp") as directory:
        children = [Child(engine, number, directory) for number in range(peers)]
        try:
            addresses: list[str] = []
            startup = 0.0
            for child in children:
                answer = child.ask({"start": addresses, "elements": megabytes * 250_000})
                startup = max(startup, answer["seconds"])
                addresses = addresses or answer["addresses"]
            members = [child.peer_id for child in children]
            seconds = []
            for number in range(rounds + 1):
                if number == 1:
                    cpu_before = sum(child.cpu_seconds() for child in children)
                for child in children:
                    child.tell({"round": number, "members": members})
                answers = [child.answer() for child in children]
                if number:  # the first one also makes the connections
                    seconds.append(max(answer["seconds"] for answer in answers))
                error = max(answer["error"] for answer in answers)
                assert error < 1e-5, f"{engine} averaged wrongly, by {error}"
            cpu = (sum(child.cpu_seconds() for child in children) - cpu_before) / rounds / peers
            memory = statistics.mean(child.memory() for child in children)
        finally:
            for child in children:
                child.end()
    found = {
        "engine": engine,
        "peers": peers,
        "megabytes": megabytes,
        "round_seconds": statistics.median(seconds),
        "round_cpu_seconds": cpu,
        "startup_seconds": startup,
        "memory_megabytes": memory / 1e6,
    }
    print(f"  {engine}, {peers} peers, {megabytes} MB: {found['round_seconds']:.3f} s a round", file=sys.stderr)
    return found


class Child:
    """The benchmark's side of a peer process: lines of JSON in both directions."""

    def __init__(self, engine: str, number: int, directory: str) -> None:
        command = [sys.executable, "-m", "benchmarks.allreduce", "--peer", engine, str(number), directory]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.peer_id = ""

    def tell(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        print(json.dumps(message), file=self.process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a peer ended: {' '.join(self.process.args)}")  # type: ignore[arg-type]
        answer: dict[str, Any] = json.loads(line)
        self.peer_id = answer.get("peer_id", self.peer_id)
        return answer

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        self.tell(message)
        return self.answer()

    def memory(self) -> int:
        """PSS in bytes, of the process and its children: shared pages are counted once among their users."""
        process = psutil.Process(self.process.pid)
        family = [process, *process.children(recursive=True)]
        return sum(member.memory_full_info().pss for member in family)

    def cpu_seconds(self) -> float:
        """Used so far by the process and its children: unlike time on the wall, little disturbed by others."""
        process = psutil.Process(self.process.pid)
        times = [member.cpu_times() for member in [process, *process.children(recursive=True)]]
        return float(sum(time_.user + time_.system for time_ in times))

    def end(self) -> None:
        family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.stdin.close()  # type: ignore[union-attr]
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for member in family:  # hivemind's processes outlive their parent
            if member.is_running():
                member.kill()


def be_a_peer(engine: str, number: int, directory: Path) -> None:
    if engine == "minga":
        asyncio.run(minga_peer(number, directory))
    else:
        hivemind_peer(number)  # it forks, so no event loop may run here


def receive() -> dict[str, Any] | None:
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def reply(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def values_of(number: int, round_: int, elements: int) -> np.ndarray:
    """The mean gradient of a peer; constant, so that the result can be checked at no cost."""
    return np.full(elements, 1.0 + number + round_, dtype=np.float32)


def error_of(mean: np.ndarray, round_: int, peers: int) -> float:
    weights = np.array(SAMPLES[:peers], dtype=np.float64)
    exact = float((weights * (1.0 + np.arange(peers) + round_)).sum() / weights.sum())
    return float(np.abs(mean - exact).max())


async def minga_peer(number: int, directory: Path) -> None:
    from peer.swarm.allreduce import AllReduce, Contribution
    from peer.swarm.node import Node
    from protocol.signing import SigningKey

    begin_with = receive()
    assert begin_with is not None
    began = time.perf_counter()
    key = SigningKey(bytes([number + 1]) * 32)
    node = await Node.start(key, runtime_dir=directory, run=RUN, host="127.0.0.1", initial_peers=begin_with["start"])
    averager = AllReduce(node, patience_seconds=30)
    await averager.start()
    addresses = await node.addresses()
    reply(seconds=time.perf_counter() - began, addresses=addresses, peer_id=node.peer_id)
    while (message := await asyncio.to_thread(receive)) is not None:
        members = [Contribution(peer, SAMPLES[n], 1) for n, peer in enumerate(message["members"])]
        sums = values_of(number, message["round"], begin_with["elements"]) * SAMPLES[number]
        began = time.perf_counter()
        report = await averager.run(str(message["round"]), members, sums, "none")
        seconds = time.perf_counter() - began
        reply(seconds=seconds, error=error_of(report.mean, message["round"], len(members)))
    await node.close()


def hivemind_peer(number: int) -> None:
    import hivemind
    import torch

    from benchmarks.allreduce.given_group import GivenGroupAverager

    begin_with = receive()
    assert begin_with is not None
    began = time.perf_counter()
    dht = hivemind.DHT(start=True, initial_peers=begin_with["start"] or None, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    averager = GivenGroupAverager(
        [torch.zeros(begin_with["elements"])],
        dht,
        prefix="benchmark",
        start=True,
        min_matchmaking_time=4.0,
        request_timeout=3.0,
        next_chunk_timeout=30.0,
        allreduce_timeout=60.0,
    )
    addresses = [str(address) for address in dht.get_visible_maddrs()]
    reply(seconds=time.perf_counter() - began, addresses=addresses, peer_id=dht.peer_id.to_base58())
    while (message := receive()) is not None:
        values = torch.from_numpy(values_of(number, message["round"], begin_with["elements"]))
        began = time.perf_counter()
        with averager.get_tensors() as tensors:
            tensors[0].copy_(values)
        group = {"round": message["round"], "peers": message["members"]}
        averager.step(gather=group, weight=float(SAMPLES[number]), timeout=120, allow_retries=False)
        with averager.get_tensors() as tensors:
            mean = tensors[0].numpy()
            seconds = time.perf_counter() - began
            error = error_of(mean, message["round"], len(message["members"]))
        reply(seconds=seconds, error=error)
    averager.shutdown()
    dht.shutdown()


def show(results: list[dict[str, Any]]) -> None:
    columns = ("round_seconds", "round_cpu_seconds", "startup_seconds", "memory_megabytes")
    print("peers    MB    engine     round s  cpu s a peer    start s   memory MB of a peer")
    for ours, theirs in zip(results[::2], results[1::2], strict=True):
        for found in (ours, theirs):
            values = [found[column] for column in columns]
            head = f"{found['peers']:5} {found['megabytes']:5}    {found['engine']:8}"
            print(f"{head} {values[0]:9.3f} {values[1]:13.3f} {values[2]:10.2f} {values[3]:21.0f}")
        ratios = [theirs[column] / ours[column] for column in columns]
        print(f"{'ratio':>23} {ratios[0]:9.1f} {ratios[1]:13.1f} {ratios[2]:10.1f} {ratios[3]:21.1f}")


if __name__ == "__main__":
    main()
