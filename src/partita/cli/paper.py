"""`partita reproduce`: the paper's experiments."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from partita.cli.interrupt import suppress_interrupt
from partita.cli.options import (
    Data,
    Json,
    Names,
    Out,
    Quick,
    Quiet,
    Seeds,
    Sweep,
    Validate,
    keep_programs,
    study_command,
)

paper_studies = typer.Typer(help="The paper's experiments, with its plots.", no_args_is_help=True)


def reproduce(experiment: Any, out: Path, json: bool, quiet: bool) -> None:
    """Run an experiment with a progress bar or JSON lines, then write its tables and pages."""
    from partita.foundation.plain import to_json
    from partita.report.terminal import print_table
    from partita.studies.pages import write_pages
    from partita.studies.progress import Bar, Lines
    from partita.studies.runner import run_study

    keep_programs()
    watch = Lines(sys.stdout, experiment.presentation.keys) if json else Bar(quiet)
    with suppress_interrupt("finished runs are kept. Go on with the same command"):
        rows = run_study(experiment.cells, out, experiment.speed, watch)
    table, pages = write_pages(experiment, rows, out)
    if json:
        typer.echo(to_json({"event": "summary", "rows": table, "pages": pages}))
    else:
        print_table(experiment.presentation.title, table)
        typer.echo(f"curves: {', '.join(pages)}")


@study_command(paper_studies, "federated")
def federated(
    setting: Annotated[str, typer.Option(help="iid, non-iid or both.")] = "both",
    method: Names = None,
    quick: Quick = False,
    seeds: Seeds = 1,
    rounds: Annotated[int | None, typer.Option(min=6, help="Of synchronous PVI; others follow.")] = None,
    sweep: Sweep = False,
    validate: Validate = False,
    data: Data = None,
    quiet: Quiet = False,
    out: Out = Path("federated"),
    json: Json = False,
) -> None:
    from partita.studies.paper.federated import experiment

    reproduce(experiment(setting, method, quick, seeds, rounds, sweep, validate, data), out, json, quiet)


@study_command(paper_studies, "sngd")
def sngd(
    method: Names = None,
    quick: Quick = False,
    seeds: Seeds = 1,
    sweep: Sweep = False,
    validate: Validate = False,
    data: Data = None,
    quiet: Quiet = False,
    out: Out = Path("sngd"),
    json: Json = False,
) -> None:
    from partita.studies.paper.sngd import experiment

    reproduce(experiment(method, quick, seeds, sweep, validate, data), out, json, quiet)


@study_command(paper_studies, "vcl")
def vcl(
    method: Names = None,
    quick: Quick = False,
    seeds: Seeds = 1,
    validate: Validate = False,
    data: Data = None,
    quiet: Quiet = False,
    out: Out = Path("vcl"),
    json: Json = False,
) -> None:
    from partita.studies.paper.vcl import experiment

    reproduce(experiment(method, quick, seeds, validate, data), out, json, quiet)


@study_command(paper_studies, "banana")
def banana(
    method: Names = None,
    quick: Quick = False,
    seeds: Seeds = 1,
    data: Data = None,
    quiet: Quiet = False,
    out: Out = Path("banana"),
    json: Json = False,
) -> None:
    from partita.studies.paper.banana import experiment, methods

    if method is None and "nuts" not in methods():
        typer.echo("NUTS is left out: it needs NumPyro, of the extra numpyro", err=True)
    reproduce(experiment(method, quick, seeds, data), out, json, quiet)


@study_command(paper_studies, "robot-arm")
def robot_arm(
    method: Names = None,
    quick: Quick = False,
    orders: Annotated[
        int | None, typer.Option(min=1, help="How many joints to sort by; all of them, if left out.")
    ] = None,
    outputs: Annotated[
        str | None, typer.Option(help="Which torques, counted from 1 and separated by commas, or all.")
    ] = None,
    data: Data = None,
    quiet: Quiet = False,
    out: Out = Path("robot-arm"),
    json: Json = False,
) -> None:
    from partita.studies.paper.robot_arm import experiment

    reproduce(experiment(method, quick, orders, outputs, data), out, json, quiet)


@study_command(paper_studies, "streaming-1d")
def streaming_1d(
    method: Names = None,
    quick: Quick = False,
    seeds: Seeds = 1,
    quiet: Quiet = False,
    out: Out = Path("streaming-1d"),
    json: Json = False,
) -> None:
    from partita.studies.paper.streaming_1d import experiment

    reproduce(experiment(method, quick, seeds), out, json, quiet)
