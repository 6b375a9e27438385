from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from peer.training.pacing import Pace


class Clocked(nn.Module):
    """Notes when its forward and its backward begin."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.forwards, self.backwards = [], []

    def forward(self, x):
        self.forwards.append(time.monotonic())
        y = self.linear(x)
        if y.requires_grad:
            y.register_hook(lambda _gradient: self.backwards.append(time.monotonic()))
        return y


def microbatch(pace, blocks, samples, extra=0.0):
    pace.begin(samples)
    x = torch.ones(1, 4)
    for block in blocks:
        x = block(x)
    x.sum().backward()
    time.sleep(extra)
    pace.finish()


@pytest.fixture
def blocks():
    return [Clocked() for _ in range(3)]


def test_passes_are_spread_over_the_microbatch(blocks):
    pace = Pace(throughput=10.0)
    pace.attach(blocks)
    began = time.monotonic()
    microbatch(pace, blocks, samples=6)
    took = time.monotonic() - began
    # Forward: a third of 0.6 s over three blocks; backward: the other two thirds, from the last block to the first.
    due = {"forward": [0.0, 0.2 / 3, 0.4 / 3], "backward": [0.2 + 0.8 / 3, 0.2 + 0.4 / 3, 0.2], "end": [0.6]}
    forwards = [block.forwards[0] - began for block in blocks]
    backwards = [block.backwards[0] - began for block in blocks]
    for name, moments in (("forward", forwards), ("backward", backwards), ("end", [took])):
        for moment, expected in zip(moments, due[name], strict=True):
            assert expected - 0.002 <= moment < expected + 0.25  # not too early; later only as the machine is busy


def test_real_work_disappears_in_the_waiting(blocks):
    pace = Pace(throughput=10.0)
    pace.attach(blocks)
    took = []
    for _ in range(3):
        began = time.monotonic()
        microbatch(pace, blocks, samples=3, extra=0.1)
        took.append(time.monotonic() - began)
    assert 0.3 <= min(took) < 0.36


def test_late_microbatches_are_counted(blocks):
    pace = Pace(throughput=100.0)
    pace.attach(blocks)
    microbatch(pace, blocks, samples=2, extra=0.1)
    assert pace.overruns == 1


def test_gradients_are_those_of_the_unpaced_model(blocks):
    x = torch.ones(1, 4)
    blocks[2](blocks[1](blocks[0](x))).sum().backward()
    plain = [block.linear.weight.grad.clone() for block in blocks]
    for block in blocks:
        block.linear.weight.grad = None
    pace = Pace(throughput=1000.0)
    pace.attach(blocks)
    microbatch(pace, blocks, samples=1)
    assert all(torch.equal(block.linear.weight.grad, gradient) for block, gradient in zip(blocks, plain, strict=True))


def test_nothing_waits_outside_of_microbatches(blocks):
    pace = Pace(throughput=0.1)
    pace.attach(blocks)
    began = time.monotonic()
    with torch.no_grad():
        blocks[0](torch.ones(1, 4))
    assert time.monotonic() - began < 1.0
