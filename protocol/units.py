"""Units, as names for plain types. A quantity that is not in its base unit says so in its name."""

from __future__ import annotations

PeerId = str
"""base58 of the libp2p identity, `12D3KooW…`"""

RunId = str
"""hexadecimal SHA-256 of the run's manifest"""

Epoch = int
"""global updates so far; epoch e is being gathered while e updates have been committed"""

UnixSeconds = float

MilliRate = int
"""throughput in samples per 1000 seconds: an integer, since peers must agree on what follows from it"""


def short(peer: PeerId) -> str:
    """A peer's id in sentences for people: its last six characters, since all ids begin alike."""
    return f"…{peer[-6:]}"
