"""Options that several commands have, and who listens to a run that a command begins."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from partita.studies.registry import find_study

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line, the last a summary.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing before the end.")]
RunFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, or of a federation's server.")]
RunOrFile = Annotated[
    Path,
    typer.Argument(metavar="DIR_OR_FILE", help="The folder of a run; or a saved result, estimator or stream."),
]
Out = Annotated[Path, typer.Option(help="Folder for results; what is finished there is not run again.")]
Quick = Annotated[bool, typer.Option("--quick", help="Small data from a wheel, in under 3 minutes.")]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds.")]
Names = Annotated[str | None, typer.Option("--method", help="Only these, separated by commas.")]
Data = Annotated[Path | None, typer.Option(help="The folder that holds the data files.")]
Validate = Annotated[
    bool, typer.Option("--validate", help="Measure on a sixth of the training data, not the test set.")
]
Sweep = Annotated[bool, typer.Option("--sweep", help="Other rates and settings, too.")]


def study_command(group: typer.Typer, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command that runs the study of that name; its help is what the registry says of it."""
    return group.command(name, help=find_study(name).words)


def keep_programs() -> None:
    """Keep compiled programs for the next command."""
    from partita.foundation import runtime

    runtime.cache_compilation()


def listen(json: bool, quiet: bool, look: Any) -> Callable[[str, dict[str, Any]], Sequence[Any]]:
    """Who listens to a fit, by its name and labels: JSON lines or a progress bar, and `look`, which sees Ctrl-C."""
    from partita.telemetry import JsonLines, Progress

    return lambda name, labels: (
        JsonLines(sys.stdout, labels) if json else Progress(name, quiet=quiet, patient=True),
        look,
    )
