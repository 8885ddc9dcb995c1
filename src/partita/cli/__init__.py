"""The command line: a thin layer over the library, in which every command is one function and its options."""

import os
import sys
from contextlib import suppress
from typing import Annotated

# XLA reports every program that it takes from its cache on standard error, and on some processors calls it a danger at
# the length of a page (openxla/xla#44565). What really fails is raised.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import typer

from partita._version import __version__
from partita.cli.federation import federation
from partita.cli.methods import show_published_methods
from partita.cli.runs import run_commands
from partita.cli.study import paper_studies, studies
from partita.cli.summary import summary

app = typer.Typer(
    name="partita",
    help="Partitioned variational inference: one posterior from data in many places, or over time.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    # Click suggests commands already.
    suggest_commands=False,
)
run_commands.command("methods")(show_published_methods)
run_commands.command("summary")(summary)
app.add_typer(run_commands)
app.add_typer(federation)
app.add_typer(paper_studies, name="reproduce")
app.add_typer(studies, name="study")


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"partita {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Partitioned variational inference."""


def main() -> None:
    """Errors that were foreseen are one line and exit code 2."""
    from partita.errors import PartitaError

    try:
        app()
    except PartitaError as error:
        typer.echo(f"partita: {error}", err=True)
        raise SystemExit(2) from None
    except BrokenPipeError:
        with suppress(OSError):
            sys.stdout.close()
        raise SystemExit(141) from None
