from __future__ import annotations

import subprocess
import sys

import pytest

from peer.training.model import Transformer
from peer.training.presets import PRESETS, Shape, layout_of, num_parameters

ADVERTISED_MILLIONS = {"nano": 0.1, "micro": 0.8, "mini": 3, "small": 25, "medium": 110, "large": 350}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_have_their_advertised_size(preset):
    assert num_parameters(PRESETS[preset]) == pytest.approx(1e6 * ADVERTISED_MILLIONS[preset], rel=0.35)


def test_number_of_parameters_by_hand():
    # carry 4; two embeddings of 256 x 4; a block: 4x12 + 4x4 + 4x16 + 16x4
    assert num_parameters(Shape(layers=3, width=4, heads=1)) == 4 + 2 * 1024 + 3 * 192


@pytest.mark.parametrize("shape", [PRESETS["nano"], Shape(layers=1, width=8, heads=2)])
def test_layout_is_that_of_the_model(shape):
    layout = layout_of(shape)
    named = [(name, tuple(parameter.shape)) for name, parameter in Transformer(shape, 8).named_parameters()]
    assert [(place.name, place.shape) for place in layout] == named
    assert [place.offset for place in layout] == [0, *(place.stop for place in layout[:-1])]


def test_presets_load_without_torch():
    code = "import sys, peer.training.presets; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
