"""The replay's averaging gives the numbers of real rounds."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.convergence.averaging import Averaging
from peer.swarm.allreduce import AllReduce
from peer.swarm.codec import CODECS, Compression
from peer.swarm.node import Node
from peer.swarm.parts import Contribution
from protocol.signing import SigningKey

SIZE = 20_011  # several pieces for each reducer, the last one short
ROUNDS = 3


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="minga-", dir="/tmp") as path:
        yield Path(path)


@pytest.mark.swarm
@pytest.mark.parametrize("compression", CODECS)
def test_means_and_residuals_are_those_of_real_rounds(runtime_dir: Path, compression: Compression) -> None:
    generator = np.random.default_rng(0)
    rounds = [[generator.standard_normal(SIZE).astype(np.float32) for _ in range(3)] for _ in range(ROUNDS)]

    async def scenario() -> None:
        nodes: list[Node] = []
        try:
            for number in range(1, 4):
                known = await nodes[0].addresses() if nodes else []
                key = SigningKey(bytes([number] * 32))
                options = {"host": "127.0.0.1", "run": "ab" * 32, "runtime_dir": runtime_dir, "initial_peers": known}
                nodes.append(await Node.start(key, **options))  # type: ignore[arg-type]
            averagers = [AllReduce(node, patience_seconds=10.0) for node in nodes]
            for averager in averagers:
                await averager.start()
            members = [
                Contribution(node.peer_id, samples, share)
                for node, samples, share in zip(nodes, (8, 40, 3), (1, 2, 1), strict=True)
            ]
            ours = Averaging(3, compression)
            kept = ours.residuals
            for number, sums in enumerate(rounds):
                theirs = await asyncio.gather(
                    *(
                        averager.run(f"round {number}", members, own, compression, residual)
                        for averager, own, residual in zip(averagers, sums, kept, strict=True)
                    )
                )
                mean = ours.run(members, sums)
                kept = [report.residual for report in theirs]
                for report, residual in zip(theirs, ours.residuals, strict=True):
                    assert report.mean.tobytes() == mean.tobytes()
                    assert (report.residual is None) == (residual is None) == (compression == "none")
                    if residual is not None and report.residual is not None:
                        assert np.array_equal(report.residual, residual)
        finally:
            for node in nodes:
                await node.close()

    asyncio.run(scenario())
