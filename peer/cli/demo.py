"""`minga demo`"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from peer.demonstration import SPEEDS, Report, Setting, run_demonstration

MIN_TOGETHER = 20


@click.command(name="demo")
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the facts to a file.",
)
@click.option(
    "--epochs",
    type=click.IntRange(4, 10_000),
    default=Setting.epochs,
    show_default=True,
    help="How long to train.",
)
def command(json_file: Path | None, epochs: int) -> None:
    """Watch three unequal peers train one model together on this computer, in about two minutes.

    The peers, their sockets, the text and the gradients are real; the three speeds are emulated.
    """
    from peer.cli.render import console, duration

    if json_file is not None:
        try:
            json_file.touch()
        except OSError as error:
            raise click.BadParameter(f"cannot write {json_file}: {error.strerror}", param_hint="--json") from None
    out = console()
    began = time.monotonic()
    out.print(
        "three peers on this computer, held to emulated speeds of "
        + " : ".join(f"{name} {speed}" for name, speed in SPEEDS.items()),
        highlight=False,
    )

    def show(name: str, event: dict[str, Any]) -> None:
        match event["event"]:
            case "Started":
                out.print(f"  {name} (emulated) is up after {duration(time.monotonic() - began)}", highlight=False)
            case "Measured":
                out.print(f"  {name} (emulated) trains {event['throughput']:.1f} samples/s alone", highlight=False)
            case "CaughtUp":
                out.print(f"  {name} (emulated) has caught up with epoch {event['epoch']}", highlight=False)
            case "EpochCommitted" if name == next(iter(SPEEDS)):
                out.print(_line(event), highlight=False)

    report = run_demonstration(Setting(epochs=epochs), show)
    _close(out, report, time.monotonic() - began)
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=2) + "\n")


def _line(event: dict[str, Any]) -> str:
    parts = " + ".join(str(count) for count in sorted(event["samples"].values(), reverse=True))
    bits, measured = event["heldout_bits_per_byte"], event["heldout_epoch"]
    loss = f", held-out {bits:.2f} bits per byte at epoch {measured}" if bits is not None else ""
    total = sum(event["samples"].values())
    return f"  epoch {event['epoch']:>3}: {parts} = {total} samples in {event['seconds']:.1f} s{loss}"


def _close(out: Any, report: Report, seconds: float) -> None:
    from rich.table import Table

    from peer.cli.render import duration

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("peer (emulated)")
    for heading in ("samples/s alone", "share of speed", "samples", "share of samples"):
        table.add_column(heading, justify="right")
    for peer in report["peers"]:
        table.add_row(
            peer["name"],
            f"{peer['throughput']:.1f}",
            f"{peer['share_of_speed']:.1%}",
            f"{peer['samples']:,}",
            f"{peer['share']:.1%}",
        )
    out.print(table)
    bits = report["final_bits_per_byte"]
    out.print(
        f"{report['epochs_together']} epochs together: {report['samples_per_second']:.1f} of "
        f"{report['solo_samples_per_second']:.1f} samples/s (efficiency {report['efficiency']:.1%}), held-out "
        f"{f'{bits:.3f}' if bits is not None else '?'} bits per byte (untrained: about 8), {duration(seconds)} in all",
        highlight=False,
    )
