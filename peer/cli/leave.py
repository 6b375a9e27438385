"""`minga leave`"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

import click

from peer.cli.options import json_option, state_dir_option
from peer.errors import PeerError

PATIENCE_SECONDS = 60


@click.command(name="leave")
@state_dir_option
@json_option
def command(state_dir: Path | None, as_json: bool) -> None:
    """Stop a peer on this machine cleanly: it says farewell, keeps a checkpoint, and ends."""
    from peer.control import NotRunning, ask, only_running_peer

    peer = only_running_peer(state_dir)
    with contextlib.suppress(NotRunning):
        ask(peer.state_dir, "leave")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            ask(peer.state_dir, "status")
        except NotRunning:
            click.echo(
                json.dumps({"left": str(peer.state_dir)}) if as_json else f"left; its state stays in {peer.state_dir}"
            )
            return
        time.sleep(0.1)
    raise PeerError(
        f"the peer in {peer.state_dir} has not ended within {PATIENCE_SECONDS} s; "
        f"end process {peer.status['pid']} with `kill`"
    )
