"""Framed messages over one stream to one peer, with a bound on every length and a limit on every wait.

A frame is 4 bytes of header length, 8 bytes of body length (both big-endian), the header as canonical JSON (an
object), the body as it is. Lengths are checked before anything they announce is read.

A time limit is a limit on silence: at least `READ_STEP` bytes (or the rest, if less) must come, or `WRITE_STEP`
be taken, within every `timeout` seconds. So a slow link is no fault, a peer that stops is one.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from peer.swarm.errors import PeerGone, PeerMisbehaves, PeerSilent
from protocol.encoding import canonical_bytes, decode_canonical
from protocol.errors import RemoteProtocolError
from protocol.units import PeerId

MAX_HEADER_SIZE: Final = 64 * 1024  # bytes
READ_STEP: Final = 16 * 1024  # bytes
WRITE_STEP: Final = 64 * 1024  # bytes
DEFAULT_TIMEOUT: Final = 10.0  # seconds

Header = dict[str, Any]
Body = bytes | bytearray | memoryview


class Stream:
    """One end of a stream. One task may send while another receives; after a failure it is only to be closed."""

    def __init__(self, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.peer = peer
        """who is at the other end, as proved by its key when the connection was made"""
        self.bytes_sent = 0
        self.bytes_received = 0
        self._reader = reader
        self._writer = writer
        # Nothing stays in this process when `send` returns, so that closing never loses anything.
        writer.transport.set_write_buffer_limits(high=0)

    async def send(self, header: Header, body: Body = b"", timeout: float = DEFAULT_TIMEOUT) -> None:
        """Send one frame; returns when the libp2p daemon has taken all of it.

        Raises `PeerGone` if the stream is closed, `PeerSilent` if the other side does not read.
        """
        text = canonical_bytes(header)
        if len(text) > MAX_HEADER_SIZE:
            raise ValueError(f"a header of {len(text)} bytes is over the {MAX_HEADER_SIZE} allowed")
        view = memoryview(body).cast("B")
        lengths = len(text).to_bytes(4, "big") + len(view).to_bytes(8, "big")
        await self._write(lengths + text, timeout)
        for start in range(0, len(view), WRITE_STEP):
            await self._write(view[start : start + WRITE_STEP], timeout)

    async def receive(self, max_body: int = 0, timeout: float = DEFAULT_TIMEOUT) -> tuple[Header, bytes]:
        """The next frame, whose body has at most `max_body` bytes.

        Raises `PeerGone` if the stream ends, `PeerSilent` if too little comes, `PeerMisbehaves` if what comes is
        no frame or too large.
        """
        lengths = await self._read(12, timeout)
        header_size, body_size = int.from_bytes(lengths[:4], "big"), int.from_bytes(lengths[4:], "big")
        if header_size > MAX_HEADER_SIZE or body_size > max_body:
            raise PeerMisbehaves(
                self.peer,
                f"announces a message of {header_size} + {body_size} bytes, "
                f"more than the {MAX_HEADER_SIZE} + {max_body} allowed",
            )
        try:
            header = decode_canonical(await self._read(header_size, timeout), MAX_HEADER_SIZE)
        except RemoteProtocolError as error:
            raise PeerMisbehaves(self.peer, f"sends a header that is {error}") from None
        if not isinstance(header, dict):
            raise PeerMisbehaves(self.peer, "sends a header that is no object")
        return header, await self._read(body_size, timeout)

    async def finish(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        """After the last `send`: wait, at most `timeout` seconds, until the other side has closed the stream.

        Whoever sends last closes last. The libp2p daemon resets a stream when its socket is closed, and with
        QUIC what is still on its way is then lost.
        """
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(timeout):
                while await self._reader.read(READ_STEP):
                    pass

    def close(self) -> None:
        """Close both directions now; what the other side has not received yet may be lost (see `finish`)."""
        self._writer.transport.abort()

    async def _write(self, data: Body, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                self._writer.write(data)
                await self._writer.drain()
        except TimeoutError:
            raise PeerSilent(self.peer, f"has not read anything for {timeout:.1f} s") from None
        except (OSError, RuntimeError) as error:
            raise PeerGone(self.peer, f"has closed the connection ({error})") from None
        self.bytes_sent += len(data)

    async def _read(self, size: int, timeout: float) -> bytes:
        pieces: list[bytes] = []
        left = size
        while left:
            enough = left - min(left, READ_STEP)
            try:
                async with asyncio.timeout(timeout):
                    while left > enough:
                        pieces.append(await self._reader.read(left))  # all that is there, without waiting for more
                        if not pieces[-1]:
                            raise PeerGone(self.peer, "has closed the connection")
                        left -= len(pieces[-1])
            except TimeoutError:
                raise PeerSilent(self.peer, f"has sent nothing for {timeout:.1f} s") from None
            except OSError:
                raise PeerGone(self.peer, "has closed the connection") from None
        self.bytes_received += size
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
