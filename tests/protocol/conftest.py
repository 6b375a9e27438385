"""Peers with fixed keys, and Hypothesis without time limits, since computers are shared."""

import pytest
from hypothesis import settings

from protocol.signing import SigningKey

settings.register_profile("protocol", deadline=None)
settings.load_profile("protocol")


@pytest.fixture(scope="session")
def keys() -> list[SigningKey]:
    """Eight keys, sorted by peer id."""
    return sorted((SigningKey(bytes([n]) * 32) for n in range(8)), key=lambda key: key.peer_id)
