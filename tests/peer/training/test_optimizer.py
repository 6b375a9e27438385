from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
import torch

from peer.training.optimizer import LANES, AdamW, gradient_norm
from peer.training.presets import PRESETS, Parameter, layout_of
from protocol.schedule import learning_rate

LAYOUT = (
    Parameter("gain", (300,), 0),
    Parameter("first", (40, 50), 300),
    Parameter("second", (7, 11), 2300),
)
SIZE = LAYOUT[-1].stop


def drawn(step, size=SIZE, scale=1.0):
    """Numbers from a bit generator whose stream never changes, in (-scale, scale)."""
    raw = np.random.Philox(key=step).random_raw(size)
    return ((raw >> np.uint64(40)).astype(np.int64) - (1 << 23)).astype(np.float32) * np.float32(scale / (1 << 23))


def make(manifest, layout=LAYOUT):
    size = layout[-1].stop
    weights, m, v = drawn(999, size), np.zeros(size, np.float32), np.zeros(size, np.float32)
    return AdamW(manifest, layout, weights, m, v)


@pytest.fixture
def manifest(make_manifest):
    return make_manifest(
        optimizer={"learning_rate": 0.02, "weight_decay": 0.1, "clip_norm": 1e6},
        schedule={"warmup_epochs": 10, "total_epochs": 60},
    )


def test_equals_torch(manifest):
    ours = make(manifest)
    shaped = [torch.from_numpy(drawn(999)[p.offset : p.stop]).clone().view(p.shape) for p in LAYOUT]
    theirs = torch.optim.AdamW(
        [{"params": shaped[1:], "weight_decay": 0.1}, {"params": shaped[:1], "weight_decay": 0.0}],
        betas=(0.9, 0.95), eps=1e-8,
    )  # fmt: skip
    for epoch in range(50):
        gradient = drawn(epoch, scale=0.1)
        report = ours.step(gradient, epoch)
        assert report.applied and report.learning_rate == learning_rate(manifest, epoch)
        for group in theirs.param_groups:
            group["lr"] = report.learning_rate
        for place, parameter in zip(LAYOUT, shaped, strict=True):
            parameter.grad = torch.from_numpy(gradient[place.offset : place.stop]).view(place.shape)
        theirs.step()
    expected = np.concatenate([parameter.numpy().ravel() for parameter in shaped])
    np.testing.assert_allclose(ours.weights, expected, rtol=1e-6, atol=1e-6)


def test_clipping_scales_the_gradient_to_the_limit(make_manifest):
    sections = {"schedule": {"warmup_epochs": 0}, "optimizer": {"clip_norm": 0.5, "beta1": 0.0, "beta2": 0.0}}
    optimizer = make(make_manifest(**sections))
    gradient = drawn(1)
    report = optimizer.step(gradient, 0)
    assert report.gradient_norm == pytest.approx(np.linalg.norm(gradient.astype(np.float64)), rel=1e-12)
    # With both betas zero, m is the clipped gradient.
    np.testing.assert_allclose(optimizer.m, gradient * (0.5 / report.gradient_norm), rtol=1e-6)
    assert np.array_equal(gradient, drawn(1))


def test_gradient_below_the_limit_is_not_scaled(make_manifest):
    optimizer = make(make_manifest(optimizer={"clip_norm": 1e6, "beta1": 0.0}))
    optimizer.step(drawn(1), 0)
    assert np.array_equal(optimizer.m, drawn(1))


def test_only_matrices_decay(make_manifest):
    optimizer = make(
        make_manifest(schedule={"warmup_epochs": 0}, optimizer={"weight_decay": 0.5, "learning_rate": 0.1})
    )
    optimizer.step(np.zeros(SIZE, np.float32), 0)
    before = drawn(999)
    assert np.array_equal(optimizer.weights[:300], before[:300])
    np.testing.assert_allclose(optimizer.weights[300:], before[300:] * 0.95, rtol=1e-6)


@pytest.mark.parametrize("chunk", [1, 7, 1000, 10**6])
def test_chunks_change_no_bit(manifest, chunk):
    whole, parts = make(manifest), make(manifest)
    for epoch in range(3):
        whole.step(drawn(epoch), epoch)
        parts.step(drawn(epoch), epoch, chunk=chunk)
    for one, other in ((whole.weights, parts.weights), (whole.m, parts.m), (whole.v, parts.v)):
        assert one.tobytes() == other.tobytes()


def test_bits_are_those_of_every_other_machine(make_manifest):
    layout = layout_of(PRESETS["nano"])
    optimizer = make(make_manifest(optimizer={"clip_norm": 1.0}), layout)
    for epoch in range(20):
        optimizer.step(drawn(epoch, layout[-1].stop, scale=0.01), epoch)
    state = b"".join(vector.astype("<f4").tobytes() for vector in (optimizer.weights, optimizer.m, optimizer.v))
    assert hashlib.sha256(state).hexdigest() == "e57cdd7ad0357af32fbb4f11122b84f8c38b440e7860dfb6374f86c8b651f1e4"


def test_going_on_from_a_copy_changes_no_bit(manifest):
    straight = make(manifest)
    for epoch in range(6):
        straight.step(drawn(epoch), epoch)
    first = make(manifest)
    for epoch in range(3):
        first.step(drawn(epoch), epoch)
    second = AdamW(manifest, LAYOUT, first.weights.copy(), first.m.copy(), first.v.copy())
    for epoch in range(3, 6):
        second.step(drawn(epoch), epoch)
    assert second.weights.tobytes() == straight.weights.tobytes()


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_gradient_that_is_not_finite_changes_nothing(manifest, poison):
    optimizer = make(manifest)
    optimizer.step(drawn(0), 0)
    before = optimizer.weights.copy(), optimizer.m.copy(), optimizer.v.copy()
    gradient = drawn(1)
    gradient[1234] = poison
    report = optimizer.step(gradient, 1)
    assert not report.applied and not math.isfinite(report.gradient_norm)
    for vector, copy in zip((optimizer.weights, optimizer.m, optimizer.v), before, strict=True):
        assert np.array_equal(vector, copy)


@pytest.mark.parametrize("clip_norm", [1e-3, 1e6])
@pytest.mark.parametrize("chunk", [7, 1000, 10**6])
@pytest.mark.parametrize("epoch", [0, 3, 10, 70])
def test_a_prediction_is_what_the_step_gives_and_changes_nothing(make_manifest, epoch, chunk, clip_norm):
    optimizer = make(make_manifest(optimizer={"clip_norm": clip_norm}, schedule={"total_epochs": 60}))
    optimizer.step(drawn(1), 0)
    state = optimizer.weights, optimizer.m, optimizer.v
    before = [vector.copy() for vector in state]
    gradient, predicted = drawn(2), np.full(SIZE, np.nan, np.float32)
    in_place = gradient.copy()
    assert optimizer.predict(gradient, epoch, predicted, chunk)
    assert optimizer.predict(in_place, epoch, out=in_place, chunk=chunk)
    assert np.array_equal(gradient, drawn(2))
    for vector, copy in zip(state, before, strict=True):
        assert vector.tobytes() == copy.tobytes()
    optimizer.step(gradient, epoch)
    assert predicted.tobytes() == in_place.tobytes() == optimizer.weights.tobytes() != before[0].tobytes()


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_without_a_finite_gradient_the_weights_are_predicted_to_stay(manifest, poison):
    optimizer = make(manifest)
    gradient = drawn(1)
    gradient[1234] = poison
    assert not optimizer.predict(gradient, 5, out=gradient)
    assert gradient.tobytes() == optimizer.weights.tobytes() == drawn(999).tobytes()


def test_late_epochs_have_no_bias_to_correct(manifest):
    optimizer = make(manifest)
    assert optimizer.step(drawn(0), 9_999_999).applied
    assert np.isfinite(optimizer.weights).all()


@pytest.mark.parametrize("size", [1, 5, LANES, LANES + 1, 3 * LANES - 7])
def test_norm_is_that_of_exact_arithmetic(size):
    vector = drawn(size, size)
    exact = math.sqrt(math.fsum(float(x) ** 2 for x in vector))
    assert gradient_norm(vector) == pytest.approx(exact, rel=1e-14)


def test_norm_of_extremes():
    assert gradient_norm(np.array([3e38, 4e38 / 1.2], np.float32)) == pytest.approx(4.484e38, rel=1e-3)
    assert gradient_norm(np.zeros(10, np.float32)) == 0.0
