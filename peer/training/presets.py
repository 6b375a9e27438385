"""Sizes of the builtin model and the layout of its parameters. No torch here: commands read it to print sizes.

All parameters of a model lie in one flat float32 vector of P numbers, in the order of `parameter_layout`; gradients
and optimizer moments have the same layout. Two peers that run different versions of torch agree on it, since it
follows from the shape alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from protocol.manifest import Preset

VOCABULARY: Final = 256  # bytes
EXPANSION = 4  # width of the hidden layer of a block's MLP, in model widths


@dataclass(frozen=True)
class Shape:
    """Size of a decoder-only transformer. `width` is a multiple of `heads`, the quotient is even (RoPE)."""

    layers: int
    width: int
    heads: int


@dataclass(frozen=True)
class Parameter:
    """One named array in the flat vector: elements `offset` up to `stop`, in C order."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        return self.offset + self.size


Layout = tuple[Parameter, ...]

PRESETS: Mapping[Preset, Shape] = {
    "nano": Shape(layers=2, width=64, heads=2),
    "micro": Shape(layers=4, width=144, heads=4),
    "mini": Shape(layers=4, width=256, heads=4),
    "small": Shape(layers=8, width=512, heads=8),
    "medium": Shape(layers=16, width=768, heads=12),
    "large": Shape(layers=28, width=1024, heads=16),
}


def layout_of(shape: Shape) -> Layout:
    """The parameters of a model of this shape, in the order of the model's `named_parameters()`."""
    width, hidden = shape.width, EXPANSION * shape.width
    named: list[tuple[str, tuple[int, ...]]] = [("carry", (width,)), ("embedding.weight", (VOCABULARY, width))]
    for layer in range(shape.layers):
        named += [
            (f"blocks.{layer}.query_key_value.weight", (3 * width, width)),
            (f"blocks.{layer}.attended.weight", (width, width)),
            (f"blocks.{layer}.up.weight", (hidden, width)),
            (f"blocks.{layer}.down.weight", (width, hidden)),
        ]
    named.append(("head.weight", (VOCABULARY, width)))
    layout: list[Parameter] = []
    for name, sizes in named:
        layout.append(Parameter(name, sizes, layout[-1].stop if layout else 0))
    return tuple(layout)


def num_parameters(shape: Shape) -> int:
    return layout_of(shape)[-1].stop
