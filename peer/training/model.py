"""The builtin model: a decoder-only transformer on bytes.

Pre-norm blocks with rotary positions, query and key normalisation, squared-ReLU MLPs, no biases, and norms without
gains (a gain is absorbed by the matrix behind it). Input and output embeddings are separate. Two departures from
the textbook were kept because they learned faster per second of compute on source text: the embedding of the
previous byte is carried over to each byte by a learned factor per channel, so that pairs of bytes are visible from
the first step; and logits are multiplied by a constant, which lets the head move faster than the other matrices.

Shape suffixes: B samples, T tokens, W width, H heads, D width of a head, V vocabulary, P parameters.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn
from torch.nn.utils import skip_init

from peer.training.initial import initial_weights
from peer.training.presets import EXPANSION, PRESETS, VOCABULARY, Layout, Shape, layout_of
from protocol.manifest import Manifest

LOGIT_SCALE = 4.0
ROTARY_BASE = 10_000.0


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, hidden = shape.width, EXPANSION * shape.width
        self.heads = shape.heads
        self.query_key_value = _matrix(width, 3 * width)
        self.attended = _matrix(width, width)
        self.up = _matrix(width, hidden)
        self.down = _matrix(hidden, width)

    def forward(self, x_BTW: Tensor, cosine_TD: Tensor, sine_TD: Tensor) -> Tensor:
        x_BTW = x_BTW + self._attend(_norm(x_BTW), cosine_TD, sine_TD)
        return x_BTW + cast(Tensor, self.down(F.relu(self.up(_norm(x_BTW))).square()))

    def _attend(self, x_BTW: Tensor, cosine_TD: Tensor, sine_TD: Tensor) -> Tensor:
        B, T, W = x_BTW.shape
        split = self.query_key_value(x_BTW).view(B, T, 3, self.heads, W // self.heads)
        query_BHTD, key_BHTD, value_BHTD = split.permute(2, 0, 3, 1, 4)
        y_BHTD = F.scaled_dot_product_attention(
            _rotate(_norm(query_BHTD), cosine_TD, sine_TD).to(value_BHTD.dtype),
            _rotate(_norm(key_BHTD), cosine_TD, sine_TD).to(value_BHTD.dtype),
            value_BHTD,
            is_causal=True,
        )
        return cast(Tensor, self.attended(y_BHTD.transpose(1, 2).reshape(B, T, W)))


class Transformer(nn.Module):
    """Its parameters are not initialised: see `build` and `load_flat`."""

    def __init__(self, shape: Shape, sequence_length: int) -> None:
        super().__init__()
        self.shape, self.sequence_length = shape, sequence_length
        self.carry = nn.Parameter(torch.empty(shape.width))
        self.embedding = _uninitialised(nn.Embedding, VOCABULARY, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.head = _matrix(shape.width, VOCABULARY)
        # Recomputed from the shape, so neither parameters nor part of what is saved.
        cosine_TD, sine_TD = _rotary_tables(sequence_length, shape.width // shape.heads)
        self.register_buffer("cosine_TD", cosine_TD, persistent=False)
        self.register_buffer("sine_TD", sine_TD, persistent=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits (B, T, V) of the byte after each of the given bytes; T is at most `sequence_length`."""
        T = tokens_BT.shape[1]
        cosine_TD, sine_TD = cast(Tensor, self.cosine_TD)[:T], cast(Tensor, self.sine_TD)[:T]
        x_BTW = self.embedding(tokens_BT)
        x_BTW = _norm(x_BTW + self.carry * F.pad(x_BTW, (0, 0, 1, -1)))
        for block in self.blocks:
            x_BTW = block(x_BTW, cosine_TD, sine_TD)
        return cast(Tensor, self.head(_norm(x_BTW))) * LOGIT_SCALE

    def loss(self, tokens_BT1: Tensor) -> Tensor:
        """Mean cross-entropy of each sample (B,), in nats per byte. `tokens_BT1`: int64 (B, T + 1) bytes."""
        B, T = tokens_BT1.shape[0], tokens_BT1.shape[1] - 1
        logits_BTV = self(tokens_BT1[:, :-1]).float()
        targets = tokens_BT1[:, 1:].reshape(-1)
        losses = F.cross_entropy(logits_BTV.view(-1, VOCABULARY), targets, reduction="none")
        return losses.view(B, T).mean(dim=1)


def build(manifest: Manifest) -> Transformer:
    """The run's model with its initial weights, on the CPU."""
    shape = PRESETS[manifest.model.preset]
    model = Transformer(shape, manifest.training.sequence_length)
    load_flat(model, initial_weights(layout_of(shape), manifest.training.seed))
    return model


def parameter_layout(model: Transformer) -> Layout:
    """Where each named parameter lies in the flat vector."""
    return layout_of(model.shape)


def flat_parameters(model: Transformer) -> npt.NDArray[np.float32]:
    """A copy of all parameters as one vector (P,)."""
    return np.concatenate([parameter.detach().cpu().numpy().ravel() for parameter in model.parameters()])


def load_flat(model: Transformer, flat: npt.NDArray[np.float32]) -> None:
    """Set all parameters from a vector (P,); it is copied."""
    assert flat.shape == (parameter_layout(model)[-1].stop,)
    with torch.no_grad():
        for place, parameter in zip(parameter_layout(model), model.parameters(), strict=True):
            part = np.ascontiguousarray(flat[place.offset : place.stop])
            parameter.copy_(torch.from_numpy(part).view(place.shape))


def _matrix(inputs: int, outputs: int) -> nn.Module:
    return _uninitialised(nn.Linear, inputs, outputs, bias=False)


def _uninitialised(kind: type[nn.Module], inputs: int, outputs: int, **options: bool) -> nn.Module:
    """A layer without torch's own random weights, which would take long and change its random state."""
    return cast(nn.Module, skip_init(kind, inputs, outputs, **options))  # type: ignore[no-untyped-call]


def _norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],))


def _rotary_tables(length: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine (T, D/2) of position times frequency."""
    frequencies = ROTARY_BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def _rotate(x_BHTD: Tensor, cosine_TD: Tensor, sine_TD: Tensor) -> Tensor:
    first, second = x_BHTD.chunk(2, dim=-1)
    rotated = first * cosine_TD - second * sine_TD, second * cosine_TD + first * sine_TD
    return torch.cat(rotated, dim=-1)
