"""`partita summary`: table 1 of tables that stay where they are."""

from pathlib import Path
from typing import Annotated

import typer

from partita.cli.options import Json


def summary(
    sources: Annotated[
        list[Path], typer.Argument(metavar="TABLES", help="A CSV or Parquet file for each site, named as the site is.")
    ],
    columns: Annotated[str, typer.Option(help="Columns, separated by commas; all, if not given.")] = "",
    by: Annotated[str | None, typer.Option(help="Break all columns down by the levels of this one.")] = None,
    categorical: Annotated[str, typer.Option(help="Columns of numbers that are levels, separated by commas.")] = "",
    cross: Annotated[
        list[str] | None, typer.Option(metavar="A,B", help="Count rows by these two columns together; may be repeated.")
    ] = None,
    fewest_per_cell: Annotated[
        int, typer.Option("--fewest-per-cell", min=1, help="Fewer rows are never counted by themselves.")
    ] = 3,
    how: Annotated[str, typer.Option("--format", help="text, html, csv or latex.")] = "text",
    out: Annotated[Path | None, typer.Option(help="A file to write; standard output, if not given.")] = None,
    json: Json = False,
) -> None:
    """Sum up tables of several sites: counts, means, quartiles, levels and cross-tables, without cells of a few rows.

    TABLES are files, one for each site, which are called as their files are.
    """
    from partita.foundation.archives import write_text
    from partita.foundation.plain import to_json
    from partita.report.summaries import describe, list_values, render
    from partita.summaries import summary as sum_up

    pairs = [tuple(split_names(pair)) for pair in cross or ()]
    found = sum_up(
        list(map(str, sources)),
        split_names(columns),
        by=by,
        categorical=split_names(categorical),
        cross=pairs,  # type: ignore[arg-type]
        fewest_per_cell=fewest_per_cell,
    )
    if out is not None:
        write_text(out, render(found, how))
    if json:
        for row in list_values(found) if out is None else ():
            typer.echo(to_json(row))
        typer.echo(to_json({"event": "summary", **describe(found)}))
    elif out is None:
        typer.echo(render(found, how), nl=False)
    else:
        typer.echo(out)


def split_names(names: str) -> list[str]:
    """Names that are separated by commas."""
    return [name.strip() for name in names.split(",") if name.strip()]
