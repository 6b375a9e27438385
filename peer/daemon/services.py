"""What a peer answers to others: the manifest, where the run stands, state for newcomers, messages of the round."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from peer.errors import PeerError
from peer.swarm.node import Node
from peer.swarm.stream import Stream
from protocol.manifest import SignedManifest
from protocol.units import PeerId

REQUEST_SECONDS = 10.0
MAX_REQUEST_BODY = 64 * 1024  # bytes

Reply = tuple[dict[str, Any], bytes]
Answerer = Callable[[PeerId, dict[str, Any], bytes], Awaitable[Reply]]


async def serve_calls(node: Node, name: str, answer: Answerer) -> None:
    """Answer each stream opened under `name` once: a framed request, a framed reply (see `Node.call`)."""

    async def handle(peer: PeerId, stream: Stream) -> None:
        with contextlib.suppress(PeerError, OSError, TimeoutError):
            header, body = await stream.receive(MAX_REQUEST_BODY, REQUEST_SECONDS)
            reply, payload = await answer(peer, header, body)
            await stream.send(reply, payload, REQUEST_SECONDS)

    await node.serve(name, handle)


async def serve_manifest(node: Node, signed: SignedManifest) -> None:
    async def answer(_peer: PeerId, _header: dict[str, Any], _body: bytes) -> Reply:
        return {}, signed.to_bytes()

    await serve_calls(node, "manifest", answer)


class StandingBoard:
    """Where this peer stands, for those who follow the run without being in the plan.

    `{"after": e}` is answered when this peer has committed more than `e` epochs, or after a while as things are,
    so that followers learn of a commit at once without asking often.
    """

    LONG_POLL_SECONDS = 6.0  # below REQUEST_SECONDS

    def __init__(self, standing: Callable[[], dict[str, Any]]) -> None:
        self._standing = standing
        self._changed = asyncio.Condition()

    async def start(self, node: Node) -> None:
        await serve_calls(node, "standing", self._answer)

    async def changed(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _answer(self, _peer: PeerId, header: dict[str, Any], _body: bytes) -> Reply:
        after = header.get("after", -1)
        if not isinstance(after, int):
            after = -1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.LONG_POLL_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self._standing()["epoch"] > after)
        return self._standing(), b""
