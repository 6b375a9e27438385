"""Starting a worker process, and saying what became of it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import peer as package

LAST_WORDS = 4096
"""bytes of standard error that are kept to explain a death"""


async def spawn(channel_fd: int, arena_fd: int, threads: int | None) -> asyncio.subprocess.Process:
    """Start a worker that inherits the two descriptors. It leads a session of its own, out of reach of Ctrl-C."""
    environment = dict(os.environ)
    # So that the worker finds this very package, also where it was not installed but run from its sources.
    places = [str(Path(package.__file__).parents[1]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    # Threads that wait for each other in a loop bring a shared processor to a standstill.
    environment.setdefault("OMP_WAIT_POLICY", "passive")
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    # -P: what lies in the user's current folder is not to be imported.
    command = [sys.executable, "-P", "-m", "peer.training.worker", str(channel_fd), str(arena_fd), str(os.getpid())]
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=(channel_fd, arena_fd),
        start_new_session=True,
        env=environment,
    )


async def last_words(process: asyncio.subprocess.Process) -> str:
    """The last line that it writes to standard error, until it ends."""
    assert process.stderr is not None
    kept = b""
    while piece := await process.stderr.read(LAST_WORDS):
        kept = (kept + piece)[-LAST_WORDS:]
    lines = [line.strip() for line in kept.decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")


def explain_end(device: str, status: int, last_words: str) -> str:
    """One sentence about a worker's death from its exit status and the last line of its standard error."""
    if status == -signal.SIGKILL:
        how = "was killed, perhaps by the system for lack of memory"
    elif status < 0:
        how = f"was ended by {signal.Signals(-status).name}"
    else:
        how = f"ended with status {status}"
    said = f" ({last_words[:300]})" if last_words else ""
    return f"the worker on {device} {how}{said}"
