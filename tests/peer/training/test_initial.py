from __future__ import annotations

import hashlib

import numpy as np

from peer.training import initial
from peer.training.initial import initial_weights
from peer.training.presets import PRESETS, layout_of

LAYOUT = layout_of(PRESETS["nano"])


def part(weights, name):
    (place,) = (place for place in LAYOUT if place.name == name)
    return weights[place.offset : place.stop]


def test_bits_are_those_of_every_other_machine():
    digest = hashlib.sha256(initial_weights(LAYOUT, 0).astype("<f4").tobytes()).hexdigest()
    assert digest == "a892c8f3376c1a25de994acd005ec496eb41533442039c3c3dcf7cd9ec634ca5"


def test_seeds_and_parameters_differ():
    first, second = initial_weights(LAYOUT, 1), initial_weights(LAYOUT, 2)
    assert not np.array_equal(first, second)
    up0, up1 = part(first, "blocks.0.up.weight"), part(first, "blocks.1.up.weight")
    assert not np.array_equal(up0, up1)


def test_largest_seed_is_accepted():
    assert np.isfinite(initial_weights(LAYOUT, 2**53 - 1)).all()


def test_scale_of_each_kind():
    weights = initial_weights(LAYOUT, 3)
    assert abs(part(weights, "embedding.weight").std() - 1) < 0.02
    assert abs(part(weights, "embedding.weight").mean()) < 0.03
    assert abs(part(weights, "blocks.1.query_key_value.weight").std() - 64**-0.5) < 0.003
    for zero in ("head.weight", "blocks.0.attended.weight", "blocks.1.down.weight"):
        assert not part(weights, zero).any()


def test_drawing_in_chunks_changes_nothing(monkeypatch):
    whole = initial_weights(LAYOUT, 4)
    monkeypatch.setattr(initial, "CHUNK", 1000)
    assert np.array_equal(initial_weights(LAYOUT, 4), whole)
