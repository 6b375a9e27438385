"""`minga sample`"""

from __future__ import annotations

from pathlib import Path

import click

from peer.cli.options import finite

SEEDS = click.IntRange(0, 2**63 - 1)


@click.command(name="sample")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--prompt", default="def ", show_default=True, help="What the text begins with.")
@click.option("--length", type=click.IntRange(1, 100_000), default=300, show_default=True, help="Bytes to write.")
@click.option(
    "--temperature",
    type=click.FloatRange(0, 10),
    callback=finite,
    default=0.8,
    show_default=True,
    help="0: always the likeliest.",
)
@click.option(
    "--top-k",
    type=click.IntRange(1, 256),
    default=40,
    show_default=True,
    help="Choose among the k likeliest.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="The same seed writes the same text.",
)
def command(directory: Path, prompt: str, length: int, temperature: float, top_k: int, seed: int) -> None:
    """Let the model that `minga export` wrote into DIRECTORY continue a prompt."""
    from peer.training.export import load_exported
    from peer.training.generate import generate

    model = load_exported(directory)
    click.echo(prompt.encode(errors="replace").decode(errors="replace"), nl=False)
    for text in generate(
        model, prompt.encode(errors="surrogateescape"), length, temperature=temperature, top_k=top_k, seed=seed
    ):
        click.echo(text, nl=False)
    click.echo()
