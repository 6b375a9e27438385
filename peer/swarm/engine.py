"""The seam to hivemind 1.1.12: whatever we use of it that it does not publish is used here, and only here.

`tests/peer/swarm/test_seams.py` pins each of these, so that another version fails there and not in a swarm.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hivemind.dht import DHTID
from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import ValidationError
from hivemind.p2p import P2P, P2PDaemonError, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe, write_pbmsg
from hivemind.proto import p2pd_pb2
from hivemind.utils.multiaddr import Multiaddr

from peer.swarm.errors import ClockDiffers, EngineFailed, PeerUnreachable
from peer.swarm.validator import RecordValidator
from protocol.units import PeerId

ATTACH_SECONDS = 10.0
RPC_SECONDS = 3.0  # for one request of the DHT
READER_LIMIT = 256 * 1024  # bytes that a stream reads ahead, twice

RawHandler = Callable[[PeerId, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def attach(control: Path, namespace: str) -> Any:
    """hivemind's `P2P` on a running daemon, its own socket beside the daemon's.

    Its requests (those of the DHT) get `namespace` before their names: peers of other runs, and programs that
    only happen to use hivemind, then do not even speak the same protocol.
    """

    class RunP2P(P2P):  # type: ignore[misc]  # hivemind carries no types
        _UNIX_SOCKET_PREFIX = f"/unix{control.parent}/"

        async def add_protobuf_handler(self, name: str, *args: Any, **kwargs: Any) -> None:
            await super().add_protobuf_handler(namespace + name, *args, **kwargs)

        async def remove_protobuf_handler(self, name: str, **kwargs: Any) -> None:
            await super().remove_protobuf_handler(namespace + name, **kwargs)

        async def call_protobuf_handler(self, peer_id: PeerID, name: str, *args: Any, **kwargs: Any) -> Any:
            return await super().call_protobuf_handler(peer_id, namespace + name, *args, **kwargs)

    with _daemon_at_work():
        async with asyncio.timeout(ATTACH_SECONDS):
            return await RunP2P.replicate(Multiaddr(f"/unix{control}"))


async def add_handler(p2p: Any, name: str, handler: RawHandler) -> None:
    """Call `handler` for each stream that a peer opens under `name`."""

    async def accept(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await handler(info.peer_id.to_base58(), reader, writer)

    with _daemon_at_work():
        await p2p.add_binary_stream_handler(name, accept)


async def own_addresses(p2p: Any) -> list[str]:
    """Where the daemon can be reached as far as it knows, as full addresses."""
    with _daemon_at_work():
        return [str(address) for address in await p2p.get_visible_maddrs(latest=True)]


async def create_dht(p2p: Any, validator: RecordValidator) -> Any:
    """A DHT node that knows nobody yet, keeps no cache, and accepts what `validator` does.

    Two behaviours of hivemind are replaced on the instance. A dictionary with one inadmissible entry is not
    refused as a whole: the entry is dropped, or anybody could hide all records of a key from all readers. And a
    peer has the one DHT id that follows from its peer id, or it could choose its place next to a key.
    """
    dht = await DHTNode.create(
        p2p=p2p,
        node_id=dht_id(p2p.peer_id),
        wait_timeout=RPC_SECONDS,
        cache_locally=False,
        cache_nearest=0,
        cache_on_store=False,
        record_validator=validator,
    )
    protocol = dht.protocol
    update_routing_table = protocol.update_routing_table

    def keep_admissible(key: bytes, dictionary: Any) -> bool:
        with dictionary.freeze():
            for subkey, (value, expiration) in list(dictionary.items()):
                if not protocol._validate_record(key, protocol.serializer.dumps(subkey), value, expiration):
                    del dictionary[subkey]
        return True

    async def update_if_own_id(node_id: Any, peer_id: Any, responded: bool = True) -> None:
        if node_id is None or node_id == dht_id(peer_id):
            await update_routing_table(node_id, peer_id, responded)

    protocol._validate_dictionary = keep_admissible
    protocol.update_routing_table = update_if_own_id
    return dht


def dht_id(peer_id: PeerID) -> DHTID:
    """The place of a peer in the DHT: SHA-1 of its peer id."""
    return DHTID.generate(source=peer_id.to_bytes())


def num_neighbours(dht: Any) -> int:
    """How many peers the DHT node has in its routing table."""
    return len(dht.protocol.routing_table.uid_to_peer_id)


async def meet(dht: Any, peer: PeerId) -> bool:
    """Exchange ids with a connected peer's DHT node; whether it takes part in this run.

    Raises `ClockDiffers` if its clock and ours are more than 3 s apart.
    """
    peer_id = PeerID.from_base58(peer)
    try:
        node_id = await dht.protocol.call_ping(peer_id, validate=True, strict=True)
    except ValidationError as error:
        if "local time" in str(error):
            raise ClockDiffers(
                "this machine's clock is more than 3 s away from the other peers' clocks; "
                "set it (for example: timedatectl set-ntp true) and start again"
            ) from None
        return False
    if node_id != dht_id(peer_id):
        return False
    await dht.protocol.update_routing_table(node_id, peer_id)
    return True


async def look_around(dht: Any) -> None:
    """Fill the routing table with the peers nearest to this one."""
    await dht.find_nearest_nodes([dht.node_id])


async def end_dht(dht: Any) -> None:
    """Stop the node's own work. Its handlers end with the daemon."""
    dht.is_alive = False
    if dht.cache_refresh_task is not None:
        dht.cache_refresh_task.cancel()


async def dial(control: Path, peer: PeerId, addresses: Sequence[str], timeout: float) -> None:
    """Have the daemon connect to a peer at any of `addresses`. Raises `PeerUnreachable` or `EngineFailed`."""
    request = p2pd_pb2.Request(
        type=p2pd_pb2.Request.CONNECT,
        connect=p2pd_pb2.ConnectRequest(
            peer=PeerID.from_base58(peer).to_bytes(),
            addrs=[_without_peer(address) for address in addresses],
            timeout=math.ceil(timeout),
        ),
    )
    _, _, writer = await _ask(control, peer, request, timeout)
    writer.transport.abort()


def _without_peer(address: str) -> bytes:
    transport: bytes = Multiaddr(address.rpartition("/p2p/")[0]).to_bytes()
    return transport


async def open_stream(
    control: Path, peer: PeerId, name: str, timeout: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stream to what `peer` serves under `name`. Raises `PeerUnreachable` or `EngineFailed`.

    hivemind's own call leaves its socket open when it is cancelled, and lets the daemon try for a minute.
    """
    request = p2pd_pb2.Request(
        type=p2pd_pb2.Request.STREAM_OPEN,
        streamOpen=p2pd_pb2.StreamOpenRequest(
            peer=PeerID.from_base58(peer).to_bytes(), proto=[name], timeout=math.ceil(timeout)
        ),
    )
    _, reader, writer = await _ask(control, peer, request, timeout)
    return reader, writer


async def _ask(
    control: Path, peer: PeerId, request: Any, timeout: float
) -> tuple[Any, asyncio.StreamReader, asyncio.StreamWriter]:
    with _daemon_at_work():
        reader, writer = await asyncio.open_unix_connection(str(control), limit=READER_LIMIT)
    response = p2pd_pb2.Response()
    try:
        with _daemon_at_work():
            try:
                async with asyncio.timeout(timeout):
                    await write_pbmsg(writer, request)
                    await read_pbmsg_safe(reader, response)
            except TimeoutError:
                raise PeerUnreachable(peer, f"no answer within {timeout:.0f} s") from None
        if response.type == p2pd_pb2.Response.ERROR:
            raise PeerUnreachable(peer, _plain(response.error.msg))
    except BaseException:
        writer.transport.abort()
        raise
    return response, reader, writer


@contextlib.contextmanager
def _daemon_at_work() -> Iterator[None]:
    """Whatever shows that our own daemon does not answer becomes `EngineFailed`."""
    try:
        yield
    except (OSError, asyncio.IncompleteReadError, P2PDaemonError) as error:
        raise EngineFailed(f"the libp2p daemon of this peer does not answer ({error}); start it again") from None


_KNOWN_REASONS = {
    "protocols not supported": "it does not take part in this run",
    "peer id mismatch": "another peer is at its address",
    "dial to self": "it is this peer itself",
    "connection refused": "nothing listens at its address",
    "no route to host": "there is no way to its address",
    "network is unreachable": "there is no way to its address",
    "i/o timeout": "nothing answers at its address",
    "context deadline exceeded": "nothing answers at its address",
    "failed to negotiate security protocol": "no peer is at its address, but something else",
    "no such host": "its name is not known",
    "failed to find": "its address is not known",
    "not found": "its address is not known",
    "no addresses": "its address is not known",
    "dial backoff": "it did not answer just before",
}
"""What to say for a text in the daemon's errors, most telling first: it lists every address that it tried."""


def _plain(message: str) -> str:
    """The daemon's error for people; it may hold text from the other side, so only printable characters."""
    for known, plain in _KNOWN_REASONS.items():
        if known in message:
            return plain
    return "".join(character for character in message[:120] if character.isprintable())
