"""One forward and backward at a time: gradients of samples, summed into the shared memory."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from peer.training.arena import Arena
from peer.training.device import Device
from peer.training.model import Transformer, parameter_layout
from peer.training.presets import PRESETS
from protocol.manifest import Manifest


class Replica:
    """A device's own copy of the weights, and the gradient of the microbatch in work. Both are flat (P,)."""

    def __init__(self, manifest: Manifest, arena: Arena, device: Device) -> None:
        self.device = device
        self.model = Transformer(PRESETS[manifest.model.preset], manifest.training.sequence_length).to(device.torch)
        self._shared_weights = torch.from_numpy(arena.weights)
        self._shared_ahead = None if arena.ahead is None else torch.from_numpy(arena.ahead)
        self._shared_slots = torch.from_numpy(arena.slots)
        size = arena.weights.size
        self._weights = torch.empty(size, dtype=torch.float32, device=device.torch)
        self._gradient = torch.zeros(size, dtype=torch.float32, device=device.torch)
        self._staging = device.staging(size)
        for place, parameter in zip(parameter_layout(self.model), self.model.parameters(), strict=True):
            parameter.data = self._weights[place.offset : place.stop].view(place.shape)
            parameter.grad = self._gradient[place.offset : place.stop].view(place.shape)

    def load_weights(self, *, ahead: bool = False) -> None:
        """Copy the weights that are now in the shared memory; `ahead`: the predicted ones."""
        shared = self._shared_ahead if ahead else self._shared_weights
        assert shared is not None, "this run predicts no weights"
        if self._staging is None:
            self._weights.copy_(shared)
        else:
            self._staging.copy_(shared)
            self._weights.copy_(self._staging, non_blocking=True)
            self.device.synchronize()

    def work(self, tokens_BT1: npt.NDArray[np.int64]) -> float:
        """Compute the sum of the samples' gradients. Returns the sum of their losses, in nats."""
        self._gradient.zero_()
        with self.device.autocast():
            loss = self.model.loss(self._on_device(tokens_BT1)).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def has_finite_gradient(self) -> bool:
        """Whether the gradient is a number everywhere: one infinity or NaN would spoil everybody's update."""
        return math.isfinite(float(self._gradient.sum()))

    def add_to_slot(self, source: int | None, target: int) -> None:
        """Shared slot `target` = slot `source` + gradient, or just the gradient if `source` is None."""
        assert source != target
        gradient = self._gradient
        if self._staging is not None:
            self._staging.copy_(gradient)
            gradient = self._staging
        if source is None:
            self._shared_slots[target].copy_(gradient)
        else:
            torch.add(self._shared_slots[source], gradient, out=self._shared_slots[target])

    def mean_loss(self, tokens_NT1: npt.NDArray[np.int64], microbatch: int) -> float:
        """Mean loss over samples, in nats per byte, worked `microbatch` at a time without gradients."""
        total = 0.0
        with torch.no_grad(), self.device.autocast():
            for start in range(0, len(tokens_NT1), microbatch):
                losses = self.model.loss(self._on_device(tokens_NT1[start : start + microbatch]))
                total += float(losses.double().sum() if self.device.torch.type != "mps" else losses.sum())
        return total / len(tokens_NT1)

    def _on_device(self, tokens: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(tokens).to(self.device.torch)
