"""The `minga` command. One command a file, imported only when it is called, so that `--help` answers at once."""

from __future__ import annotations

import importlib
import os
import sys

import click

COMMANDS = {
    "demo": "watch three unequal peers train together on this computer",
    "host": "found a run and take part in it",
    "join": "take part in a run",
    "status": "what the peers on this machine are doing, and why",
    "explain": "why a peer here has its lane and quota, and where its time goes",
    "invite": "print an invite to a run that a peer here takes part in",
    "leave": "stop a peer on this machine cleanly",
    "export": "write the trained model as safetensors",
    "sample": "let an exported model write text",
}


class LazyGroup(click.Group):
    """Finds a command in the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"peer.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="minga", message="minga %(version)s")
def group() -> None:
    """Train one neural network together, on whatever hardware people have, without a master."""


def main() -> None:
    """Run a command. Exit codes: 0 done, 1 failed under way, 2 could not start because of what was given."""
    from peer.errors import EndedUnderWay, PeerError
    from protocol.errors import ProtocolError

    try:
        group.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except (PeerError, ProtocolError) as error:
        click.echo(f"minga: {error}", err=True)
        sys.exit(1 if isinstance(error, EndedUnderWay) else 2)
    except BrokenPipeError:  # the reader of our output has gone, as in `minga status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        # A fault of ours. Its details help whoever mends it, and are in nobody's way in a file.
        sys.exit(_report_fault(error))


def _report_fault(error: Exception) -> int:
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="minga-fault-", suffix=".txt", delete=False) as file:
        file.write("".join(traceback.format_exception(error)))
    click.echo(
        f"minga: a fault of minga itself ({type(error).__name__}: {str(error)[:200]}); "
        f"please report it with {file.name}, then try again",
        err=True,
    )
    return 1
