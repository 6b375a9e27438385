"""This peer in the swarm: who it is, whom it can talk to, what it has published."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from peer.swarm import engine
from peer.swarm.errors import EngineFailed, NobodyAnswers, PeerUnreachable, SwarmError
from peer.swarm.joining import group_by_peer, join, preferred
from peer.swarm.p2pd import P2pd
from peer.swarm.stream import DEFAULT_TIMEOUT, Body, Header, Stream
from peer.swarm.validator import RecordValidator, expiration, subkey
from protocol import PROTOCOL_VERSION
from protocol.errors import RemoteProtocolError
from protocol.records import Kind, Presence, Record, record_key, sign_record
from protocol.signing import SigningKey
from protocol.units import PeerId, RunId

MAX_ANSWER_SIZE = 1024 * 1024  # bytes, of the body that answers a call
MAX_STREAMS_OF_A_PEER = 32  # open at once, towards us
REJOIN_SECONDS = 15.0  # between attempts to come back, while this peer knows nobody
MAX_KNOWN_PEERS = 64

Handler = Callable[[PeerId, Stream], Awaitable[None]]
logger = logging.getLogger(__name__)


class Node:
    """One peer's presence in one run. All methods belong to the event loop that started it."""

    def __init__(self, key: SigningKey, run: RunId, daemon: P2pd, p2p: Any, dht: Any) -> None:
        self.peer_id: PeerId = key.peer_id
        self.run = run
        self.died: asyncio.Future[str] = daemon.died
        """done, with a sentence, when the libp2p daemon has ended (also by `close`)"""
        self._key, self._daemon, self._p2p, self._dht = key, daemon, p2p, dht
        self._validator = dht.protocol.record_validator
        self._known: dict[PeerId, list[str]] = {}
        self._inbound: Counter[PeerId] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._searches: set[asyncio.Task[Any]] = set()

    @classmethod
    async def start(
        cls,
        key: SigningKey,
        *,
        runtime_dir: Path,
        run: RunId,
        port: int = 0,
        host: str = "0.0.0.0",  # noqa: S104 - a peer is there to be reached
        initial_peers: Sequence[str] = (),
    ) -> Node:
        """Start a daemon in `runtime_dir` (a short path) and join the swarm of `run` at any of `initial_peers`.

        Without initial peers this is the first peer of the run. Raises `PortInUse`, `NobodyAnswers`,
        `ClockDiffers` or `EngineFailed`; nothing is left behind then.
        """
        known = group_by_peer(initial_peers)
        if initial_peers and set(known) <= {key.peer_id}:
            raise NobodyAnswers("the given addresses lead to this peer itself; ask another peer for an invite")
        known.pop(key.peer_id, None)
        daemon = await P2pd.launch(key, runtime_dir=runtime_dir, host=host, port=port)
        p2p = None
        try:
            p2p = await engine.attach(daemon.control, _wire_name(run, ""))
            node = cls(key, run, daemon, p2p, await engine.create_dht(p2p, RecordValidator(run)))
            if known:
                await join(node._dht, daemon.control, known)
                node._known = known
        except BaseException:
            await _end(p2p, daemon)
            raise
        task = asyncio.create_task(node._stay_joined())
        node._tasks.add(task)
        return node

    async def addresses(self) -> list[str]:
        """Full addresses, ending with `/p2p/` and this peer's id; those that reach farthest come first."""
        return preferred(await engine.own_addresses(self._p2p))

    @property
    def num_neighbours(self) -> int:
        """How many peers of the run this one knows well enough to ask."""
        return engine.num_neighbours(self._dht)

    async def serve(self, name: str, handler: Handler) -> None:
        """Call `handler` for each stream that a peer opens under `name`; then finish and close the stream.

        Errors of the swarm and of the protocol end the stream and are no news; others are logged.
        """

        async def accept(peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            stream = Stream(peer, reader, writer)
            self._tasks.add(task)
            self._inbound[peer] += 1
            try:
                if self._inbound[peer] <= MAX_STREAMS_OF_A_PEER:
                    await handler(peer, stream)
                    await stream.finish()
            except asyncio.CancelledError:
                pass  # by `close`; Python 3.11 complains about stream handlers that end as cancelled
            except (SwarmError, RemoteProtocolError) as error:
                logger.debug("a stream for %s failed: %s", name, error)
            except Exception:
                logger.exception("serving %s failed", name)
            finally:
                stream.close()
                self._tasks.discard(task)
                self._inbound[peer] -= 1
                if not self._inbound[peer]:
                    del self._inbound[peer]

        await engine.add_handler(self._p2p, _wire_name(self.run, name), accept)

    async def open(self, peer: PeerId, name: str, timeout: float = DEFAULT_TIMEOUT) -> Stream:
        """A stream to what `peer` serves under `name`; the caller closes it.

        Raises `PeerUnreachable`, or `EngineFailed` if it is our own daemon that does not work.
        """
        if self.died.done():
            raise EngineFailed(f"{self.died.result()}; start the peer again")
        reader, writer = await engine.open_stream(self._daemon.control, peer, _wire_name(self.run, name), timeout)
        return Stream(peer, reader, writer)

    async def call(
        self, peer: PeerId, name: str, header: Header, body: Body = b"", timeout: float = DEFAULT_TIMEOUT
    ) -> tuple[Header, bytes]:
        """Send one frame and receive one, of at most `MAX_ANSWER_SIZE` bytes, all within `timeout` seconds.

        Raises `PeerUnreachable`, one of the `StreamFailed` errors, or `EngineFailed`.
        """
        try:
            async with asyncio.timeout(timeout):
                stream = await self.open(peer, name, timeout)
                try:
                    await stream.send(header, body, timeout)
                    return await stream.receive(MAX_ANSWER_SIZE, timeout)
                finally:
                    stream.close()
        except TimeoutError:
            raise PeerUnreachable(peer, f"no answer within {timeout:.0f} s") from None

    async def publish(self, body: Record) -> bool:
        """Sign a record of this peer and store it where it belongs; whether a peer nearest to it took it.

        False also if a record of the same kind that expires later is there. Raises `LocalProtocolError` for a
        record that is too large or not this peer's.
        """
        data = sign_record(body, self._key)
        key = record_key(self.run, body.kind, getattr(body, "term", None))
        storing = self._dht.store(key, data, expiration(body), subkey=subkey(body.peer))
        return bool(await self._undisturbed(storing))

    async def fetch(self, kind: Kind, term: int | None = None) -> list[Record]:
        """The newest admissible record of each peer, by peer id. Takes a few seconds if peers have just died."""
        found = await self._undisturbed(self._dht.get(record_key(self.run, kind, term), latest=True))
        entries = found.value if found is not None and isinstance(found.value, dict) else {}
        records = [self._admitted(name, data) for name, (data, _) in entries.items()]
        admitted = sorted((record for record in records if record is not None), key=lambda r: r.peer)
        self._remember(admitted)
        return admitted

    def _admitted(self, name: Any, data: Any) -> Record | None:
        record: Record | None = self._validator.admit(data, time.time()) if isinstance(data, bytes) else None
        return record if record is not None and subkey(record.peer) == name else None

    def _remember(self, records: Sequence[Record]) -> None:
        for record in records:
            if isinstance(record, Presence) and record.addresses and record.peer != self.peer_id:
                self._known.pop(record.peer, None)
                self._known[record.peer] = list(record.addresses)
        for peer in list(self._known)[:-MAX_KNOWN_PEERS]:
            del self._known[peer]

    async def _undisturbed(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of a DHT operation, which ends by itself: cancelled inside, hivemind leaves pending tasks."""
        task = asyncio.create_task(work)
        self._searches.add(task)
        task.add_done_callback(self._searches.discard)
        return await asyncio.shield(task)

    async def _stay_joined(self) -> None:
        """Know more peers than those joined at, and come back by ourselves after the network was away.

        The DHT forgets peers that do not answer, and never looks for the first ones again; the libp2p daemon forgets
        the addresses of peers that it has lost.
        """
        await self._undisturbed(engine.look_around(self._dht))
        while True:
            await asyncio.sleep(REJOIN_SECONDS)
            with contextlib.suppress(SwarmError, OSError):
                connected = {str(peer.peer_id) for peer in await self._p2p.list_peers()}
                is_alone = not self.num_neighbours
                lost = {peer: there for peer, there in self._known.items() if is_alone or peer not in connected}
                if lost:
                    await join(self._dht, self._daemon.control, lost)
                    await self._undisturbed(engine.look_around(self._dht))

    async def close(self) -> None:
        """Leave at once: end the handlers, the daemon and its sockets. May be called again."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await engine.end_dht(self._dht)
        await _end(self._p2p, self._daemon)


def _wire_name(run: RunId, name: str) -> str:
    return f"/minga/{PROTOCOL_VERSION}/{run[:16]}/{name}"


async def _end(p2p: Any, daemon: P2pd) -> None:
    if p2p is not None:
        await p2p.shutdown()
    await daemon.close()
