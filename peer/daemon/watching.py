"""What a peer does beside all else while it is not in step: it follows the epochs and plans of those who are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from peer.daemon.standings import choose_goal
from protocol.units import PeerId

if TYPE_CHECKING:
    from peer.daemon.lifecycle import Daemon

RETRY_SECONDS = 1.0


async def watch_swarm(daemon: Daemon, asked: Callable[[], Sequence[PeerId]], on_plan: Callable[[], object]) -> None:
    """Cast ballots when they are due, and go by newer plans, until cancelled. Asks peers of the step lane."""
    known = -1
    while True:
        standings = await daemon.catchup.standings(asked(), after=known)
        if not standings:
            await asyncio.sleep(RETRY_SECONDS)
            continue
        # Those whom we ask may all have left the step lane by the plan that they tell us of.
        newest = choose_goal(standings) or max(standings, key=lambda s: (s.plan.term, s.epoch, s.peer))
        if newest.epoch > known:
            known = newest.epoch
            daemon.own.epoch, daemon.own.throughput = known, daemon.throughput()
            daemon.council.begin(known, daemon.ballot, newest.absent)
        if newest.plan.term > daemon.council.plan.term:
            daemon.council.adopt(newest.plan, "the plan that the swarm goes by")
            daemon.membership.announce()
            on_plan()
