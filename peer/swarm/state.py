"""The transfer of state: a peer serves its snapshots, a newcomer collects one from several donors.

One stream a transfer. The fetcher asks `{kind, epoch}` (epoch null: the newest); the donor answers with
`{epoch, size, header, root}` and the hashes of all chunks as body, or with `{none: reason}`. Then each
`{chunk: n}` is answered by the same header and the chunk. A transfer keeps the snapshot that it began with.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from peer.swarm.errors import PeerMisbehaves, PeerUnreachable, StateUnavailable, StreamFailed, short
from peer.swarm.node import Node
from peer.swarm.snapshot import CHUNK_SIZE, Hashes, Snapshot, chunk_range, num_chunks, root_of
from peer.swarm.spool import Spool
from peer.swarm.stream import Header, Stream
from protocol.encoding import DIGEST_SIZE
from protocol.units import Epoch, PeerId

__all__ = ["FetchedState", "Snapshot", "StateServer", "fetch_state"]

WIRE_NAME: Final = "state"
MAX_TRANSFERS: Final = 4  # that a donor serves at once
IDLE_SECONDS: Final = 20.0  # in which the other side asks nothing, sends nothing, or does not read
SLOWEST_RATE: Final = 16 * 1024  # bytes per second; a transfer that would take longer is ended
BUSY: Final = "it serves others already"

OFFER_SECONDS: Final = 30.0  # a donor may have to copy and hash the state first
MAX_OFFERS: Final = 8  # asked for at once
STRAGGLER_SECONDS: Final = 1.0  # after the first offer, or as long again as that took
MAX_DONORS: Final = 3  # drawn from at once
CHUNKS_AHEAD: Final = 2  # asked of a donor before the first has come, so that its link never rests
PAUSE_SECONDS: Final = 0.5  # between passes over the donors
QUIET_SECONDS: Final = 5.0  # without any gain before giving up,
BUSY_SECONDS: Final = 120.0  # or so long if a donor was merely busy

Provide = Callable[[str, Epoch | None], Awaitable[Snapshot | None]]
"""The snapshot of a kind ("state", "gradient") at an epoch, None meaning the newest; None if there is none."""


class StateServer:
    """Serves what `provide` gives, to at most `MAX_TRANSFERS` peers at once."""

    def __init__(self, node: Node, provide: Provide) -> None:
        self._node, self._provide = node, provide
        self._num_transfers = 0

    async def start(self) -> None:
        await self._node.serve(WIRE_NAME, self._serve)

    async def _serve(self, _peer: PeerId, stream: Stream) -> None:
        request, _ = await stream.receive(0, IDLE_SECONDS)
        if self._num_transfers >= MAX_TRANSFERS:
            await stream.send({"none": BUSY}, timeout=IDLE_SECONDS)
            return
        self._num_transfers += 1
        try:
            await self._transfer(stream, request)
        finally:
            self._num_transfers -= 1

    async def _transfer(self, stream: Stream, request: Header) -> None:
        kind, epoch = request.get("kind"), request.get("epoch")
        if not isinstance(kind, str) or not (epoch is None or type(epoch) is int):
            raise PeerMisbehaves(stream.peer, "asks for a state in a way that is not understood")
        snapshot = await self._provide(kind, epoch)
        if snapshot is None:
            await stream.send({"none": "it does not have it"}, timeout=IDLE_SECONDS)
            return
        root = await asyncio.to_thread(lambda: snapshot.root)
        size = len(snapshot.view)
        offer: Header = {"epoch": snapshot.epoch, "header": snapshot.header, "root": root, "size": size}
        try:
            async with asyncio.timeout(IDLE_SECONDS + size / SLOWEST_RATE):
                await stream.send(offer, snapshot.hashes, IDLE_SECONDS)
                await self._send_chunks(stream, snapshot, size)
        except TimeoutError:
            return

    async def _send_chunks(self, stream: Stream, snapshot: Snapshot, size: int) -> None:
        """Until the fetcher closes the stream, which ends this with `PeerGone`."""
        while True:
            request, _ = await stream.receive(0, IDLE_SECONDS)
            number = request.get("chunk")
            if type(number) is not int or not 0 <= number < num_chunks(size):
                raise PeerMisbehaves(stream.peer, "asks for a chunk that there is not")
            start, stop = chunk_range(number, size)
            await stream.send({"chunk": number}, snapshot.view[start:stop], IDLE_SECONDS)


OnProgress = Callable[[int, int], None]
"""Called with the bytes that are here, and all bytes."""


@dataclass(frozen=True)
class FetchedState:
    epoch: Epoch
    header: dict[str, Any]
    payload: NDArray[np.uint8]
    """read-only; mapped from a file that has no name any more"""
    root: str


async def fetch_state(
    node: Node,
    donors: Sequence[PeerId],
    kind: str,
    epoch: Epoch | None,
    spool: Path,
    on_progress: OnProgress,
    *,
    expected_size: int,
    header: dict[str, Any] | None = None,
) -> FetchedState:
    """Fetch a snapshot of `expected_size` bytes, and of this header if one is given, from those `donors` that offer it.

    What has come is kept in the file `spool`, also when this fails or is cancelled: the next attempt goes on from
    there. Donors that end or fall silent are replaced by others; one that gives what its own hashes contradict is
    not asked again. Raises `StateUnavailable` or `SpoolFailed`.
    """
    return await _Fetch(node, donors, kind, epoch, expected_size, header, spool, on_progress).run()


@dataclass(frozen=True, eq=False)
class _Offer:
    stream: Stream
    epoch: Epoch
    header: dict[str, Any]
    hashes: Hashes
    root: str


class _Fetch:
    def __init__(
        self,
        node: Node,
        donors: Sequence[PeerId],
        kind: str,
        epoch: Epoch | None,
        size: int,
        header: dict[str, Any] | None,
        path: Path,
        on_progress: OnProgress,
    ) -> None:
        self._node, self._kind, self._epoch, self._size, self._path = node, kind, epoch, size, path
        self._header, self._on_progress = header, on_progress
        self._donors = [peer for peer in dict.fromkeys(donors) if peer != node.peer_id]
        self._useless: set[PeerId] = set()
        """not to be asked again"""
        self._reasons: dict[PeerId, str] = {}
        self._gained_at = time.monotonic()

    async def run(self) -> FetchedState:
        while True:
            candidates = [peer for peer in self._donors if peer not in self._useless][:MAX_OFFERS]
            asking = [asyncio.create_task(self._ask(peer)) for peer in candidates]
            try:
                offers = await _in_time(asking)
                chosen = _most_offered(offers)[:MAX_DONORS]
                for offer in offers:
                    if offer not in chosen:
                        offer.stream.close()  # others may need the donor
                if chosen and (state := await self._collect(chosen)) is not None:
                    return state
            finally:
                for task in asking:
                    task.cancel()
                for made in await asyncio.gather(*asking, return_exceptions=True):
                    if isinstance(made, _Offer):
                        made.stream.close()
            self._give_up_or_go_on(candidates)
            # Another time it may be others' turn.
            self._donors = self._donors[len(candidates) :] + self._donors[: len(candidates)]
            await asyncio.sleep(PAUSE_SECONDS)

    def _give_up_or_go_on(self, asked: Sequence[PeerId]) -> None:
        patience = BUSY_SECONDS if BUSY in self._reasons.values() else QUIET_SECONDS
        if self._useless.issuperset(self._donors) or time.monotonic() - self._gained_at > patience:
            told = "; ".join(f"{short(peer)}: {self._reasons.get(peer, 'no answer')}" for peer in asked[:4])
            raise StateUnavailable(f"no peer gives the {self._kind} ({told or 'there is no other'}); try again")

    async def _ask(self, donor: PeerId) -> _Offer | None:
        """What a donor offers, with the stream on which it does; None, and the reason noted, if nothing."""
        stream = None
        try:
            stream = await self._node.open(donor, WIRE_NAME, OFFER_SECONDS)
            await stream.send({"kind": self._kind, "epoch": self._epoch}, timeout=IDLE_SECONDS)
            max_hashes = num_chunks(self._size) * DIGEST_SIZE
            return self._read_offer(stream, *await stream.receive(max_hashes, OFFER_SECONDS))
        except BaseException as error:
            if stream is not None:
                stream.close()
            if not isinstance(error, PeerUnreachable | StreamFailed):
                raise
            self._note(donor, error)
            return None

    def _read_offer(self, stream: Stream, offer: Header, hashes: Hashes) -> _Offer:
        match offer:
            case {"none": str(reason)}:
                if reason != BUSY:
                    self._useless.add(stream.peer)
                raise StreamFailed(stream.peer, reason if reason == BUSY else "does not have it")
            case {"epoch": int(epoch), "header": dict(header), "root": str(root), "size": int(size)}:
                if size != self._size:
                    raise PeerMisbehaves(stream.peer, f"offers {size} bytes instead of {self._size}")
                if self._header is not None and header != self._header:
                    raise PeerMisbehaves(stream.peer, "offers another one than it was asked for")
                wanted = self._epoch is None or epoch == self._epoch
                if wanted and root == root_of(epoch, header, size, hashes):
                    return _Offer(stream, epoch, header, hashes, root)
        raise PeerMisbehaves(stream.peer, "makes an offer that contradicts itself")

    def _note(self, donor: PeerId, error: PeerUnreachable | StreamFailed) -> None:
        self._reasons[donor] = str(error).removeprefix(f"peer {short(donor)} ")
        if isinstance(error, PeerMisbehaves):
            self._useless.add(donor)

    async def _collect(self, offers: Sequence[_Offer]) -> FetchedState | None:
        """Draw what is missing from all of `offers`, which are the same; None if some of it is still missing."""
        first = offers[0]
        with await asyncio.to_thread(Spool, self._path, self._size, first.hashes) as spool:
            todo = deque(sorted(spool.missing))
            self._on_progress(self._size - spool.num_missing_bytes, self._size)
            try:
                async with asyncio.TaskGroup() as group:
                    for offer in offers:
                        group.create_task(self._draw(offer, spool, todo))
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from None
            if spool.missing:
                return None
            return FetchedState(first.epoch, first.header, spool.take(), first.root)

    async def _draw(self, offer: _Offer, spool: Spool, todo: deque[int]) -> None:
        asked: deque[int] = deque()
        try:
            while todo or asked:
                while todo and len(asked) < CHUNKS_AHEAD:
                    asked.append(todo.popleft())
                    await offer.stream.send({"chunk": asked[-1]}, timeout=IDLE_SECONDS)
                header, data = await offer.stream.receive(CHUNK_SIZE, IDLE_SECONDS)
                right = header == {"chunk": asked[0]} and await asyncio.to_thread(spool.add, asked[0], data)
                if not right:
                    raise PeerMisbehaves(offer.stream.peer, "sends a chunk that its own hash contradicts")
                asked.popleft()
                self._gained_at = time.monotonic()
                self._on_progress(self._size - spool.num_missing_bytes, self._size)
        except StreamFailed as error:
            self._note(error.peer, error)
        finally:
            todo.extendleft(asked)


async def _in_time(asking: Sequence[asyncio.Task[_Offer | None]]) -> list[_Offer]:
    """What was offered until some time after the first offer: nobody shall wait for a donor that hangs."""
    loop = asyncio.get_running_loop()
    began, pending = loop.time(), set(asking)
    patience: float | None = None
    offers: list[_Offer] = []
    while pending:
        done, pending = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            break
        offers += [offer for task in done if (offer := task.result()) is not None]
        if offers and patience is None:
            patience = max(STRAGGLER_SECONDS, loop.time() - began)  # to copy and hash a state takes all about as long
    return offers


def _most_offered(offers: Sequence[_Offer]) -> list[_Offer]:
    """Those that offer what most do; among equals, the later epoch. Empty if there are none."""
    count = Counter((offer.epoch, offer.root) for offer in offers)
    best = max(count, key=lambda found: (count[found], found), default=None)
    return [offer for offer in offers if (offer.epoch, offer.root) == best]
