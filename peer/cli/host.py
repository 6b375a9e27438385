"""`minga host`"""

from __future__ import annotations

from pathlib import Path

import click

from peer.cli.options import peer_options


@click.command(name="host")
@click.argument("run_toml", metavar="RUN.toml", type=click.Path(dir_okay=False, path_type=Path))
@peer_options
def command(
    run_toml: Path,
    name: str | None,
    device: str,
    port: int,
    bind: str,
    data_dir: Path | None,
    emulate_throughput: float | None,
    state_dir: Path | None,
    as_json: bool,
) -> None:
    """Found the run that RUN.toml describes, print its invite, and take part in it as an ordinary peer.

    Ctrl-C leaves cleanly and the run goes on without you; hosting the same file again goes on from your checkpoint.
    """
    from peer.founding import read_run_toml
    from peer.places import StateDirectory, state_root
    from peer.swarm.identity import load_or_create

    key = load_or_create(state_dir / "identity.key" if state_dir else state_root() / "host.key")
    signed = read_run_toml(run_toml, key)
    state = StateDirectory.claim(state_dir or state_root() / signed.run_id[:16] / "host", signed.run_id)
    state.write_manifest(signed)

    from peer.cli.follow import run_and_follow
    from peer.daemon.entrance import PeerConfig

    config = PeerConfig(
        key=key,
        run=signed.run_id,
        signed=signed,
        initial_peers=(),
        state=state,
        name=name,
        device=device,
        port=port,
        bind=bind,
        data_dir=data_dir or run_toml.absolute().parent,
        emulate_throughput=emulate_throughput,
    )
    run_and_follow(config, as_json)
