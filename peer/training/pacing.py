"""Emulated speed: makes this computer train as slowly as another would.

A microbatch of n samples on an emulated device of r samples/s lasts n/r seconds from the moment it begins, of which
the forward pass takes a third and the backward pass two thirds, in equal steps from block to block. After each
block the pass waits until its moment; as the moments are absolute, the real computing disappears in the waiting as
long as it is faster. Where it is slower, the microbatch is late and counted as an overrun: then the numbers of the
run are not those of the emulated device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

FORWARD_PART = 1 / 3
OVERRUN_PART = 0.05
"""of a microbatch's duration: what it may be late without being counted; less is the scheduler's jitter"""


class Pace:
    """Paces microbatches; between `finish` and the next `begin` it waits for nothing."""

    def __init__(self, throughput: float) -> None:
        self.throughput = throughput
        self.overruns = 0
        self._began = 0.0
        self._duration = 0.0

    def attach(self, blocks: Sequence[nn.Module]) -> None:
        """Pace the passes through these blocks, which a model runs in this order."""
        count = len(blocks)
        for done, block in enumerate(blocks, start=1):
            forward = FORWARD_PART * done / count
            backward = FORWARD_PART + (1 - FORWARD_PART) * (count - done) / count
            block.register_forward_hook(self._hook(forward, backward))

    def _hook(self, forward: float, backward: float) -> Callable[[nn.Module, Any, Tensor], Tensor]:
        def gate(_block: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
            if self._duration == 0.0:
                return output
            self._wait_until(forward)
            paced: Tensor = _Gate.apply(output, self, backward)  # type: ignore[no-untyped-call]
            return paced

        return gate

    def begin(self, samples: int) -> None:
        """A microbatch begins now, before its data is read."""
        self._began = time.monotonic()
        self._duration = samples / self.throughput

    def finish(self) -> None:
        """The microbatch has been worked, its gradient added: wait until the emulated device would be ready."""
        late = time.monotonic() - self._began - self._duration
        if late > OVERRUN_PART * self._duration:
            self.overruns += 1
        self._wait_until(1.0)
        self._duration = 0.0

    def _wait_until(self, part: float) -> None:
        remaining = self._began + part * self._duration - time.monotonic()
        if remaining > 0:
            time.sleep(remaining)


class _Gate(torch.autograd.Function):
    """The identity; its backward waits, so that the backward pass through a block begins at its moment."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pace: Pace, backward_part: float) -> Tensor:
        ctx.pace, ctx.backward_part = pace, backward_part
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        ctx.pace._wait_until(ctx.backward_part)
        return gradients[0], None, None
