"""Three real peers train together: what they agree on is exact."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest

from peer.training.data import open_corpus
from peer.training.model import build, load_flat
from protocol.invite import parse_invite
from protocol.manifest import Manifest
from protocol.order import sample_start

pytestmark = pytest.mark.swarm


def single_process_gradient(manifest: Manifest, weights: np.ndarray, counts: dict[str, int], epoch: int, tmp: Path):
    """Mean gradient of all the samples that the peers were asked for, computed by one process in one batch."""
    import torch

    model = build(manifest)
    load_flat(model, weights)
    corpus = open_corpus(manifest, None, tmp)
    samples = [
        corpus.sample(sample_start(manifest.training.seed, epoch, peer, index, corpus.population))
        for peer, count in counts.items()
        for index in range(count)
    ]
    loss = model.loss(torch.from_numpy(np.stack(samples).astype(np.int64)))
    loss.mean().backward()
    return np.concatenate([p.grad.flatten().numpy() for p in model.parameters()])


def test_three_peers_average_exactly_and_stay_equal(swarm, onlooker_of, tmp_path: Path) -> None:
    """One epoch's averaged gradient is that of a single process; all weights agree after ten epochs."""
    host, *others = swarm.three(rates=(40.0, 23.0, 9.0), target=72, overlap=0)
    invite = parse_invite(host.started["invite"])
    peers = [p.started["peer"] for p in (host, *others)]

    async def watch() -> None:
        async with onlooker_of(invite) as onlooker:
            manifest = await onlooker.manifest()
            num_parameters = host.started["num_parameters"]
            deadline = time.monotonic() + 60
            while True:  # an epoch passes by while we look: until state and gradient are of the same one
                assert time.monotonic() < deadline, "never saw a state and the gradient that follows it"
                state = await onlooker.fetch(peers[0], "state", None, 12 * num_parameters)
                epoch = state.header["epoch"]
                commit = await asyncio.to_thread(host.wait_epoch, epoch + 1)
                if commit["epoch"] == epoch + 1 and len(commit["samples"]) == 3:
                    gradients = [await onlooker.fetch(peer, "gradient", epoch, 4 * num_parameters) for peer in peers]
                    break
            weights = np.frombuffer(state.payload, dtype=np.float32)[:num_parameters]
            mean = np.frombuffer(gradients[0].payload, dtype=np.float32)
            assert len(set(commit["samples"].values())) == 3, "the quotas were meant to be unequal"
            expected = single_process_gradient(manifest, weights, commit["samples"], epoch, tmp_path)
            assert np.linalg.norm(mean - expected) <= 1e-5 * np.linalg.norm(expected)
            for other in gradients[1:]:
                assert bytes(other.payload) == bytes(gradients[0].payload)

            for peer in (host, *others):
                await asyncio.to_thread(peer.wait_epoch, epoch + 10)
            states = await onlooker.same_epoch(peers, num_parameters)
            for state in states:
                vectors = np.frombuffer(state.payload, dtype=np.float32)
                assert np.isfinite(vectors).all()
                assert bytes(state.payload) == bytes(states[0].payload), "equal bit for bit, so within 1e-6"

    asyncio.run(watch())


def test_shares_follow_speed(swarm) -> None:
    host, *others = swarm.three(rates=(60.0, 36.0, 12.0), target=108)
    first = host.wait_epoch(1, peers=3)["epoch"] + 3  # by then they begin their epochs together
    host.wait_epoch(first + 8, seconds=60)
    counted = [c for c in host.commits if first < c["epoch"] <= first + 8]
    speeds = {p.started["peer"]: p.wait_event("Measured")["throughput"] for p in (host, *others)}
    samples = {peer: sum(c["samples"][peer] for c in counted) for peer in speeds}
    for peer, speed in speeds.items():
        share, fair = samples[peer] / sum(samples.values()), speed / sum(speeds.values())
        assert share == pytest.approx(fair, rel=0.1)
    assert sum(sum(c["samples"].values()) for c in counted) <= 1.02 * 108 * len(counted)
    stale = [c["stale_samples"] for c in others[0].commits if c["epoch"] > first]
    assert min(stale) <= 12  # of its 36: most of its samples have the weights of their epoch


def test_samples_are_gathered_ahead_of_the_average_after_the_warm_up(swarm) -> None:
    warmup = 4
    peers = swarm.three(target=108, warmup=warmup)
    peers[0].wait_epoch(warmup + 8, seconds=60)
    commits = [commit for peer in peers for commit in peer.commits]
    assert not any(c["stale_samples"] for c in commits if c["epoch"] <= warmup)
    assert any(c["stale_samples"] for c in commits if c["epoch"] > warmup)
