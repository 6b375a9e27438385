"""Runs a peer in the foreground of a terminal and shows what it tells."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

from peer import events
from peer.cli.render import HumanListener, json_listener
from peer.daemon.entrance import PeerConfig
from peer.daemon.lifecycle import Daemon


def run_and_follow(config: PeerConfig, as_json: bool) -> None:
    """Run until the peer ends. The first Ctrl-C (or SIGTERM) leaves cleanly, the second at once."""
    human = None if as_json else HumanListener()
    listener = json_listener() if human is None else human

    async def body() -> None:
        daemon = Daemon(config, listener)
        loop = asyncio.get_running_loop()
        interrupted = False

        def on_signal() -> None:
            nonlocal interrupted
            if interrupted:
                os._exit(130)  # children end with us
            interrupted = True
            listener(events.Notice("leaving the run and keeping a checkpoint; press Ctrl-C again to end at once"))
            daemon.leave("asked to stop")

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, on_signal)
        await daemon.run()

    try:
        asyncio.run(body())
    finally:
        if human is not None:
            human.close()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
