"""How events and numbers look: units, tables, and the two ways to follow a running peer (lines or JSON)."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from peer import events
from peer.events import Event, Listener


def console(stderr: bool = False) -> Console:
    """Colours and boxes on a terminal, plain wide lines elsewhere."""
    probe = QuietConsole(stderr=stderr)
    return probe if probe.is_terminal else QuietConsole(stderr=stderr, width=140, color_system=None)


class QuietConsole(Console):
    """Falls silent when its reader has gone: a peer trains on without anybody watching."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def size(count: float) -> str:
    """Bytes for people: 12.3 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """Seconds for people: 4.2 s, 3 min 10 s, 5 h 2 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def peers_table(rows: list[dict[str, Any]], me: str | None = None) -> Table:
    """A row a peer: name, throughput, quota, samples, share of the samples, state."""
    total = sum(row["samples"] for row in rows) or 1
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("peer")
    for heading in ("samples/s", "quota", "samples", "share"):
        table.add_column(heading, justify="right")
    table.add_column("state")
    for row in rows:
        name = escape(row["name"]) + (" (this one)" if row["peer"] == me else "")
        quota = str(row["quota"]) if row["quota"] else "-"
        share = f"{row['samples'] / total:.1%}"
        table.add_row(name, f"{row['throughput']:.1f}", quota, f"{row['samples']:,}", share, row["state"])
    return table


def json_listener() -> Listener:
    """Each event as one line of JSON on standard output."""

    def show(event: Event) -> None:
        click.echo(json.dumps({"time": round(time.time(), 3), **event.to_json()}))
        sys.stdout.flush()

    return show


class HumanListener:
    """Lines that stay, and on a terminal a bar below them for what is under way."""

    def __init__(self) -> None:
        self._console = console()
        self._shares = ""
        self._heldout_epoch: int | None = None
        self._me = ""
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[detail]}"),
                console=self._console,
                transient=True,
            )
            self._progress.start()

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case events.Preparing():
                self._line(f"{event.what} …")
            case events.Started():
                self._me = event.peer
                self._line(
                    f"run [bold]{escape(event.name)}[/] ({event.run[:16]}): {event.num_parameters:,} parameters, "
                    f"{event.target_batch_size} samples an epoch; this peer is [bold]{escape(event.peer_name)}[/]"
                )
                self._line("others join with:")
                self._console.print(f"  minga join '{event.invite}'", soft_wrap=True, highlight=False, markup=False)
            case events.Measured():
                how = ", emulated" if event.emulated else ""
                self._line(f"{event.device}: {event.throughput:.1f} samples/s, microbatch {event.microbatch}{how}")
            case events.LinkMeasured():
                peers = "1 peer" if event.observers == 1 else f"{event.observers} peers"
                self._line(f"link: {event.rate * 8 / 1e6:.1f} Mbit/s, measured by {peers}")
            case events.HandedIn():
                self._line(
                    f"handed in {event.samples} samples at epoch {event.epoch} (slow lane, every {event.cadence}; "
                    f"{duration(event.seconds)} of transfer)"
                )
            case events.Transferring():
                self._bar(event.what, event.done, event.total, f"{size(event.done)} of {size(event.total)}")
            case events.CaughtUp():
                what = f"the gradients of {event.gradients} missed epochs" if event.gradients else "the state"
                self._line(
                    f"caught up with epoch {event.epoch}: {what}, {size(event.size)} in {duration(event.seconds)} "
                    f"({size(event.size / max(event.seconds, 1e-3))}/s)"
                )
            case events.PlanAdopted():
                shares = ", ".join(
                    f"{escape(s.name)} {s.quota}" + ("" if s.lane == "step" else f" (slow lane, every {s.cadence})")
                    for s in event.shares
                )
                if shares != self._shares:
                    self._line(f"plan of term {event.term}: {shares} samples an epoch ({event.reason})")
                self._shares = shares
            case events.Gathering():
                rate = f"{event.samples} of {event.quota} samples, {event.throughput:.1f}/s"
                self._bar(f"epoch {event.epoch}", event.samples, event.quota, rate)
            case events.EpochCommitted():
                self._line(self._committed(event))
            case events.CheckpointSaved():
                self._line(f"checkpoint of epoch {event.epoch} saved")
            case events.Notice():
                self._line(f"[yellow]{escape(event.text)}[/]")
            case events.Left():
                self._line(
                    f"left after epoch {event.epoch}: {escape(event.reason)}; {event.total_samples:,} samples given"
                )

    def _committed(self, event: events.EpochCommitted) -> str:
        total = sum(event.samples.values())
        mine = event.samples.get(self._me, 0)
        peers = f"{len(event.samples)} peer{'s' if len(event.samples) != 1 else ''}"
        line = (
            f"epoch {event.epoch}: {total} samples ({mine} mine) of {peers} in {duration(event.seconds)}, "
            f"{total / max(event.seconds, 1e-6):.0f}/s"
        )
        if event.heldout_bits_per_byte is not None and event.heldout_epoch != self._heldout_epoch:
            line += f", held-out {event.heldout_bits_per_byte:.3f} bits per byte at epoch {event.heldout_epoch}"
            self._heldout_epoch = event.heldout_epoch
        if event.attempt:
            line += f" (attempt {event.attempt + 1})"
        return line

    def _line(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def _bar(self, what: str, done: int, total: int, detail: str) -> None:
        if self._progress is None:
            return
        if self._task is None:
            self._task = self._progress.add_task(what, total=total, detail=detail)
        self._progress.update(self._task, description=what, completed=done, total=max(total, 1), detail=detail)
