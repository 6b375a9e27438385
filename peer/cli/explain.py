"""`minga explain`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from peer.cli.options import json_option, state_dir_option


@click.command(name="explain")
@state_dir_option
@json_option
def command(state_dir: Path | None, as_json: bool) -> None:
    """Why a peer on this machine has its lane and quota, what would change them, and where its time goes."""
    from peer.control import running_peers

    found = running_peers(state_dir)
    if as_json:
        click.echo(json.dumps([{"state_dir": str(peer.state_dir), **explanation(peer.status)} for peer in found]))
        return
    for peer in found:
        _print(explanation(peer.status))


def explanation(status: dict[str, Any]) -> dict[str, Any]:
    """The part of a status that answers why."""
    last = status["last_epoch"]
    spent = None
    if last is not None and last["seconds"] > 0:
        spent = {
            "epoch": last["epoch"],
            "seconds": last["seconds"],
            "compute": last["gather_seconds"],
            "wait": last["wait_seconds"],
            "transfer": last["transfer_seconds"],
        }
    return {
        "name": status["name"],
        "run_name": status["run_name"],
        "lane": status["lane"],
        "lane_reason": status["lane_reason"],
        "plan_reason": status["plan_reason"],
        "others": {row["name"]: row["lane_reason"] for row in status["peers"] if row["peer"] != status["peer"]},
        "last_epoch": spent,
        "round": status["round"],
    }


def _print(facts: dict[str, Any]) -> None:
    lane = f"{facts['lane']} lane" if facts["lane"] else "in no lane yet"
    click.echo(f"{facts['name']} in {facts['run_name']}: {lane}")
    click.echo(f"  why: {facts['lane_reason'] or facts['plan_reason']}")
    click.echo(f"  the plan: {facts['plan_reason']}")
    for name, reason in facts["others"].items():
        if reason:
            click.echo(f"  {name}: {reason}")
    spent = facts["last_epoch"]
    if spent is not None:
        click.echo(
            f"  epoch {spent['epoch']} took {spent['seconds']:.2f} s: {spent['compute']:.2f} s of computing, "
            f"{spent['wait']:.2f} s without work before it, {spent['transfer']:.2f} s of averaging"
        )
    for line in facts["round"]:
        click.echo(f"  round: {line}")
