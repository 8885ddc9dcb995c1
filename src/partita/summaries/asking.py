"""How tables are summed up: sites are asked what their columns hold, then for counts in cells that they agree on."""

from collections.abc import Sequence
from typing import Any

from partita.designs.tallies import Cut
from partita.errors import InputError
from partita.formulas.silos import Connection, Silos
from partita.foundation.checks import check_count, import_extra
from partita.summaries.agreement import agree_on_cut, choose_names
from partita.summaries.table_one import Summary
from partita.wire.engine import Engine
from partita.wire.questions import Outline, OutlineAnswer, Tabulate


def summary(
    sites: Any,
    columns: Sequence[str] = (),
    *,
    by: str | None = None,
    categorical: Sequence[str] = (),
    cross: Sequence[tuple[str, str]] = (),
    fewest_per_cell: int = 3,
    engine: Engine | None = None,
) -> Summary:
    """Sum up tables at several sites, none of which is shown to another: table 1 of a paper.

    Args:
        sites: by the name of each site, a frame, a CSV or Parquet file, or a function that loads a frame where the site
            is; a list of files; or a pattern, data/*.csv.
        columns: which of them; all that every site has, if none are named.
        by: a column of levels by which all others are broken down.
        categorical: columns of numbers that are levels.
        cross: pairs of columns of levels whose rows are counted together.
        fewest_per_cell: fewer rows are never counted by themselves, but together with others.
        engine: what carries questions to sites; in this process, if not given.

    Sites tell how many rows there are in cells of at least `fewest_per_cell`, and means and squares of numbers. Nothing
    else of their tables is known here, nor who has the smallest number or the largest.
    """
    for module, package in (("polars", "polars"), ("pandas", "pandas")):
        import_extra(module, package, "formulas")
    check_count(fewest_per_cell=fewest_per_cell)
    with Silos.of(sites, engine).connected() as connection:
        return ask_for_summary(connection, columns, by, categorical, cross, fewest_per_cell)


def ask_for_summary(
    connection: Connection,
    columns: Sequence[str],
    by: str | None,
    categorical: Sequence[str],
    cross: Sequence[tuple[str, str]],
    fewest: int,
) -> Summary:
    """The same of sites that are connected."""
    pairs = tuple(_check_pair(pair) for pair in cross)
    wanted = _name_columns(columns, by, pairs)
    answers = connection.ask(Outline(wanted, tuple(categorical), fewest))
    cuts, notes = _agree(dict(zip(connection.sites, answers, strict=True)))
    known = {cut.name: cut for cut in cuts}
    for name in [*([] if by is None else [by]), *(one for pair in pairs for one in pair)]:
        if name not in known or known[name].levels is None:
            raise InputError(
                f"column {name!r}: has to have levels; if its numbers are levels, name it in `categorical`"
            )
    question = Tabulate(tuple(cuts), by, pairs, fewest)
    tables = connection.ask(question)
    return Summary(question, dict(zip(connection.sites, tables, strict=True)), tuple(notes))


def _check_pair(pair: Any) -> tuple[str, str]:
    if isinstance(pair, str) or len(pair) != 2 or pair[0] == pair[1] or not all(isinstance(one, str) for one in pair):
        raise InputError(f"cross: expected pairs of different columns, got {pair!r}")
    return pair[0], pair[1]


def _name_columns(columns: Sequence[str], by: str | None, pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The columns that sites have to have; none, for all of them."""
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise InputError(f"columns: expected a list of names, got {columns!r}")
    if not columns:
        return ()
    more = [*([] if by is None else [by]), *(name for pair in pairs for name in pair)]
    return tuple(dict.fromkeys([*columns, *more]))


def _agree(answers: dict[str, OutlineAnswer]) -> tuple[list[Cut], list[str]]:
    """How all columns are cut, and what has to be said of them."""
    outlines = {site: {one.name: one for one in answer.columns} for site, answer in answers.items()}
    names, notes = choose_names({site: answer.columns for site, answer in answers.items()})
    cuts = []
    for name in names:
        cut, note = agree_on_cut(name, {site: own[name] for site, own in outlines.items()})
        cuts += [] if cut is None else [cut]
        notes += [note] if note else []
    return cuts, notes
