"""`minga status`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from peer.cli.options import json_option, state_dir_option


@click.command(name="status")
@state_dir_option
@json_option
def command(state_dir: Path | None, as_json: bool) -> None:
    """What the peers on this machine are doing, and why."""
    from peer.control import running_peers

    peers = [{"state_dir": str(peer.state_dir), **peer.status} for peer in running_peers(state_dir)]
    if as_json:
        click.echo(json.dumps(peers, indent=2))
        return
    for peer in peers:
        _print(peer)


def _print(status: dict[str, Any]) -> None:
    from peer.cli.render import console, duration, peers_table, size

    out = console()
    out.print(
        f"[bold]{status['run_name']}[/] (run {status['run'][:16]}), peer [bold]{status['name']}[/]",
        highlight=False,
    )
    bits = status["heldout_bits_per_byte"]
    loss = f", held-out {bits:.3f} bits per byte at epoch {status['heldout_epoch']}" if bits is not None else ""
    out.print(f"  epoch {status['epoch']}{loss}, {status['activity']} for {duration(status['activity_seconds'])}")
    out.print(f"  {status['reason']}")
    out.print(
        f"  this peer: {status['session_samples']:,} samples in {duration(status['session_seconds'])}, "
        f"sent {size(status['bytes_sent'])}, received {size(status['bytes_received'])}"
    )
    out.print(f"  state in {status['state_dir']}", soft_wrap=True, highlight=False)
    out.print(peers_table(status["peers"], status["peer"]))
