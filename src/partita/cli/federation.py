"""Commands of federations; what a site's people type is in `site.py`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from partita.cli.options import Quiet
from partita.cli.site import SiteFolder, approve, predict, site_commands
from partita.errors import InputError
from partita.foundation.text import MOST_REASON, clean

federation = typer.Typer()
federation.add_typer(site_commands, name="site")
federation.command("predict")(predict)
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The server's folder.")]
SiteName = Annotated[str, typer.Argument(metavar="SITE", help="The site's name, as in federation.toml.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Metrics = Annotated[
    int | None, typer.Option(metavar="PORT", help="Prometheus metrics at http://127.0.0.1:PORT/metrics.")
]


def _check_belongs(options: str, belongs: bool, *given: object) -> None:
    """Check that options are given only where they mean something."""
    if not belongs and any(one is not None and one != [] for one in given):
        raise InputError(f"{options}: does not go with the other options: see partita new-federation --help")


@federation.command("new-federation")
def new_federation(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    sites: Annotated[str, typer.Option(help="Names of sites, separated by commas.")] = "a,b,c",
    address: Annotated[str, typer.Option(help="Where sites will reach the server, host:port.")] = "127.0.0.1:9092",
    features: Annotated[
        str | None, typer.Option(help="Columns to predict from, separated by commas; x1,x2 if not given.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The column to predict; y if not given, where the model predicts one.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="As in `partita run`; logistic-regression if not given.")] = None,
    formula: Annotated[
        str | None, typer.Option(help='In the place of these: a formula, "ill ~ age + C(ward) + (1 | ward)".')
    ] = None,
    family: Annotated[
        str | None, typer.Option(help="Of a formula: gaussian (if not given), bernoulli, poisson, ….")
    ] = None,
    program: Annotated[
        str | None,
        typer.Option(metavar="ENTRY", help="Or a program, package.module:name, of a package that all sites have."),
    ] = None,
    program_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Or one in a file that calls it `model`, which sites approve.")
    ] = None,
    summary: Annotated[
        str | None, typer.Option(metavar="COLUMNS", help="Or table 1 of these columns, separated by commas: no fit.")
    ] = None,
    by: Annotated[str | None, typer.Option(help="Of a summary: the column that breaks all others down.")] = None,
    cross: Annotated[
        list[str] | None, typer.Option(metavar="A,B", help="Of a summary: a cross-table; may be repeated.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="ARGUMENT=COLUMN,…", help="An argument of a program and its column, or several."),
    ] = None,
    local: Annotated[
        str | None, typer.Option(metavar="PLATE=ARGUMENT", help="A program's plate of groups, and who names them.")
    ] = None,
) -> None:
    """Make the folder of a server and one for every site, with keys and certificates.

    DIR is a new folder. What is computed is a model on columns, a formula, or a program.
    """
    from partita.engines.flower import import_flower
    from partita.federation.new import make_planned, plan_formula, plan_model, plan_program, plan_summary
    from partita.models import REGISTRY

    import_flower()
    names, code = _split(sites), program or program_file
    if sum(one is not None for one in (formula, program, program_file, summary)) > 1:
        raise InputError("--formula, --program, --program-file, --summary: give one of them")
    elsewhere = code is not None or summary is not None
    _check_belongs("--features, --target, --model", formula is None and not elsewhere, features, target, model)
    _check_belongs("--family", formula is not None, family)
    _check_belongs("--data, --local", code is not None, data, local)
    _check_belongs("--by, --cross", summary is not None, by, cross)
    if formula is not None:
        plan = plan_formula(formula, family or "gaussian", names)
    elif summary is not None:
        plan = plan_summary(_split(summary), by, [_split(pair) for pair in cross or ()])
    elif code is not None:
        columns = {argument: _one_or_list(_split(one)) for argument, one in map(_split_pair, data or ())}
        plan = plan_program(code, columns, dict([_split_pair(local)] if local else ()), names)
    else:
        model = "logistic-regression" if model is None else model
        predicts = model not in REGISTRY or REGISTRY[model].takes_target
        predicted = target.strip() if target is not None else "y" if predicts else None
        plan = plan_model(_split("x1,x2" if features is None else features), predicted, model, names)
    for path in make_planned(folder, names, address, plan):
        typer.echo(path)
    typer.echo(f"read {folder / 'README.md'} next")


def _split_pair(text: str) -> tuple[str, str]:
    name, equals, rest = text.partition("=")
    if not equals:
        raise InputError(f"{text!r}: expected NAME=…")
    return name.strip(), rest.strip()


def _one_or_list(names: list[str]) -> str | list[str]:
    return names[0] if len(names) == 1 else names


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


@federation.command()
def serve(folder: Folder, metrics: Metrics = None, quiet: Quiet = False, json: Json = False) -> None:
    """Run a federation's server until its run is finished.

    DIR is the server's folder.
    """
    _serve(folder, False, metrics, quiet, json)


@federation.command()
def resume(folder: Folder, metrics: Metrics = None, quiet: Quiet = False, json: Json = False) -> None:
    """Carry on with a run, after `partita stop`, a crash, or with more rounds.

    DIR is the server's folder.
    """
    _serve(folder, True, metrics, quiet, json)


def _serve(folder: Path, resume: bool, metrics: int | None, quiet: bool, json: bool) -> None:
    from partita.federation.greeting import describe_start

    # What is imported below takes seconds.
    if not quiet and not json and (words := describe_start(folder)):
        typer.echo(clean(words, MOST_REASON), err=True)
    from partita.federation.serving import EXIT_CODES, Watch, describe_end, open_server, run_server
    from partita.foundation.plain import to_json

    server = open_server(folder, resume)
    with Watch(quiet, _echo_at_once if json else None) as watch:
        state = run_server(server, watch, metrics)
    if json:
        typer.echo(to_json({"event": "summary", **state}))
    else:
        typer.echo(describe_end(server, state), err=state["state"] != "finished")
    raise typer.Exit(EXIT_CODES.get(state["state"], 0))


def _echo_at_once(line: str) -> None:
    typer.echo(line)
    sys.stdout.flush()


@federation.command()
def accept(
    folder: SiteFolder, yes: Annotated[bool, typer.Option("--yes", help="Accept without being asked.")] = False
) -> None:
    """Look at what a server proposes to a site, and approve it: the same as `partita site approve`.

    DIR is the site's own folder.
    """
    approve(folder, yes)


@federation.command()
def status(folder: Folder, json: Json = False) -> None:
    """How a federation is doing: sites, rounds, bytes; who is quarantined, and why.

    DIR is the server's folder.
    """
    from partita.federation.folders import read_server
    from partita.federation.status import describe_problems, describe_progress, read_status, tabulate_sites
    from partita.foundation.plain import to_json
    from partita.report.terminal import print_table

    found = read_status(read_server(folder))
    if json:
        typer.echo(to_json(found))
        return
    typer.echo(f"{folder}: " + "\n".join(describe_progress(found)))
    if found["sites"]:
        print_table("", tabulate_sites(found))
    for line in describe_problems(found):
        typer.echo(line)


@federation.command()
def stop(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A server's or a site's folder.")]) -> None:
    """End the server or the site of a folder in good order; `resume` goes on.

    DIR is a server's or a site's folder.
    """
    from partita.federation.processes import stop as end
    from partita.telemetry import Progress

    with Progress(f"ending {folder}"):
        number = end(folder)
    typer.echo(f"{folder}: nobody is at work here" if number is None else f"{folder}: process {number} has ended")


@federation.command()
def retire(folder: Folder, site: SiteName) -> None:
    """Divide a site's factor out of the posterior, for good; the others refine.

    DIR is the server's folder, SITE the site's name, as in federation.toml.
    """
    from partita.federation.state import ask_server

    typer.echo(ask_server(folder, site, "retired"))


@federation.command()
def readmit(folder: Folder, site: SiteName) -> None:
    """Ask a site again that was quarantined.

    DIR is the server's folder, SITE the site's name, as in federation.toml.
    """
    from partita.federation.state import ask_server

    typer.echo(ask_server(folder, site, "readmitted"))


@federation.command()
def invite(
    folder: Folder, site: Annotated[str, typer.Argument(metavar="SITE", help="A name that no site has had.")]
) -> None:
    """Let one more site in, also while the server runs: its folder, with a key, is made in for-sites/SITE.

    DIR is the server's folder, SITE a name that no site has had. The site becomes part of the run as soon as it says
    that it can work; the posterior does not change by that.
    """
    from partita.federation.membership import invite as let_in

    typer.echo(let_in(folder, site))


@federation.command()
def rotate(
    folder: Folder,
    site: SiteName,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `partita site rotate` has made at the site.")],
) -> None:
    """Put a site's next key in the place of its key, also while the server runs.

    DIR is the server's folder, SITE the site's name, FILE what the site has made; both keys have signed it.
    """
    from partita.federation.membership import rotate as put

    typer.echo(put(folder, site, file))


@federation.command()
def revoke(
    folder: Folder,
    site: SiteName,
    forget: Annotated[bool, typer.Option("--forget", help="Divide the site's factor out, for good.")] = False,
) -> None:
    """Close the door for a site's key, at once and for good; its factor stays in the posterior.

    DIR is the server's folder, SITE the site's name.
    """
    from partita.federation.membership import revoke as close

    typer.echo(close(folder, site, forget))


@federation.command()
def verify(folder: Folder, json: Json = False) -> None:
    """Check of every update in a server's journal that its site has signed it.

    DIR is the server's folder. The exit code is 1, if there is one whose signature is missing or does not fit.
    """
    from partita.federation.folders import read_server
    from partita.federation.signatures import Tally, Verifier
    from partita.foundation.plain import to_json

    tally = Tally()
    for verdict in Verifier(read_server(folder)).verdicts():
        tally.add(verdict)
        if json:
            typer.echo(to_json(verdict.row()))
    if json:
        typer.echo(to_json({"event": "summary", **tally.row()}))
    else:
        for line in tally.describe():
            typer.echo(line)
    raise typer.Exit(1 if tally.missing else 0)
