"""Options that several commands have, and who listens to a run that a command begins."""

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line, the last a summary.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing before the end.")]
RunFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, or of a federation's server.")]
RunOrFile = Annotated[
    Path,
    typer.Argument(metavar="DIR_OR_FILE", help="The folder of a run; or a saved result, estimator or stream."),
]


def keep_programs() -> None:
    """Keep compiled programs for the next command; where that is not safe, say so in a line."""
    from partita.foundation.compilation import cache_compilations

    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        cache_compilations()
    for notice in notices:
        typer.echo(f"partita: {notice.message}", err=True)


def listen(json: bool, quiet: bool, look: Any) -> Callable[[str, dict[str, Any]], Sequence[Any]]:
    """Who listens to a fit, by its name and labels: JSON lines or a progress bar, and `look`, which sees Ctrl-C."""
    from partita.telemetry import JsonLines, Progress

    return lambda name, labels: (
        JsonLines(sys.stdout, labels) if json else Progress(name, quiet=quiet, patient=True),
        look,
    )


def show_end(json: bool, summary: dict[str, Any], title: str, rows: list[dict[str, Any]], curves: str) -> None:
    """Print a summary as JSON; or, for people, a table, and where the curves are."""
    from partita.foundation.plain import to_json
    from partita.report.terminal import print_table

    if json:
        typer.echo(to_json({"event": "summary", **summary}))
    else:
        print_table(title, rows)
        typer.echo(f"curves: {curves}")
