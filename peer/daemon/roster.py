"""Who is in the swarm: this peer's own Presence and Progress records, and what the others' say.

Quiet by design: a Presence every 20 s, a Progress at most every 5 s, a look at the others every 5 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from peer.errors import PeerError
from peer.swarm.node import Node
from protocol.records import LIFETIME_SECONDS, Presence, Progress
from protocol.units import Epoch, PeerId, RunId

PRESENCE_SECONDS = 20.0
PROGRESS_SECONDS = 5.0
MAX_ADDRESSES = 8

State = Literal["catching-up", "training", "leaving"]


@dataclass
class Own:
    """What this peer has to tell; the daemon keeps it current."""

    name: str
    devices: str
    state: State = "catching-up"
    epoch: Epoch = 0
    samples: int = 0
    """gathered in this epoch"""
    total_samples: int = 0
    """of this peer, in committed updates"""
    throughput: int = 0
    """samples per 1000 s"""
    heldout_epoch: Epoch = -1
    heldout_microbits: int = 0


class Roster:
    def __init__(self, node: Node, run: RunId, own: Own, on_change: Callable[[], None]) -> None:
        self._node, self._run, self._on_change = node, run, on_change
        self.own = own
        self.presences: dict[PeerId, Presence] = {}
        self.progress: dict[PeerId, Progress] = {}
        self.known_addresses: dict[PeerId, list[str]] = {}
        """of every peer ever seen here, for invites and for coming back"""

    def name_of(self, peer: PeerId) -> str:
        presence = self.presences.get(peer)
        return self.own.name if peer == self._node.peer_id else presence.name if presence else peer[-8:]

    @property
    def heldout(self) -> tuple[Epoch, float] | None:
        """Epoch and held-out bits per byte of the newest measurement in the swarm."""
        found = [(p.heldout_epoch, p.heldout_microbits) for p in self.progress.values()]
        found.append((self.own.heldout_epoch, self.own.heldout_microbits))
        epoch, microbits = max(found)
        return None if epoch < 0 else (epoch, microbits / 1e6)

    async def keep_current(self) -> None:
        """Publish and look, until cancelled."""
        next_presence = 0.0
        while True:
            now = time.monotonic()
            with contextlib.suppress(PeerError, OSError):
                if now >= next_presence:
                    next_presence = now + PRESENCE_SECONDS
                    await self.publish_presence()
                await self.publish_progress()
                await self.look()
            await asyncio.sleep(PROGRESS_SECONDS)

    async def look(self) -> None:
        """Read the others' records; peers whose records have expired drop out."""
        presences = await self._node.fetch("presence")
        progress = await self._node.fetch("progress")
        self.presences = {r.peer: r for r in presences if isinstance(r, Presence)}
        self.progress = {r.peer: r for r in progress if isinstance(r, Progress)}
        for peer, presence in self.presences.items():
            if peer != self._node.peer_id and presence.addresses:
                self.known_addresses[peer] = presence.addresses
        self._on_change()

    async def publish_presence(self) -> None:
        addresses = (await self._node.addresses())[:MAX_ADDRESSES]
        await self._node.publish(
            Presence(
                run=self._run,
                peer=self._node.peer_id,
                expires=expiry("presence"),
                name=self.own.name,
                addresses=addresses,
                devices=self.own.devices,
                state=self.own.state,
            )
        )

    async def publish_progress(self) -> None:
        own = self.own
        await self._node.publish(
            Progress(
                run=self._run,
                peer=self._node.peer_id,
                expires=expiry("progress"),
                epoch=own.epoch,
                samples=own.samples,
                total_samples=own.total_samples,
                throughput=own.throughput,
                heldout_epoch=own.heldout_epoch,
                heldout_microbits=own.heldout_microbits,
            )
        )


def expiry(kind: Literal["presence", "progress", "ballot", "plan-vote", "state-offer"]) -> int:
    """Unix milliseconds until which a record of this kind, signed now, may live."""
    return int((time.time() + LIFETIME_SECONDS[kind]) * 1000)
