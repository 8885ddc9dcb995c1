"""`partita methods`."""

from typing import Annotated

import typer

from partita.cli.interrupt import suppress_interrupt
from partita.cli.options import Json, Quiet, keep_programs


def show_published_methods(
    name: Annotated[str | None, typer.Argument(help="One of them: explain it and run it on small real data.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Run with comparisons; fails if one is off.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """The paper's table of published methods, as triples of partition, solver and schedule.

    NAME is one of them, to be explained and run on small real data.
    """
    from partita.studies.methods import TABLE, explain, find_method
    from partita.studies.methods.checking import show_checks, show_methods

    keep_programs()
    rows = TABLE if name is None else (find_method(name),)
    if not check and name is None:
        show_methods(typer.echo, json)
        return
    if name is not None and not json:
        for key, value in explain(rows[0]).items():
            typer.echo(f"{key}: {value}")
    with suppress_interrupt("begin again with the same command"):
        all_good = show_checks(rows, typer.echo, json, quiet)
    if not all_good:
        raise typer.Exit(1)
