"""What one volunteer chose, and how with that the swarm is entered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peer.daemon.keeping import keep_port, kept_port, remembered_peers
from peer.errors import PeerError
from peer.places import StateDirectory
from peer.swarm.errors import NobodyAnswers, PortInUse
from peer.swarm.node import Node
from protocol.errors import ProtocolError
from protocol.manifest import SignedManifest
from protocol.multiaddr import peer_at
from protocol.signing import SigningKey
from protocol.units import RunId

MANIFEST_SECONDS = 15.0


@dataclass(frozen=True)
class PeerConfig:
    """What one volunteer chose."""

    key: SigningKey
    run: RunId
    signed: SignedManifest | None
    """of the founder; None: it is in the state directory, or the peers of the invite give it"""
    initial_peers: tuple[str, ...]
    state: StateDirectory
    name: str | None
    device: str
    port: int
    bind: str
    data_dir: Path | None
    emulate_throughput: float | None


async def enter_swarm(config: PeerConfig, runtime_dir: Path, may_be_alone: bool) -> Node:
    """Listen where we listened last time, and enter by the invite or by peers of an earlier session.

    Raises `NobodyAnswers`, unless this peer may begin alone.
    """
    kept = kept_port(config.state.path)

    async def start(port: int, initial_peers: Sequence[str]) -> Node:
        return await Node.start(
            config.key,
            runtime_dir=runtime_dir,
            run=config.run,
            port=port,
            host=config.bind,
            initial_peers=initial_peers,
        )

    async def start_at_port(initial_peers: Sequence[str]) -> Node:
        if config.port or not kept:
            return await start(config.port, initial_peers)
        try:
            return await start(kept, initial_peers)
        except PortInUse:
            return await start(0, initial_peers)

    try:
        node = await start_at_port([*config.initial_peers, *remembered_peers(config.state.path)])
    except NobodyAnswers:
        if not may_be_alone:
            raise
        node = await start_at_port(())
    keep_port(config.state.path, await node.addresses())
    return node


async def fetch_manifest(node: Node, config: PeerConfig) -> SignedManifest:
    """The run's manifest, from any peer of the invite. Raises `NobodyAnswers` if none gives a true one."""
    reason = "nobody was asked"
    for address in config.initial_peers:
        try:
            _, data = await node.call(peer_at(address), "manifest", {}, timeout=MANIFEST_SECONDS)
            return SignedManifest.from_bytes(data, config.run)
        except (PeerError, ProtocolError) as error:
            reason = str(error)
    raise NobodyAnswers(f"no peer of the invite gave the run's manifest ({reason}); ask for a new invite")


def far_reaching(addresses: list[str]) -> list[str]:
    """Without those that only lead back to the same computer, if there are others."""
    return [a for a in addresses if "/ip4/127." not in a and "/ip6/::1/" not in a] or addresses
