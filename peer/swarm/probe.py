"""A short measurement of the link between two peers, both ways.

The caller, a newcomer, wants to be measured; the observer measures and keeps what it has seen for its ballots:

    {measure: "up"}      {go: true} or {refused: why} comes back; then the caller sends pieces of random bytes
    {measure: "down"}    the same, but the observer sends pieces
    {measure: "result"}  {up, down} comes back, in bytes per second

Each is a stream of its own, opened by the caller. A piece is answered with its last bytes, which cannot be known before
it is there. So the observer measures both ways by itself, and whoever sends keeps no more on the way than a short queue
takes: more would be dropped by a slow link, and repeating it would take most of the time there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Literal

from peer.swarm.errors import PeerGone, PeerMisbehaves, PeerSilent, PeerUnreachable
from peer.swarm.node import Node
from peer.swarm.stream import Header, Stream
from protocol.units import PeerId

WIRE_NAME = "probe"
PROBE_BYTES = 1024 * 1024  # at most, each way
PROBE_SECONDS = 0.8  # at most, each way, from the first piece on
MIN_PIECE_BYTES = 4 * 1024
MAX_PIECE_BYTES = 32 * 1024
QUEUE_SECONDS = 0.02  # by which answers may be late, while more is sent ahead each time
PROOF_BYTES = 8
OPEN_SECONDS = 5.0
FIRST_SECONDS = 3.0  # for the first piece to come
STAGE_SECONDS = FIRST_SECONDS + 2 * PROBE_SECONDS  # each way, in all
AGAIN_SECONDS = 25.0  # between probes of the same peer
AT_ONCE = 2  # peers that an observer measures
PER_MINUTE = 20  # peers that an observer measures, so that many identities gain little
GIVEN_UP_SECONDS = 10.0  # after which a probe that was not brought to its end does not keep others waiting
MAX_RATE = 1.25e9  # bytes per second
GO: Final[Header] = {"go": True}

Observed = Callable[[PeerId, float, float], None]
"""a peer, and its link as seen from here: bytes per second up and down"""


@dataclass(frozen=True)
class ProbeResult:
    """Bytes per second of the caller's link, as seen by the observer."""

    up: float
    down: float


@dataclass
class _Session:
    began: float
    up: float = 0.0
    down: float = 0.0
    stage: Literal["up", "down", "result", "over"] = "up"
    """what is to be asked for next"""


class _Meter:
    """When bytes came, and how long to go on."""

    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit = limit
        self._arrivals: list[tuple[float, int]] = []

    def note(self, num_bytes: int) -> None:
        now = asyncio.get_running_loop().time()
        if not self._arrivals:
            self._limit.reschedule(now + PROBE_SECONDS)
        self._arrivals.append((now, num_bytes + (self._arrivals[-1][1] if self._arrivals else 0)))

    @property
    def rate(self) -> float:
        """Bytes per second; 0 if nothing came.

        The slope without the first quarter: transfers begin slowly, and links allow short bursts. A straight line
        through all its points, since a busy computer notices many pieces at once.
        """
        total = self._arrivals[-1][1] if self._arrivals else 0
        points = [(when, num_bytes) for when, num_bytes in self._arrivals if 4 * num_bytes >= total]
        if len(points) < 2:
            return total / PROBE_SECONDS
        mean_when = sum(when for when, _ in points) / len(points)
        spread = sum((when - mean_when) ** 2 for when, _ in points)
        slope = sum((when - mean_when) * num_bytes for when, num_bytes in points) / max(spread, 1e-12)
        return min(slope, MAX_RATE)


_Work = Callable[[Stream, _Meter | None], Coroutine[Any, Any, None]]


class Prober:
    """Measures others (`serve`), and has itself measured (`probe`)."""

    def __init__(self, node: Node, observed: Observed, is_free: Callable[[], bool] = lambda: True) -> None:
        """`is_free`: whether this peer's own link is free to measure others, rather than busy with a long transfer."""
        self._node, self._observed, self._is_free = node, observed, is_free
        self._sessions: dict[PeerId, _Session] = {}

    async def serve(self) -> None:
        """Let others be measured, within limits."""
        await self._node.serve(WIRE_NAME, self._answer)

    # As the one who is measured.

    async def probe(self, peer: PeerId) -> ProbeResult:
        """Have `peer` measure our link: in about two seconds, with at most 1 MiB each way.

        Raises `PeerUnreachable` if it cannot be reached or will not do it now, a `StreamFailed` error, or
        `EngineFailed`.
        """
        await self._be_measured(peer, "up", _send)
        await self._be_measured(peer, "down", _take)
        answer, _ = await self._node.call(peer, WIRE_NAME, {"measure": "result"}, timeout=OPEN_SECONDS)
        match answer:
            case {"up": int(up), "down": int(down)} if 0 < up <= MAX_RATE and 0 < down <= MAX_RATE:
                return ProbeResult(up, down)
        raise PeerMisbehaves(peer, "does not tell what it has measured")

    async def _be_measured(self, peer: PeerId, direction: str, work: _Work) -> None:
        stream = await self._node.open(peer, WIRE_NAME, OPEN_SECONDS)
        try:
            await stream.send({"measure": direction}, timeout=OPEN_SECONDS)
            answer, _ = await stream.receive(0, OPEN_SECONDS)
            if answer != GO:
                raise PeerUnreachable(peer, _plain(answer.get("refused")))
            with contextlib.suppress(PeerGone):  # it has seen enough
                await work(stream, None)
                await stream.finish(STAGE_SECONDS)
        finally:
            stream.close()

    # As the observer.

    async def _answer(self, peer: PeerId, stream: Stream) -> None:
        header, _ = await stream.receive(0, OPEN_SECONDS)
        stage = header.get("measure")
        refusal = self._begin(peer) if stage == "up" else ""
        session = self._sessions.get(peer)
        if refusal or session is None or session.stage != stage:
            await stream.send({"refused": refusal or "there is nothing to measure"}, timeout=OPEN_SECONDS)
        elif stage == "up":
            session.stage = "down"
            await stream.send(GO, timeout=OPEN_SECONDS)
            session.up = await _measure(stream, _take)
            stream.close()
        elif stage == "down":
            session.stage = "result"
            await stream.send(GO, timeout=OPEN_SECONDS)
            session.down = await _measure(stream, _send)
            stream.close()
            self._observed(peer, session.up, session.down)
        else:
            session.stage = "over"
            result = {"up": max(1, round(session.up)), "down": max(1, round(session.down))}
            await stream.send(result, timeout=OPEN_SECONDS)

    def _begin(self, peer: PeerId) -> str:
        """Begin a session; or why not."""
        if not self._is_free():
            return "it is fetching the state itself"
        now = time.monotonic()
        for other, session in list(self._sessions.items()):
            if now - session.began >= AGAIN_SECONDS:
                del self._sessions[other]
        if peer in self._sessions:
            return f"it has measured this peer less than {AGAIN_SECONDS:.0f} s ago"
        going_on = sum(s.stage != "over" and now - s.began < GIVEN_UP_SECONDS for s in self._sessions.values())
        if going_on >= AT_ONCE or len(self._sessions) >= PER_MINUTE:
            return "it is measuring others just now"
        self._sessions[peer] = _Session(now)
        return ""


async def _measure(stream: Stream, work: _Work) -> float:
    """Bytes per second of what comes, or of what is proved to have come. Raises `PeerSilent` if nothing does."""
    limit = asyncio.timeout(FIRST_SECONDS)
    meter = _Meter(limit)
    with contextlib.suppress(TimeoutError):
        async with limit:
            await work(stream, meter)
    if not meter.rate:
        raise PeerSilent(stream.peer, f"has sent nothing for {FIRST_SECONDS:.0f} s")
    return meter.rate


async def _send(stream: Stream, meter: _Meter | None) -> None:
    """Send pieces and see to their answers, with more on the way as long as that does not delay them."""
    on_the_way: deque[tuple[float, bytes]] = deque()
    ahead, sent, answered, shortest = 2 * MIN_PIECE_BYTES, 0, 0, math.inf
    while answered < PROBE_BYTES:
        size = min(max(ahead // 4, MIN_PIECE_BYTES), MAX_PIECE_BYTES, PROBE_BYTES - sent)
        if size and sent + size - answered <= ahead:
            piece = secrets.token_bytes(size)
            on_the_way.append((time.monotonic(), piece))
            await stream.send({}, piece, STAGE_SECONDS)
            sent += size
            continue
        answer, _ = await stream.receive(0, STAGE_SECONDS)
        begin, piece = on_the_way.popleft()
        if answer != {"have": piece[-PROOF_BYTES:].hex()}:
            raise PeerMisbehaves(stream.peer, "does not prove that it has received a piece of a probe")
        answered += len(piece)
        if meter is not None:
            meter.note(len(piece))
        seconds = time.monotonic() - begin
        shortest = min(shortest, seconds)
        if seconds < 2 * shortest + QUEUE_SECONDS:
            ahead += len(piece)


async def _take(stream: Stream, meter: _Meter | None) -> None:
    """Receive pieces and answer them."""
    taken = 0
    while taken < PROBE_BYTES:
        _, piece = await stream.receive(MAX_PIECE_BYTES, STAGE_SECONDS)
        if len(piece) < min(MIN_PIECE_BYTES, PROBE_BYTES - taken):
            raise PeerMisbehaves(stream.peer, "sends a piece that does not belong to a probe")
        taken += len(piece)
        if meter is not None:
            meter.note(len(piece))
        await stream.send({"have": piece[-PROOF_BYTES:].hex()}, timeout=STAGE_SECONDS)


def _plain(reason: object) -> str:
    text = reason[:100] if isinstance(reason, str) else ""
    return "".join(character for character in text if character.isprintable()) or "it does not measure now"
