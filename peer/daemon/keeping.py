"""What a peer keeps on disk while it trains: checkpoints, the history of epochs, addresses of others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from peer import events
from peer.daemon.replica import Replica
from peer.errors import CheckpointFailed
from peer.events import Listener
from peer.places import CHECKPOINTS, replace_file
from peer.training import checkpoint
from protocol.errors import RemoteProtocolError
from protocol.multiaddr import peer_at
from protocol.units import Epoch, PeerId

HISTORY_FILE = "history.jsonl"
PEERS_FILE = "peers.json"
PORT_FILE = "port"
MAX_KNOWN_PEERS = 32


class Keeper:
    def __init__(self, state_dir: Path, replica: Replica, listener: Listener) -> None:
        self._dir, self._replica, self._listener = state_dir, replica, listener
        self._saving = asyncio.Lock()
        self._known: dict[PeerId, list[str]] = {}
        self.saved_epoch: Epoch = -1

    async def save_checkpoint(self, term: int) -> bool:
        """Write a checkpoint of the replica as it is now. A failure is told to the owner; training goes on."""
        async with self._saving:
            if self._replica.epoch == self.saved_epoch or not self._replica.is_exact:
                return True
            saved = await self._replica.snapshot(term)
            directory = self._dir / CHECKPOINTS
            try:
                await asyncio.to_thread(checkpoint.save, directory, saved)
            except CheckpointFailed as error:
                self._listener(events.Notice(str(error)))
                return False
            self.saved_epoch = saved.epoch
            self._listener(events.CheckpointSaved(saved.epoch, str(directory)))
            return True

    def record(self, event: events.Event) -> None:
        """Append to the history. A full disk costs the line, not the run."""
        with contextlib.suppress(OSError), (self._dir / HISTORY_FILE).open("a") as history:
            history.write(json.dumps(event.to_json()) + "\n")

    def remember_peers(self, addresses: dict[PeerId, list[str]]) -> None:
        """Keep the addresses of peers, to find the run again after a stop."""
        if addresses != self._known:
            self._known = dict(addresses)
            recent = dict(list(addresses.items())[-MAX_KNOWN_PEERS:])
            with contextlib.suppress(OSError):
                replace_file(self._dir / PEERS_FILE, json.dumps(recent).encode())


def remembered_peers(state_dir: Path) -> list[str]:
    """Addresses that an earlier session kept."""
    try:
        known = json.loads((state_dir / PEERS_FILE).read_bytes())
        addresses = [str(address) for addresses in known.values() for address in addresses]
        return [address for address in addresses if _is_address(address)]
    except (OSError, ValueError, AttributeError, TypeError):
        return []


def _is_address(text: str) -> bool:
    try:
        peer_at(text)
    except RemoteProtocolError:
        return False
    return True


def keep_port(state_dir: Path, addresses: Sequence[str]) -> None:
    """Note the port among a node's addresses, so that invites stay good when the peer comes back."""
    ports = [found[1] for address in addresses if (found := re.search(r"/tcp/(\d+)", address))]
    if ports:
        with contextlib.suppress(OSError):
            replace_file(state_dir / PORT_FILE, ports[0].encode())


def kept_port(state_dir: Path) -> int:
    """The port of the last session, or 0."""
    try:
        port = int((state_dir / PORT_FILE).read_text())
    except (OSError, ValueError):
        return 0
    return port if 0 < port < 65536 else 0
