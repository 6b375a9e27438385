"""Where links cannot be emulated, tests that need them say why they are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.heterogeneous.leftovers import Run
from benchmarks.heterogeneous.network import NetworkImpossible, require_network


@pytest.fixture
def run() -> Iterator[Run]:
    """A run of one's own, on a system that can emulate links."""
    try:
        require_network()
    except NetworkImpossible as error:
        pytest.skip(str(error))
    with Run() as run:
        yield run
