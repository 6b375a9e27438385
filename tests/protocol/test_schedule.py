import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.manifest import Manifest
from protocol.schedule import learning_rate
from protocol.signing import SigningKey

HOST = SigningKey(bytes(32)).peer_id


def manifest(peak: float = 3e-3, **schedule: Any) -> Manifest:
    return Manifest.model_validate(
        {"run": {"name": "x"}, "host": HOST, "optimizer": {"learning_rate": peak}, "schedule": schedule}
    )


def test_warm_up_is_linear_and_reaches_the_peak() -> None:
    made = manifest(1.0, warmup_epochs=4, total_epochs=100)
    assert [learning_rate(made, epoch) for epoch in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_cosine_falls_to_the_fraction_and_stays() -> None:
    made = manifest(1.0, warmup_epochs=0, total_epochs=100, final_fraction=0.1)
    assert learning_rate(made, 0) == 1.0
    assert learning_rate(made, 50) == pytest.approx(0.55, rel=1e-15)
    assert learning_rate(made, 100) == learning_rate(made, 10**9) == 0.1
    assert learning_rate(made, 99) == pytest.approx(0.1, rel=1e-2)


def test_warm_up_longer_than_the_schedule() -> None:
    made = manifest(1.0, warmup_epochs=10, total_epochs=5, final_fraction=0.5)
    assert learning_rate(made, 9) == 1.0
    assert learning_rate(made, 10) == 0.5


@given(st.integers(0, 1000), st.integers(1, 100_000), st.integers(0, 200_000), st.floats(0, 1), st.floats(1e-6, 1))
def test_agrees_with_the_formula(warmup: int, total: int, epoch: int, fraction: float, peak: float) -> None:
    made = manifest(peak, warmup_epochs=warmup, total_epochs=total, final_fraction=fraction)
    if epoch < warmup:
        expected = peak * (epoch + 1) / warmup
    else:
        passed = min(1.0, (epoch - warmup) / (total - warmup)) if total > warmup else 1.0
        expected = peak * (fraction + (1 - fraction) * (1 + math.cos(math.pi * passed)) / 2)
    assert learning_rate(made, epoch) == pytest.approx(expected, rel=1e-12, abs=1e-15 * peak)


def test_bits_are_those_of_every_machine() -> None:
    """Recorded once; only correctly rounded operations are used, so no system may give others."""
    made = manifest(3e-3, warmup_epochs=10, total_epochs=1000, final_fraction=0.1)
    assert [learning_rate(made, epoch).hex() for epoch in (3, 333, 777, 998)] == [
        "0x1.3a92a30553262p-10",
        "0x1.341fd0645bad8p-9",
        "0x1.473bb406c077dp-11",
        "0x1.3a99ef6d8a280p-12",
    ]
