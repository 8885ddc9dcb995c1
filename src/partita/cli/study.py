"""`partita study`: every study by name, the paper's among them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from partita.cli import paper
from partita.cli.options import keep_programs, study_command
from partita.studies.registry import describe_studies

studies = typer.Typer(help="Studies by name: the paper's, comparisons, faults.", invoke_without_command=True)
Kills = Annotated[int, typer.Argument(min=1, help="How many kills.")]
Some = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these.")]
Page = Annotated[Path | None, typer.Option(help="The page to write; one in docs/, if all are run.")]


@studies.callback()
def list_studies(context: typer.Context) -> None:
    """Run a study by its name; without one, say what there is and how long it takes."""
    if context.invoked_subcommand is None:
        typer.echo(describe_studies())


for name, function in {
    "federated": paper.federated,
    "sngd": paper.sngd,
    "vcl": paper.vcl,
    "banana": paper.banana,
    "robot-arm": paper.robot_arm,
    "streaming-1d": paper.streaming_1d,
}.items():
    study_command(studies, name)(function)


@study_command(studies, "regressions")
def regressions(
    names: Some = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small gaussian sets, against quadrature alone.")] = False,
    references: Annotated[
        bool, typer.Option("--references", help="Sample with NUTS and keep that, fit nothing.")
    ] = False,
    extremes: Annotated[bool, typer.Option("--extremes", help="Made-up data at the edges, too.")] = False,
    cache: Annotated[Path | None, typer.Option(help="Where draws are kept; the user's cache, if not given.")] = None,
    out: Page = None,
) -> None:
    from partita.studies.regressions.table import CACHE, keep_draws, run_table

    if references:
        keep_draws(names or (), cache or CACHE, typer.echo)
    else:
        run_table(typer.echo, names or (), quick, extremes, cache or CACHE, out)


@study_command(studies, "extremes")
def extremes() -> None:
    from partita.studies.regressions.extremes import run_extremes

    run_extremes(typer.echo)


@study_command(studies, "against-nuts")
def against_nuts(out: Page = None) -> None:
    from partita.studies.regressions.against_nuts import compare_with_nuts

    compare_with_nuts(typer.echo, out)


@study_command(studies, "numpyro-models")
def numpyro_models(names: Some = None, out: Page = None) -> None:
    from partita.studies.regressions.numpyro_models import compare_models

    compare_models(typer.echo, names or (), out)


@study_command(studies, "silo-statistics")
def silo_statistics(
    names: Some = None,
    bambi: Annotated[str | None, typer.Option(metavar="PYTHON", help="An interpreter that has bambi.")] = None,
    out: Page = None,
) -> None:
    from partita.studies.regressions.silo_statistics import compare_silos

    compare_silos(typer.echo, names or (), bambi, out)


@study_command(studies, "kill-and-resume")
def kill_and_resume(kills: Kills = 20) -> None:
    from partita.studies.faults.kill_and_resume import kill_and_resume as run

    exit_unless(run(typer.echo, kills))


@study_command(studies, "failpoints")
def failpoints(kills: Kills = 200) -> None:
    from partita.studies.faults.failpoints import kill_at_failpoints

    kill_at_failpoints(typer.echo, kills)


@study_command(studies, "torn-payloads")
def torn_payloads(kills: Kills = 200) -> None:
    from partita.studies.faults.torn_payloads import tear_payloads

    tear_payloads(typer.echo, lambda words: typer.echo(words, err=True), kills)


@study_command(studies, "soak")
def soak(
    runs: Annotated[int, typer.Argument(min=1, help="How many runs.")] = 100,
    updates: Annotated[int, typer.Argument(min=1, help="How many updates of each.")] = 300,
) -> None:
    from partita.studies.faults.soak import soak as run

    exit_unless(run(typer.echo, runs, updates))


@study_command(studies, "promises")
def promises() -> None:
    from partita.studies.promises import measure_promises

    measure_promises(typer.echo)


@study_command(studies, "heterogeneous")
def heterogeneous(
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds.")] = 60,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 3,
) -> None:
    from partita.studies.heterogeneous import compare_rules

    compare_rules(typer.echo, rounds, seeds)


@study_command(studies, "estimator-checks")
def estimator_checks() -> None:
    from partita.studies.estimator_checks import check_estimators

    keep_programs()
    check_estimators(typer.echo)


@study_command(studies, "pictures")
def pictures(
    names: Some = None,
    out: Annotated[Path, typer.Option(help="The folder for pictures.")] = Path("docs/images"),
) -> None:
    from partita.studies.pictures.drawing import draw_pictures

    draw_pictures(typer.echo, names or (), out)


def exit_unless(good: Any) -> None:
    """Exit code 1 says that something was found to be off."""
    if not good:
        raise typer.Exit(1)
