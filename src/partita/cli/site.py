"""Commands of a federation's site: be one, look at what is asked of it and approve it, and see what left it."""

from collections import deque
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

from partita.cli.options import Json, Quiet

SiteFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The site's own folder.")]
# What `partita site DIR` is short for.
USUAL = "run"


class SiteGroup(TyperGroup):
    """Commands of a site, the usual one without its name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help"):
            args = [USUAL, *args]
        return super().parse_args(ctx, args)


site_commands = typer.Typer(cls=SiteGroup, no_args_is_help=True)


@site_commands.callback()
def site() -> None:
    """Be a site: wait for a server's tasks, and answer them from the data here.

    `partita site DIR` is `partita site run DIR`. DIR is the site's own folder.
    """


@site_commands.command(USUAL)
def run(
    folder: SiteFolder,
    accept: Annotated[
        bool, typer.Option("--accept", help="Approve what the server proposes first, if nothing has been approved.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Wait for a server's tasks, and answer them from the data here.

    DIR is the site's own folder.
    """
    from partita.site.process import run_site

    run_site(folder, lambda words: None if quiet else typer.echo(f"{datetime.now():%H:%M:%S} {words}"), accept)
    typer.echo(f"stopped; nothing is lost. Go on with: partita site {folder}", err=True)


@site_commands.command()
def approve(
    folder: SiteFolder,
    yes: Annotated[bool, typer.Option("--yes", help="Approve without being asked.")] = False,
    digest: Annotated[
        str | None, typer.Option(help="Approve this recipe only: its digest, or at least six characters of it.")
    ] = None,
) -> None:
    """Look at what a server proposes to a site, and approve it; the site answers that and nothing else.

    DIR is the site's own folder.
    """
    from partita.site.approval import describe_proposal, read_proposal
    from partita.site.consent import Consent

    proposed = read_proposal(folder, digest)
    for line in describe_proposal(folder, proposed):
        typer.echo(line)
    if not yes and not typer.confirm("Shall this site answer that?"):
        raise typer.Exit(1)
    Consent(folder).accept(proposed)
    typer.echo("approved; the server asks again by itself, at first after some seconds, later every few minutes")


@site_commands.command()
def rotate(folder: SiteFolder) -> None:
    """Make another key for a site, and a file for whoever runs the server, who puts it in the place of the first.

    DIR is the site's own folder. The private key stays in it. The site takes its new key when the server has.
    """
    from partita.foundation.keys import fingerprint, read_own_public_key
    from partita.site.rotation import next_key, rotate_key
    from partita.site.settings import read_site

    file = rotate_key(folder)
    settings = read_site(folder)
    typer.echo(f"{file}: hand it to whoever runs the server, for: partita rotate DIR {settings.name} {file.name}")
    typer.echo(f"its fingerprint, to be compared by telephone: {fingerprint(read_own_public_key(next_key(settings)))}")


@site_commands.command()
def audit(
    folder: SiteFolder,
    last: Annotated[int, typer.Option(min=0, max=1_000_000, help="How many lines of the log are shown.")] = 20,
    json: Json = False,
) -> None:
    """What left a site, and what was refused: the lines of its audit log, checked, and summed up.

    DIR is the site's own folder. The exit code is 1, if lines are missing or were changed.
    """
    from partita.foundation.plain import to_json
    from partita.report.terminal import print_table
    from partita.site.audit import describe_line, describe_summary, read_audit

    lines: deque[Any] = deque(maxlen=last)
    summary = read_audit(folder, lambda row: typer.echo(to_json(row)) if json else lines.append(describe_line(row)))
    if json:
        typer.echo(to_json({"event": "summary", **summary.row()}))
    else:
        if lines:
            print_table("", list(lines))
        for words in describe_summary(summary):
            typer.echo(words)
    raise typer.Exit(1 if summary.problems else 0)


def predict(
    folder: SiteFolder,
    rows: Annotated[Path, typer.Argument(metavar="ROWS", help="A CSV file with a header.")],
    level: Annotated[float, typer.Option(help="The probability of the intervals.")] = 0.95,
    out: Annotated[Path | None, typer.Option(help="A CSV file to write; standard output, if not given.")] = None,
    json: Json = False,
) -> None:
    """Predict rows at a site, with intervals, from the posterior that it was sent last: no server is needed.

    DIR is the site's own folder, ROWS a CSV file with a header.
    """
    from partita.cli.options import keep_programs
    from partita.federation.prediction import predict_rows
    from partita.foundation.archives import write_text
    from partita.foundation.plain import to_json

    keep_programs()
    found = predict_rows(folder, rows, level)
    if out is not None:
        write_text(out, found.to_csv())
    if json:
        for row in found.rows() if out is None else ():
            typer.echo(to_json(row))
        typer.echo(to_json({"event": "summary", **found.describe()}))
        return
    if out is None:
        typer.echo(found.to_csv(), nl=False)
    for words in found.notes():
        typer.echo(words, err=True)
