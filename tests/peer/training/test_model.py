from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from peer.training.model import Transformer, build, flat_parameters, load_flat, parameter_layout
from peer.training.presets import Shape


@pytest.fixture
def model():
    """Small, with random weights everywhere, so that nothing is hidden by zeros."""
    torch.manual_seed(0)
    made = Transformer(Shape(layers=2, width=16, heads=2), sequence_length=12)
    rng = np.random.default_rng(0)
    load_flat(made, (rng.standard_normal(parameter_layout(made)[-1].stop) / 4).astype(np.float32))
    return made


def tokens(count, length, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (count, length)))


def test_untrained_model_knows_nothing(make_manifest):
    losses = build(make_manifest()).loss(tokens(3, 33))
    assert losses.shape == (3,)
    assert losses.tolist() == pytest.approx([math.log(256)] * 3, abs=1e-6)


def test_building_twice_gives_equal_bits(make_manifest):
    manifest = make_manifest()
    assert np.array_equal(flat_parameters(build(manifest)), flat_parameters(build(manifest)))


def test_loss_is_the_mean_surprise_of_the_bytes_that_follow(model):
    sample = tokens(2, 13)
    logits = model(sample[:, :-1]).double()
    expected = [
        -sum(torch.log_softmax(logits[b, t], -1)[sample[b, t + 1]].item() for t in range(12)) / 12 for b in range(2)
    ]
    assert model.loss(sample).tolist() == pytest.approx(expected, rel=1e-5)


def test_a_byte_sees_only_those_before_it(model):
    first = tokens(1, 12)
    second = first.clone()
    second[0, 7] = (second[0, 7] + 1) % 256
    before, after = model(first), model(second)
    assert torch.allclose(before[0, :7], after[0, :7], atol=1e-5)
    assert not torch.allclose(before[0, 7:], after[0, 7:], atol=1e-3)


def test_samples_of_a_microbatch_do_not_mix(model):
    together = model.loss(tokens(4, 13))
    alone = torch.cat([model.loss(sample[None]) for sample in tokens(4, 13)])
    assert torch.allclose(together, alone, rtol=1e-5)


def test_shorter_text_is_a_prefix(model):
    sample = tokens(1, 12)
    assert torch.allclose(model(sample)[:, :5], model(sample[:, :5]), atol=1e-5)


def test_order_of_earlier_bytes_matters(model):
    sample = tokens(1, 12)
    swapped = sample.clone()
    swapped[0, [1, 4]] = sample[0, [4, 1]]
    assert not torch.allclose(model(sample)[0, -1], model(swapped)[0, -1], atol=1e-3)


def test_flat_vector_goes_round(model):
    flat = flat_parameters(model)
    load_flat(model, flat[::-1].copy())
    assert np.array_equal(flat_parameters(model), flat[::-1])


def test_gradient_agrees_with_differences(model):
    sample = tokens(2, 13)
    model.loss(sample).sum().backward()
    for parameter in model.parameters():
        steepness = parameter.grad.norm()
        step = 0.01 * parameter.grad / steepness
        with torch.no_grad():
            parameter.add_(step)
            above = model.loss(sample).sum().item()
            parameter.sub_(2 * step)
            below = model.loss(sample).sum().item()
            parameter.add_(step)
        assert steepness.item() == pytest.approx((above - below) / 0.02, rel=0.02)
