"""Which data a sample is made of: a pure function of who trains it, when, and the run's seed.

Nobody hands out data. Each peer draws its own samples, independent of all others, with replacement; anybody
can recompute what a peer should have read.
"""

from __future__ import annotations

import struct

from protocol.encoding import digest
from protocol.errors import LocalProtocolError
from protocol.units import Epoch, PeerId

ORDER_DOMAIN = "order"


def sample_start(seed: int, epoch: Epoch, peer: PeerId, index: int, population: int) -> int:
    """Where the sample `index` of `peer` in `epoch` starts: an integer in [0, population), uniform.

    The SHA-256 digest of the arguments is reduced modulo `population`; since it has 256 bits, the bias is
    below population / 2^256. Raises `LocalProtocolError` if `population` is not positive.
    """
    if population < 1:
        raise LocalProtocolError("there is no data to draw a sample from")
    drawn = digest(ORDER_DOMAIN, struct.pack(">QQQ", seed, epoch, index) + peer.encode())
    return int.from_bytes(drawn, "big") % population
