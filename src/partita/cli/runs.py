"""`partita demo`, `run`, `report` and `watch`."""

import shlex
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from partita.cli.interrupt import suppress_interrupt
from partita.cli.options import Json, Quiet, RunFolder, RunOrFile, keep_programs, listen, show_end

run_commands = typer.Typer()


@run_commands.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for report.html.")] = Path(),
    seed: Annotated[int, typer.Option(help="Of the split and of all randomness.")] = 0,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Fit digits spread over ten sites, six ways, and write report.html."""
    from partita.report import write_report
    from partita.studies.demo import build_report, run_demo

    keep_programs()
    with suppress_interrupt("nothing was kept; begin again with: partita demo") as look:
        outcomes, digits = run_demo(seed, listen(json, quiet, look))
    page = write_report(out / "report.html", build_report(outcomes, digits))
    rows = [outcome.row for outcome in outcomes]
    show_end(json, {"rows": rows, "report": str(page)}, "Digits over ten sites: test set of 359", rows, str(page))


@run_commands.command()
def run(
    config: Annotated[Path, typer.Argument(help="A TOML file.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Take precedence over the file."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME if not given.")] = None,
    resume: Annotated[bool, typer.Option(help="Carry on with the run in that folder.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Fit the model that a file describes, keep the run in a folder, and write its report.

    CONFIG is a TOML file.
    """
    from partita.foundation.plain import to_json
    from partita.launch import prepare_run
    from partita.report.regression import build_tables
    from partita.report.terminal import print_table

    keep_programs()
    folder = out or Path("runs") / config.stem
    prepared = prepare_run(config, settings or (), folder, quiet or json)
    with suppress_interrupt(explain_resuming(config, folder, settings or ())) as look:
        row = prepared.fit(resume, listen(json, quiet, look))
    if row is not None and json:
        typer.echo(to_json({"event": "regression", **row}))
    elif row is not None:
        for caption, rows in build_tables(row).items():
            print_table(caption, list(rows))
    show_report(folder, json)


def explain_resuming(config: Path, folder: Path, settings: Sequence[str]) -> str:
    changed = [f"--set={one}" for one in settings]
    again = shlex.join(["partita", "run", str(config), *changed, "--out", str(folder), "--resume"])
    return f"every finished update is kept. Go on with: {again}"


@run_commands.command()
def report(place: RunOrFile, json: Json = False) -> None:
    """Write DIR/report.html from what DIR holds; or a page beside FILE, from the history that is saved in it.

    DIR is the folder of a run, FILE a saved result, estimator or stream.
    """
    show_report(place, json)


def show_report(folder: Path, json: bool) -> None:
    """Write the page of one run, and print its summary."""
    from partita.launch import write_run_report

    words, row, page = write_run_report(folder)
    show_end(json, {**row, "report": str(page)}, words, [row], str(page))


@run_commands.command()
def watch(
    folder: RunFolder,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On 127.0.0.1; any that is free, if not given.")] = 0,
    terminal: Annotated[bool, typer.Option("--terminal", help="Here, until the run is finished.")] = False,
    json: Json = False,
) -> None:
    """Look at a run while it goes on: its report, live, in a browser on this machine or here.

    DIR is the folder of the run, or of a federation's server.
    """
    from partita.foundation.plain import to_json
    from partita.launch import follow_run
    from partita.report.live import serve_page
    from partita.report.terminal import watch as watch_here

    follower = follow_run(folder)
    if not follower.has_begun:
        typer.echo(f"{folder}: no run there yet; waiting for one to begin", err=True)
    with suppress(KeyboardInterrupt):
        if terminal:
            watch_here(follower)
            return
        with serve_page(follower, port) as url:
            words = f"{folder}: {url} (only from this machine; Ctrl-C ends watching, not the run)"
            typer.echo(to_json({"event": "watching", "run": str(folder), "url": url}) if json else words)
            sys.stdout.flush()
            threading.Event().wait()
