"""`partita summary`: table 1 of tables that stay where they are, in files or at the sites of a federation."""

from pathlib import Path
from typing import Annotated, Any

import typer

from partita.cli.options import Json, Quiet


def summary(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="TABLES",
            help="A CSV or Parquet file for each site, named as the site is; or the folder of a federation's server.",
        ),
    ],
    columns: Annotated[str, typer.Option(help="Columns, separated by commas; all, if not given.")] = "",
    by: Annotated[str | None, typer.Option(help="Break all columns down by the levels of this one.")] = None,
    categorical: Annotated[str, typer.Option(help="Columns of numbers that are levels, separated by commas.")] = "",
    cross: Annotated[
        list[str] | None, typer.Option(metavar="A,B", help="Count rows by these two columns together; may be repeated.")
    ] = None,
    fewest_per_cell: Annotated[
        int | None, typer.Option(min=1, help="Fewer rows are never counted by themselves; 3, if not given.")
    ] = None,
    how: Annotated[str | None, typer.Option("--format", help="text, html, csv or latex.")] = None,
    out: Annotated[Path | None, typer.Option(help="A file to write; standard output, if not given.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Ask the sites of a federation, though there is one.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Sum up tables of several sites: counts, means, quartiles, levels and cross-tables, without cells of a few rows.

    TABLES are files, one for each site, which are called as their files are; or the folder of a federation's server,
    whose sites are asked, and which gets summary.txt, .html, .csv and .tex.
    """
    from partita.foundation.archives import write_text
    from partita.foundation.plain import to_json
    from partita.report.summaries import describe, list_values, render

    given = {
        "columns": columns,
        "by": by,
        "categorical": categorical,
        "cross": cross,
        "fewest-per-cell": fewest_per_cell,
    }
    if len(sources) == 1 and sources[0].is_dir():
        found = _sum_up_federation(sources[0], given, again, quiet or json, writes=how is None and out is None)
    else:
        found = _sum_up_files(sources, given)
    if out is not None:
        write_text(out, render(found, how or "text"))
    if json:
        for row in list_values(found) if out is None else ():
            typer.echo(to_json(row))
        typer.echo(to_json({"event": "summary", **describe(found)}))
    elif out is None:
        typer.echo(render(found, how or "text"), nl=False)
    else:
        typer.echo(out)


def _sum_up_files(sources: list[Path], given: dict[str, Any]) -> Any:
    from partita.summaries import summary as sum_up

    pairs: Any = [tuple(split_names(pair)) for pair in given["cross"] or ()]
    return sum_up(
        list(map(str, sources)),
        split_names(given["columns"]),
        by=given["by"],
        categorical=split_names(given["categorical"]),
        cross=pairs,
        fewest_per_cell=3 if given["fewest-per-cell"] is None else given["fewest-per-cell"],
    )


def _sum_up_federation(folder: Path, given: dict[str, Any], again: bool, quiet: bool, writes: bool) -> Any:
    from partita.errors import InputError
    from partita.federation.serving import Watch
    from partita.federation.summaries import sum_up_federation, write_formats

    for name, value in given.items():
        if value:
            raise InputError(
                f"--{name}: is what [summary] of {folder / 'federation.toml'} says, and sites have approved"
            )
    with Watch(quiet) as watch:
        found = sum_up_federation(folder, again, watch)
    if writes:
        for path in write_formats(folder, found):
            if not quiet:
                typer.echo(path, err=True)
    return found


def split_names(names: str) -> list[str]:
    """Names that are separated by commas."""
    return [name.strip() for name in names.split(",") if name.strip()]
