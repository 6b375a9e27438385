"""`minga join`"""

from __future__ import annotations

from pathlib import Path

import click

from peer.cli.options import peer_options


@click.command(name="join")
@click.argument("invite")
@peer_options
def command(
    invite: str,
    name: str | None,
    device: str,
    port: int,
    bind: str,
    data_dir: Path | None,
    emulate_throughput: float | None,
    state_dir: Path | None,
    as_json: bool,
) -> None:
    """Take part in the run that INVITE leads to. Ctrl-C leaves cleanly; joining again goes on from there."""
    from peer.places import StateDirectory
    from protocol.invite import parse_invite

    parsed = parse_invite(invite)
    if state_dir is not None:
        state = StateDirectory.claim(state_dir, parsed.run)
    else:
        state = StateDirectory.claim_free_slot(parsed.run)

    from peer.cli.follow import run_and_follow
    from peer.daemon.entrance import PeerConfig
    from peer.swarm.identity import load_or_create

    config = PeerConfig(
        key=load_or_create(state.path / "identity.key"),
        run=parsed.run,
        signed=None,
        initial_peers=parsed.peers,
        state=state,
        name=name,
        device=device,
        port=port,
        bind=bind,
        data_dir=data_dir,
        emulate_throughput=emulate_throughput,
    )
    run_and_follow(config, as_json)
