"""The commands of federations: a thin layer, as all of the command line is."""

import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

federation = typer.Typer()
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The server's folder.")]
SiteFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The site's own folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing before the end.")]
Metrics = Annotated[
    int | None, typer.Option(metavar="PORT", help="Prometheus metrics at http://127.0.0.1:PORT/metrics.")
]
# What a state has to say before there is a line about it.
PROGRESS = ("version", "total", "round", "accepted", "messages", "bytes_down", "bytes_up")


@federation.command("new-federation")
def new_federation(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    sites: Annotated[str, typer.Option(help="Names of sites, separated by commas.")] = "a,b,c",
    address: Annotated[str, typer.Option(help="Where sites will reach the server, host:port.")] = "127.0.0.1:9092",
    features: Annotated[str, typer.Option(help="Columns to predict from, separated by commas.")] = "x1,x2",
    target: Annotated[str, typer.Option(help="The column to predict.")] = "y",
    model: Annotated[str, typer.Option(help="As in `partita run`.")] = "logistic-regression",
) -> None:
    """Make the folder of a server and one for every site, with keys and certificates."""
    from partita.engines.flower import import_flower
    from partita.federation.folders import new_federation as make

    import_flower()
    made = make(folder, _names(sites), address, _names(features), target.strip(), model)
    for path in made:
        typer.echo(path)
    typer.echo(f"read {folder / 'README.md'} next")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@federation.command()
def serve(folder: Folder, metrics: Metrics = None, quiet: Quiet = False, json: Json = False) -> None:
    """Run a federation's server until its run is finished."""
    from partita.errors import RunMismatch
    from partita.federation.folders import read_server

    server = read_server(folder)
    if server.has_run:
        raise RunMismatch(f"{folder}: there is a run already; go on with: partita resume {folder}")
    _serve(server, metrics, quiet, json)


@federation.command()
def resume(folder: Folder, metrics: Metrics = None, quiet: Quiet = False, json: Json = False) -> None:
    """Carry on with a run, after `partita stop`, a crash, or with more rounds."""
    from partita.errors import InputError
    from partita.federation.folders import read_server

    server = read_server(folder)
    if not server.has_run:
        raise InputError(f"{folder}: there is no run yet; begin with: partita serve {folder}")
    _serve(server, metrics, quiet, json)


def _serve(server: Any, metrics: int | None, quiet: bool, json: bool) -> None:
    import threading

    from partita.federation.processes import serve as run
    from partita.federation.state import serve_metrics
    from partita.foundation.plain import to_json

    if not quiet and not json:
        typer.echo(f"server at {server.server.address}, for {', '.join(server.sites)}; Ctrl-C ends it", err=True)
    http = None if metrics is None else serve_metrics(server, metrics)
    if http is not None:
        threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        with Watch(quiet, json) as watch:
            state = run(server, watch)
    finally:
        if http is not None:
            http.shutdown()
            http.server_close()
    if json:
        typer.echo(to_json({"event": "summary", **state}))
    elif state["state"] == "finished":
        typer.echo(f"finished: {server.result}")
    else:
        typer.echo(f"{state['state']}: {state.get('reason') or 'go on with'}: partita resume {server.path}", err=True)
    if state["state"] != "finished":
        raise typer.Exit({"stalled": 3, "failed": 1}.get(state["state"], 0))


class Watch:
    """A progress bar, or a JSON object per change."""

    def __init__(self, quiet: bool, json: bool):
        from partita.telemetry import Progress

        self._bar, self._json = Progress("starting", quiet=quiet or json), json
        self._last: Any = None

    def __enter__(self) -> "Watch":
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(*error)

    def __call__(self, state: dict[str, Any]) -> None:
        from partita.foundation.plain import to_json

        ready = [site["site"] for site in state["sites"] if site["ready"]]
        missing = [site["site"] for site in state["sites"] if not site["ready"]]
        done, note = state.get("version", 0), f"{len(ready)} of {len(state['sites'])} sites ready"
        if missing:
            note += f", not {', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}"
        self._bar.show(done, state.get("total"), note, state["state"])
        change = (state["state"], done, tuple(ready))
        if self._json and change != self._last:
            typer.echo(to_json({"event": "state", **state}))
            sys.stdout.flush()
        self._last = change


@federation.command()
def site(
    folder: SiteFolder,
    accept: Annotated[
        bool, typer.Option("--accept", help="Accept what the server proposes first, if nothing has been accepted.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Be a site: wait for a server's tasks, and answer them from the data here."""
    from partita.federation.processes import run_site

    run_site(folder, lambda words: None if quiet else typer.echo(f"{datetime.now():%H:%M:%S} {words}"), accept)
    typer.echo(f"stopped; nothing is lost. Go on with: partita site {folder}", err=True)


@federation.command()
def accept(
    folder: SiteFolder, yes: Annotated[bool, typer.Option("--yes", help="Accept without being asked.")] = False
) -> None:
    """Look at what a server proposes to a site, and accept it; the site answers that and nothing else."""
    from json import dumps

    from partita.errors import InputError
    from partita.federation.folders import read_site
    from partita.federation.recipe import Recipe
    from partita.site.consent import Consent

    consent = Consent(read_site(folder).path)
    proposed = consent.proposed
    if proposed is None:
        known = "nothing new is proposed" if consent.accepted else "no server has proposed anything yet"
        raise InputError(f"{folder}: {known}; it is noted here when one asks, while this runs: partita site {folder}")
    # What is no recipe is never answered, whoever has put it there.
    Recipe.parsed(dumps(proposed))
    for name, section in proposed.items():
        # Escapes of JSON: nothing in it is obeyed by a terminal, and nothing is left out.
        typer.echo(f"{name}: {dumps(section)}")
    if not yes and not typer.confirm("Shall this site answer that?"):
        raise typer.Exit(1)
    consent.accept(proposed)
    typer.echo("accepted; the server asks again by itself, at first after some seconds, later every few minutes")


@federation.command()
def status(folder: Folder, json: Json = False) -> None:
    """How a federation is doing: sites, rounds, bytes."""
    from partita.federation.folders import read_server
    from partita.federation.state import barred, read_state
    from partita.foundation.plain import to_json

    server = read_server(folder)
    state, out = read_state(server), barred(server)
    state["sites"] = [{**row, "barred": out.get(row["site"])} for row in state["sites"]]
    if json:
        typer.echo(to_json(state))
        return
    from partita.report.terminal import print_table

    reason = f": {state['reason']}" if state.get("reason") else ""
    typer.echo(f"{folder}: {state['state']}{reason}")
    if all(state.get(name) is not None for name in PROGRESS):
        typer.echo(
            f"{state['version']} of {state['total']} updates, {state['round']:.1f} rounds; "
            f"accepted {state['accepted']:.2g} of the last; {state['messages']} messages, "
            f"{state['bytes_down']:,} bytes down, {state['bytes_up']:,} up"
        )
    if state["sites"]:
        print_table("", [_shown(row) for row in state["sites"]])
    for row in state["sites"]:
        if words := row["barred"] or row["problem"]:
            typer.echo(f"{row['site']}: {words}")


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    seen = row.get("last_seen")
    return {
        "site": row["site"],
        "status": _word(row),
        "last seen": "never" if seen is None else f"{max(0.0, time.time() - seen):.0f} s ago",
        "updates": row["updates"],
        "staleness": row.get("staleness"),
        "accepted": row.get("accepted"),
        "bytes down": row["bytes_down"],
        "bytes up": row["bytes_up"],
    }


def _word(row: dict[str, Any]) -> str:
    if row["barred"]:
        return row["barred"].partition(":")[0]
    return "ready" if row["ready"] else "connected" if row["connected"] else "away"


@federation.command()
def stop(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A server's or a site's folder.")]) -> None:
    """End the server or the site of a folder in good order; `resume` goes on."""
    from partita.federation.processes import stop as end
    from partita.telemetry import Progress

    with Progress(f"ending {folder}"):
        number = end(folder)
    typer.echo(f"{folder}: nobody is at work here" if number is None else f"{folder}: process {number} has ended")


@federation.command()
def retire(folder: Folder, site: Annotated[str, typer.Argument(metavar="SITE")]) -> None:
    """Divide a site's factor out of the posterior, for good; the others refine."""
    _request(folder, site, "retired")


@federation.command()
def readmit(folder: Folder, site: Annotated[str, typer.Argument(metavar="SITE")]) -> None:
    """Ask a site again that was quarantined."""
    _request(folder, site, "readmitted")


def _request(folder: Path, site: str, kind: Any) -> None:
    from partita.federation.folders import read_server
    from partita.federation.state import read_state, request

    server = read_server(folder)
    request(server, site, kind)
    state = read_state(server)
    when = "now" if state["serving"] else f"with: partita resume {folder}"
    more = "" if state["state"] != "finished" else " (the run is finished: raise its rounds or updates first)"
    typer.echo(f"{site} will be {kind} {when}{more}")
