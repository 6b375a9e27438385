"""One peer's training in systems other than minga: the run's model, text, pace and optimizer."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from peer.training.data import open_corpus
from peer.training.model import build
from peer.training.pacing import Pace
from protocol.manifest import Manifest
from protocol.order import sample_start


class Trainer:
    """Works microbatches at an emulated pace; gradients are where torch puts them."""

    def __init__(self, manifest: Manifest, peer: int, rate: float) -> None:
        torch.set_num_threads(1)
        self.manifest, self.rate = manifest, rate
        self.model = build(manifest)
        self.pace = Pace(rate)
        self.pace.attach(list(self.model.blocks))
        self.microbatches = 0
        self._name = f"peer {peer}"
        self._corpus = open_corpus(manifest, None, Path())
        self._drawn = 0

    def losses(self, samples: int, model: nn.Module | None = None) -> Tensor:
        """Begin a microbatch and run its forward pass: the loss (B,) of each sample, in nats per byte.

        `model` is called with the tokens, where it is not the plain one. After the backward pass, `finish`.
        """
        self.pace.begin(samples)
        tokens_BT1 = torch.from_numpy(self._corpus.samples(self._starts(samples)))
        losses: Tensor = self.model.loss(tokens_BT1) if model is None else model(tokens_BT1)
        return losses

    def finish(self) -> None:
        """The microbatch's gradient is there: wait until the emulated device has it too."""
        self.pace.finish()
        self.microbatches += 1

    def work(self, samples: int) -> None:
        """A whole microbatch, whose gradient is that of the mean loss."""
        self.losses(samples).mean().backward()  # type: ignore[no-untyped-call]
        self.finish()

    def _starts(self, samples: int) -> list[int]:
        first, self._drawn = self._drawn, self._drawn + samples
        seed, population = self.manifest.training.seed, self._corpus.population
        return [sample_start(seed, 0, self._name, index, population) for index in range(first, self._drawn)]


def adamw(parameters: object, manifest: Manifest) -> torch.optim.AdamW:
    """The run's optimizer, as torch has it."""
    settings = manifest.optimizer
    return torch.optim.AdamW(
        parameters,  # type: ignore[arg-type]
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
    )
