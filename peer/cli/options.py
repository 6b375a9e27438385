"""Options that several commands share."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
MAX_NAME = 40  # characters, as in the record that announces it


def finite(_context: click.Context, _parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter("it must be a finite number")
    return value


def _printable(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not (0 < len(value) <= MAX_NAME and value.isprintable()):
        raise click.BadParameter(f"give 1 to {MAX_NAME} printable characters")
    return value


state_dir_option = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the peer's identity, checkpoints and history. Needed where several peers are here.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


def peer_options(command: F) -> F:
    """What both `host` and `join` take."""
    for option in reversed(
        [
            click.option("--name", callback=_printable, help="How others see this peer. Default: the computer's name."),
            click.option(
                "--device",
                default="auto",
                show_default=True,
                help="cpu, cuda, cuda:0 or mps; auto takes the first GPU, else the CPU.",
            ),
            click.option(
                "--port",
                type=click.IntRange(0, 65535),
                default=0,
                help="TCP and UDP port to listen on. Default: the one used last time, else any free one.",
            ),
            click.option(
                "--bind",
                default="0.0.0.0",  # noqa: S104 (a peer is meant to be reached)
                show_default=True,
                help="Address to listen on; 127.0.0.1 keeps the run on this computer.",
            ),
            click.option(
                "--data",
                "data_dir",
                type=click.Path(file_okay=False, path_type=Path),
                help="Folder with the run's text files, where it trains on files.",
            ),
            click.option(
                "--emulate-throughput",
                type=click.FloatRange(min=0, min_open=True),
                metavar="SAMPLES_PER_S",
                callback=finite,
                help="Train no faster than this, to show unequal machines on one computer.",
            ),
            state_dir_option,
            json_option,
        ]
    ):
        command = option(command)
    return command
