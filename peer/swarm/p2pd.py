"""The libp2p daemon: hivemind's `p2pd` binary, as a child that never outlives this process.

Facts about it that shape this file (v0.5.0.hivemind1): it ends with code 1 and one line on its output if it can
listen on none of its addresses, but starts if it can on any; it shares a TCP port with other libp2p programs of
the same user (SO_REUSEPORT), so that a second peer on the same port would silently get half of the
connections; it removes its control socket only when it ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import secrets
import signal
import socket
import sys
from collections import deque
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from hivemind.proto import crypto_pb2

from peer.swarm.errors import EngineFailed, PortInUse
from protocol.signing import SigningKey
from protocol.units import PeerId

START_SECONDS = 20.0
END_SECONDS = 2.0  # for an orderly end, before it is killed
ORPHAN_SECONDS = 20  # the daemon ends by itself when nobody has been attached for so long
MAX_SOCKET_PATH = 100  # bytes; systems allow 103 to 107
KEPT_LINES = 20
MAX_LINE = 4096  # bytes

# Runs before p2pd in its process: the kernel kills p2pd when the thread that started it ends, however it ends.
_TIE_TO_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]): os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class P2pd:
    """A running daemon. `launch` it on the event loop's own thread, which must live as long as the daemon."""

    def __init__(self, process: asyncio.subprocess.Process, control: Path) -> None:
        self._process = process
        self.control = control
        """unix socket on which it takes orders"""
        self.pid = process.pid
        self.died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """done, with a sentence, when the process has ended"""
        self._announced: asyncio.Future[PeerId] = asyncio.get_running_loop().create_future()
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._watching = asyncio.create_task(self._watch())

    @classmethod
    async def launch(cls, key: SigningKey, *, runtime_dir: Path, host: str, port: int) -> P2pd:
        """Start a daemon with the identity of `key` that listens on `host` and `port` (0: any free one).

        Raises `PortInUse`, or `EngineFailed` with the daemon's last words.
        """
        listen_on = listen_addresses(host, port)
        name = f"p2pd-{secrets.token_hex(4)}"
        control, identity = runtime_dir / f"{name}.sock", runtime_dir / f"{name}.key"
        _check_length(runtime_dir / "p2pclient-xxxxxxxxxxx.sock")
        _write_identity(identity, key)
        try:
            daemon = cls(await _start(_arguments(control, identity, listen_on, _is_loopback(host))), control)
            try:
                await daemon._await_start(key.peer_id, host, port)
            except BaseException:
                await daemon.close()
                raise
        finally:
            identity.unlink(missing_ok=True)  # read by now, and this peer keeps its key elsewhere
        return daemon

    async def _await_start(self, expected: PeerId, host: str, port: int) -> None:
        await asyncio.wait((self._announced, self.died), timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if self._announced.done():
            if self._announced.result() != expected:
                raise EngineFailed("the libp2p daemon took another identity than it was given; report this")
        elif "address already in use" in self.last_words:
            raise _port_in_use(host, port)
        elif self.died.done():
            raise EngineFailed(f"the libp2p daemon did not start: {self.last_words or self.died.result()}")
        else:
            raise EngineFailed(
                f"the libp2p daemon did not start within {START_SECONDS:.0f} s; close other programs, then start again"
            )

    @property
    def last_words(self) -> str:
        """The last line that the daemon wrote, without control characters."""
        line = self._lines[-1] if self._lines else ""
        return "".join(character for character in line[:300] if character.isprintable())

    async def _watch(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        while chunk := await self._process.stdout.read(4096):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._hear(line)
            rest = rest[-MAX_LINE:]
        self._hear(rest)
        code = await self._process.wait()
        if not self.died.done():
            ending = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            self.died.set_result(f"the libp2p daemon {ending}")

    def _hear(self, line: bytes) -> None:
        text = line.decode(errors="replace").strip()
        if text:
            self._lines.append(text)
        if text.startswith("Peer ID:") and not self._announced.done():
            self._announced.set_result(text.removeprefix("Peer ID:").strip())

    async def close(self) -> None:
        """End the daemon and wait until it is gone. May be called again."""
        if self._process.returncode is None:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # in case it is stopped
            await asyncio.wait((self.died,), timeout=END_SECONDS)
            self._signal(signal.SIGKILL)
        await self._watching
        self.control.unlink(missing_ok=True)

    def _signal(self, number: signal.Signals) -> None:
        """Not by `send_signal`, which collects a child that has just ended, before asyncio's watcher can."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def listen_addresses(host: str, port: int) -> list[str]:
    """What the daemon is to listen on: TCP always; QUIC too unless on loopback, where it only costs time.

    Raises `PortInUse` if `port` is taken, or `EngineFailed` if `host` is no address of this machine.
    """
    address = _parse(host)
    if not 0 <= port <= 65535:
        raise EngineFailed(f"there is no port {port}; choose one from 1024 to 65535, or 0 for any free one")
    _probe(address, port, socket.SOCK_STREAM)
    listen_on = [f"/ip{address.version}/{address}/tcp/{port}"]
    if address.is_loopback:
        return listen_on
    with contextlib.suppress(PortInUse):  # TCP alone will do
        _probe(address, port, socket.SOCK_DGRAM)
        listen_on.append(f"/ip{address.version}/{address}/udp/{port}/quic-v1")
    if host == "0.0.0.0" and socket.has_ipv6:  # noqa: S104 - everywhere is what a public peer wants
        listen_on.extend((f"/ip6/::/tcp/{port}", f"/ip6/::/udp/{port}/quic-v1"))
    return listen_on


def _probe(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int, kind: int) -> None:
    """Whether nobody has the port, also no other libp2p program: those share ports with each other."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, kind) as probe:
        if kind == socket.SOCK_STREAM:  # not hindered by connections that have just been closed
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((str(address), port))
        except PermissionError:
            raise EngineFailed(f"this user may not listen on port {port}; choose one from 1024 to 65535") from None
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise EngineFailed(
                    f"cannot listen on {address} port {port} ({error.strerror}); "
                    "give an address of this machine, or 0.0.0.0 for all"
                ) from None
            raise _port_in_use(str(address), port) from None


def _port_in_use(host: str, port: int) -> PortInUse:
    return PortInUse(
        f"port {port} on {host} is used by another program; choose another with --port, or 0 for any free one"
    )


def _parse(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        raise EngineFailed(
            f"{host[:60]!r} is not an IP address; give one of this machine, or 0.0.0.0 for all"
        ) from None


def _is_loopback(host: str) -> bool:
    return _parse(host).is_loopback


def _arguments(control: Path, identity: Path, listen_on: Iterable[str], loopback: bool) -> list[str]:
    reachable = "0" if loopback else "1"  # asks routers for a port, finds relays and punches holes
    return [
        str(files("hivemind.hivemind_cli") / "p2pd"),
        f"-listen=/unix{control}",
        f"-id={identity}",
        f"-hostAddrs={','.join(listen_on)}",
        "-dhtServer=1",
        "-tls=1",
        "-connManager=1",
        "-relay=1",
        f"-autoRelay={reachable}",
        f"-autonat={reachable}",
        f"-natPortMap={reachable}",
        f"-idleTimeout={ORPHAN_SECONDS}s",
    ]


async def _start(arguments: list[str]) -> asyncio.subprocess.Process:
    if sys.platform == "linux":
        tie = [sys.executable, "-I", "-S", "-c", _TIE_TO_PARENT, str(os.getpid())]
        arguments = [*tie, *arguments]
    try:
        return await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "GOLOG_LOG_LEVEL": "error"},
            start_new_session=True,  # Ctrl-C is for this process; it ends the daemon in good order
        )
    except OSError as error:
        raise EngineFailed(
            f"the libp2p daemon cannot be run ({error}); install minga again on a supported system"
        ) from None


def _write_identity(path: Path, key: SigningKey) -> None:
    """The key as p2pd reads it: protobuf PrivateKey{Ed25519, seed || public key}."""
    message = crypto_pb2.PrivateKey(key_type=crypto_pb2.KeyType.Ed25519, data=key.seed + key.public_key)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(message.SerializeToString())


def _check_length(path: Path) -> None:
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise EngineFailed(
            f"the folder {path.parent} has too long a name for sockets "
            f"({MAX_SOCKET_PATH} bytes at most); choose a shorter one"
        )
