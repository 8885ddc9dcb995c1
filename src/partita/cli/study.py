"""`partita study` and `partita reproduce`: commands that are made of the registry of studies.

A study is imported when its command is called; its options are the arguments of its function.
"""

import inspect
import sys
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from typer.core import TyperCommand, TyperGroup

from partita.cli.interrupt import suppress_interrupt
from partita.cli.options import Json, Quiet, keep_programs, show_end
from partita.studies.registry import STUDIES, Study, describe_studies

Out = Annotated[Path, typer.Option(help="Folder for results; what is finished there is not run again.")]


class StudyCommand(TyperCommand):
    """The command of a study that has not been imported yet: its name, and what it is."""

    def __init__(self, study: Study):
        super().__init__(study.name, help=study.words)
        self.study = study

    def make_context(self, *arguments: Any, **settings: Any) -> click.Context:
        """Hand over to the command with its options, now that somebody calls it."""
        made = typer.Typer(add_completion=False)
        made.command(self.name, help=self.help)(build_command(self.study))
        return typer.main.get_command(made).make_context(*arguments, **settings)


class Studies(TyperGroup):
    """All studies by name."""

    shown: tuple[Study, ...] = STUDIES

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        for study in self.shown:
            self.add_command(StudyCommand(study))


class Experiments(Studies):
    """The paper's experiments by name."""

    shown = tuple(study for study in STUDIES if study.is_experiment)


def build_command(study: Study) -> Any:
    """A function whose options are those of the study, and those of all experiments if it is one."""
    function = study.find_function()
    own = list(inspect.signature(function).parameters.values())

    def run_experiment(quiet: Quiet = False, out: Out = Path(study.name), json: Json = False, **options: Any) -> None:
        reproduce(function(**options), out, json, quiet)

    def run(**options: Any) -> None:
        # False says that something was found to be off; most have nothing to say.
        if function(typer.echo, **options) is False:
            raise typer.Exit(1)

    command: Any = run_experiment if study.is_experiment else run
    shared = list(inspect.signature(command).parameters.values())[:-1]
    parameters = [*own, *shared] if study.is_experiment else own[1:]
    keyword_only = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    command.__signature__ = inspect.Signature(keyword_only)
    command.__annotations__ = {one.name: one.annotation for one in keyword_only}
    return command


def reproduce(experiment: Any, out: Path, json: bool, quiet: bool) -> None:
    """Run an experiment with a progress bar or JSON lines, then write its tables and pages."""
    from partita.studies.pages import write_pages
    from partita.studies.progress import Bar, Lines
    from partita.studies.runner import run_study

    keep_programs()
    if experiment.notice:
        typer.echo(experiment.notice, err=True)
    watch = Lines(sys.stdout, experiment.presentation.keys) if json else Bar(quiet)
    with suppress_interrupt("finished runs are kept. Go on with the same command"):
        rows = run_study(experiment.cells, out, experiment.speed, watch)
    table, pages = write_pages(experiment, rows, out)
    show_end(json, {"rows": table, "pages": pages}, experiment.presentation.title, table, ", ".join(pages))


paper_studies = typer.Typer(help="The paper's experiments, with its plots.", cls=Experiments, no_args_is_help=True)
studies = typer.Typer(
    help="Studies by name: the paper's, comparisons, faults.", cls=Studies, invoke_without_command=True
)


@studies.callback()
def list_studies(context: typer.Context) -> None:
    """Run a study by its name; without one, say what there is and how long it takes."""
    if context.invoked_subcommand is None:
        typer.echo(describe_studies())
