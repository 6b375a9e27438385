from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from peer.daemon.gathering import Owed
from peer.daemon.slow_lane import SlowLane
from peer.swarm.errors import PeerUnreachable
from protocol.plan import SlowMember

PLACE = SlowMember("guest", 1000, 3, 2, ("sponsor",))


@pytest.mark.parametrize(("samples", "visits"), [(0, []), (5, ["sponsor"])])
def test_only_who_owes_samples_visits_a_sponsor(samples: int, visits: list[str]) -> None:
    opened: list[str] = []
    told: list[Any] = []

    async def open_stream(peer: str, _name: str, _timeout: float) -> None:
        opened.append(peer)
        raise PeerUnreachable(peer, "nobody is there")

    owed = Owed()
    owed.add(samples, np.ones(4, np.float32), 7)
    daemon: Any = SimpleNamespace(owed=owed, node=SimpleNamespace(open=open_stream), listener=told.append)
    asyncio.run(SlowLane(daemon)._deposit(PLACE))
    assert opened == visits
    assert len(told) == len(visits)  # a notice to the owner
    assert owed.samples == samples  # none of it is lost
