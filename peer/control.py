"""The socket by which commands on this machine talk to a running peer.

One JSON object in, one out, on a unix socket in a directory that only its owner can enter. `control.json` in the
state directory says where it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer.errors import PeerError
from peer.places import all_state_directories, replace_file

CONTROL_FILE = "control.json"
MAX_MESSAGE = 1 << 20  # bytes
TIMEOUT_SECONDS = 10.0

Answer = dict[str, Any]
Command = Callable[[dict[str, Any]], Awaitable[Answer]]


class NotRunning(PeerError):
    """No peer is running where a command looked for one."""


class ControlServer:
    """Serves the daemon's commands by name until it is closed."""

    def __init__(self, commands: dict[str, Command]) -> None:
        self._commands = commands
        self._server: asyncio.Server | None = None
        self._pointer: Path | None = None

    async def start(self, runtime_dir: Path, state_dir: Path) -> None:
        path = runtime_dir / "control.sock"
        self._server = await asyncio.start_unix_server(self._serve, str(path), limit=MAX_MESSAGE)
        self._pointer = state_dir / CONTROL_FILE
        replace_file(self._pointer, json.dumps({"socket": str(path)}).encode())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await asyncio.wait_for(reader.readline(), TIMEOUT_SECONDS))
            command = self._commands.get(request.get("command", ""))
            if command is None:
                answer: Answer = {"error": "this peer does not know the command; restart it with this version of minga"}
            else:
                answer = await command(request)
        except PeerError as error:
            answer = {"error": str(error)}
        except (ValueError, AttributeError, TypeError, RecursionError, TimeoutError, OSError):
            answer = {"error": "the request could not be read"}
        with contextlib.suppress(OSError):
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    def close(self) -> None:
        if self._pointer is not None:
            self._pointer.unlink(missing_ok=True)
        if self._server is not None:
            self._server.close()


def ask(state_dir: Path, command: str, timeout: float = TIMEOUT_SECONDS, **arguments: Any) -> Answer:
    """Ask the peer running in `state_dir`. Raises `NotRunning`, or `PeerError` with what the peer answered."""
    try:
        path = json.loads((state_dir / CONTROL_FILE).read_bytes())["socket"]
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(path)
            connection.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer = json.loads(lines.readline(MAX_MESSAGE))
        if not isinstance(answer, dict):
            raise ValueError("not an object")
    except TimeoutError:
        raise PeerError(f"the peer in {state_dir} does not answer within {timeout:.0f} s; try again") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise NotRunning(f"no peer is running in {state_dir}; start one with `minga host` or `minga join`") from None
    if "error" in answer:
        raise PeerError(answer["error"])
    return dict(answer)


@dataclass(frozen=True)
class RunningPeer:
    state_dir: Path
    status: Answer


def running_peers(state_dir: Path | None) -> list[RunningPeer]:
    """The peers running on this machine, or the one in `state_dir`. Raises `NotRunning` if there is none."""
    found = []
    for path in [state_dir] if state_dir else all_state_directories():
        with contextlib.suppress(NotRunning):
            found.append(RunningPeer(path, ask(path, "status")))
    if not found:
        where = f"in {state_dir}" if state_dir else "on this machine"
        raise NotRunning(f"no peer is running {where}; start one with `minga host RUN.toml` or `minga join INVITE`")
    return found


def only_running_peer(state_dir: Path | None, *, any_of_a_run: bool = False) -> RunningPeer:
    """The one peer that a command is about, or any if all are of one run and that will do.

    Raises `PeerError` if several are running and none was named.
    """
    found = running_peers(state_dir)
    if len(found) > 1 and not (any_of_a_run and len({peer.status["run"] for peer in found}) == 1):
        names = ", ".join(str(peer.state_dir) for peer in found)
        raise PeerError(f"several peers are running here; name one with --state-dir: {names}")
    return found[0]
