"""`minga invite`"""

from __future__ import annotations

import json
from pathlib import Path

import click

from peer.cli.options import json_option, state_dir_option


@click.command(name="invite")
@state_dir_option
@json_option
def command(state_dir: Path | None, as_json: bool) -> None:
    """Print an invite to the run that a peer here takes part in.

    Any peer can invite, whether or not the host is still there.
    """
    from peer.control import ask, only_running_peer

    peer = only_running_peer(state_dir, any_of_a_run=True)
    answer = ask(peer.state_dir, "invite")
    click.echo(json.dumps(answer) if as_json else answer["invite"])
