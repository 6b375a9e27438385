"""`minga export`"""

from __future__ import annotations

import json
from pathlib import Path

import click

from peer.cli.options import json_option, state_dir_option


@click.command(name="export")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@state_dir_option
@json_option
def command(directory: Path, state_dir: Path | None, as_json: bool) -> None:
    """Write the trained model into DIRECTORY: model.safetensors and config.json.

    Takes the weights of the running peer as they are now, or the last checkpoint of one that has ended.
    """
    from peer.control import NotRunning, ask, only_running_peer
    from peer.errors import PeerError
    from peer.places import CHECKPOINTS, all_state_directories, read_manifest
    from peer.training.checkpoint import load_latest
    from peer.training.export import export_model

    heldout = None
    try:
        state_dir = only_running_peer(state_dir).state_dir
        heldout = ask(state_dir, "checkpoint", timeout=120)["heldout_bits_per_byte"]
    except NotRunning:
        state_dir = state_dir or next(all_state_directories(), None)
    signed = read_manifest(state_dir) if state_dir else None
    saved = load_latest(state_dir / CHECKPOINTS, signed.run_id) if state_dir and signed else None
    if state_dir is None or signed is None or saved is None:
        raise PeerError("there is no checkpoint to export yet; let a peer train first, or name one with --state-dir")
    files = export_model(saved, signed.manifest, directory, heldout)
    if as_json:
        click.echo(json.dumps({"run": signed.run_id, "epoch": saved.epoch, "files": [str(path) for path in files]}))
    else:
        click.echo(
            f"wrote epoch {saved.epoch} of {signed.manifest.run.name!r} to {directory}; try: minga sample {directory}"
        )
