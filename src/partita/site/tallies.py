"""A site's rows counted in cells, none of which is of a few people: small cells are counted together with others.

What a site tells of one column is one way to part all of its rows into cells with at least `fewest` rows each, or none,
and sums over such cells. So no difference of numbers that left is about fewer rows:

* Levels that few rows have are one cell together, with the next smallest level if they still are few.
* Where a column is broken down by another one, parts in which a cell would be small are counted together, for all
  levels, and with the next smallest part if need be. Of the table behind it, of which its margins are known too, every
  cell could then be any number in a range that is at least `fewest` wide.
* Small bins of a histogram are counted together with neighbours.
* Where all rows but a few have one value, means and squares would tell the few: such parts are counted together, too,
  and nothing is told of a column of which all rows are so.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.designs.columns import to_text
from partita.designs.tallies import LONGEST_LEVEL, Cut
from partita.site.outlines import read_numbers
from partita.wire.questions import Tabulate, TabulateAnswer

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Parts:
    """A site's rows in parts, each with enough rows or none.

    Args:
        of_row: the part of each row.
        of_cell: the part of each cell of the column by which rows are parted; empty, if there is none.
        sizes: rows of each part.
    """

    of_row: np.ndarray
    of_cell: np.ndarray
    sizes: np.ndarray


def tabulate(frame: Any, question: Tabulate) -> TabulateAnswer:
    """All that a question asks of a table."""
    fewest, cuts = question.fewest, {cut.name: cut for cut in question.columns}
    cells = {name: find_cells(frame[name], cut) for name, cut in cuts.items() if cut.levels is not None}
    by = question.by
    parts = part_rows(None if by is None else cells[by], 0 if by is None else cuts[by].cells, len(frame), fewest)
    tallies = [
        {}
        if cut.name == by
        else tally_numbers(frame[cut.name], cut, parts, fewest)
        if cut.levels is None
        else tally_levels(cells[cut.name], cut, parts, fewest)
        for cut in question.columns
    ]
    for first, second in question.crosses:
        tallies.append(tally_cross(cells[first], cells[second], cuts[first], cuts[second], fewest))
    return TabulateAnswer(len(frame), parts.of_cell, parts.sizes, tuple(tallies))


def part_rows(cells: np.ndarray | None, number: int, rows: int, fewest: int) -> Parts:
    """Parts by the cells of a column, small ones together; one part, without a column."""
    if cells is None:
        return Parts(np.zeros(rows, int), np.empty(0, int), np.array([rows]))
    groups = group_cells(np.bincount(cells, minlength=number), fewest)
    of_row = groups[cells]
    return Parts(of_row, groups, np.bincount(of_row, minlength=groups.max() + 1))


def find_cells(column: Any, cut: Cut) -> np.ndarray:
    """The cell of each row, for a column of levels: its level, the others' cell, or that of rows that miss it."""
    import pandas

    assert cut.levels is not None
    codes, items = pandas.factorize(column.astype(object), use_na_sentinel=True)
    place = {level: number for number, level in enumerate(cut.levels)}
    texts = [text if len(text) <= LONGEST_LEVEL else "" for text in to_text(items)]
    numbers = np.array([place.get(text, len(place)) for text in texts] + [len(place) + 1])
    return np.asarray(numbers[codes])


def group_cells(counts: np.ndarray, fewest: int) -> np.ndarray:
    """The group of each cell: its own, or the last one for all that few rows have."""
    few = (counts > 0) & (counts < fewest)
    while 0 < counts[few].sum() < fewest and np.any(counts[~few]):
        others = np.flatnonzero(~few & (counts > 0))
        few[others[np.argmin(counts[others])]] = True
    groups = np.cumsum(~few) - 1
    groups[few] = np.sum(~few)
    return groups


def pool_parts(table: np.ndarray, fewest: int) -> np.ndarray:
    """The group of each part, for a table [cells, parts]: its own, or the last one, so that no cell of it is small.

    Cells that all parts together have few of are no concern here: `group_cells` comes first.
    """
    pooled = np.any((table > 0) & (table < fewest), axis=0)
    while pooled.any() and not pooled.all():
        together = table[:, pooled].sum(axis=1)
        if not np.any((together > 0) & (together < fewest)):
            break
        # Empty parts last: they help nobody.
        sizes = np.where(table.sum(axis=0) > 0, table.sum(axis=0), np.inf)
        others = np.flatnonzero(~pooled)
        pooled[others[np.argmin(sizes[others])]] = True
    groups = np.cumsum(~pooled) - 1
    groups[pooled] = np.sum(~pooled)
    return groups


def group_bins(counts: np.ndarray, fewest: int) -> np.ndarray:
    """Counts of bins, in which small ones are counted in the bin that begins their group; -1 in the others of it."""
    found = np.full(len(counts), -1)
    start, filled = 0, -1
    total = 0
    for place, count in enumerate(counts.tolist()):
        total += count
        if 0 < total < fewest:
            continue
        found[start] = total
        filled = start if total else filled
        start, total = place + 1, 0
    if total:
        # What is left at the end belongs to the last group with rows in it, and what lies between.
        found[max(filled, 0)] = total + (found[filled] if filled >= 0 else 0)
        found[max(filled, 0) + 1 :] = -1
    return found


def tally_levels(cells: np.ndarray, cut: Cut, parts: Parts, fewest: int) -> Arrays:
    """Counts of a column's cells, grouped, in groups of parts."""
    one_way = np.bincount(cells, minlength=cut.cells)
    groups = group_cells(one_way, fewest)
    counts, pooled = _count_groups(groups[cells], int(groups.max()) + 1, parts.of_row, len(parts.sizes), fewest)
    return {"cells": groups, "parts": pooled, "counts": counts}


def tally_cross(first: np.ndarray, second: np.ndarray, first_cut: Cut, second_cut: Cut, fewest: int) -> Arrays:
    """Counts of two columns' cells at once, each grouped as by itself, and the second one's pooled."""
    rows = group_cells(np.bincount(first, minlength=first_cut.cells), fewest)
    columns = group_cells(np.bincount(second, minlength=second_cut.cells), fewest)
    counts, pooled = _count_groups(rows[first], int(rows.max()) + 1, columns[second], int(columns.max()) + 1, fewest)
    return {"rows": rows, "columns": pooled[columns], "counts": counts.T}


def _count_groups(
    rows: np.ndarray, row_number: int, columns: np.ndarray, column_number: int, fewest: int
) -> tuple[np.ndarray, np.ndarray]:
    """A table [pooled columns, rows] of counts, and the pool of each column."""
    table = np.bincount(rows * column_number + columns, minlength=row_number * column_number)
    table = table.reshape(row_number, column_number)
    pooled = pool_parts(table, fewest)
    counts = np.zeros((int(pooled.max()) + 1, row_number))
    np.add.at(counts, pooled, table.T)
    return counts, pooled


def tally_numbers(column: Any, cut: Cut, parts: Parts, fewest: int) -> Arrays:
    """Counts of bins, means and squares around them, in groups of parts; and how many rows miss the column.

    Where few rows miss it, they are counted among the others, in the fullest bin (`missing` is -1). Where few have it,
    or all but a few have the same value, nothing else is told of that group (`told` is 0).
    """
    values = read_numbers(column)
    present = np.isfinite(values)
    number = len(parts.sizes)
    having = np.bincount(parts.of_row[present], minlength=number)
    lacking = parts.sizes - having
    hides = 0 < lacking.sum() < fewest
    few = _count_unlike(values, parts, fewest)
    pooled = pool_parts(np.stack([having, *([] if hides else [lacking]), *few]), fewest)
    groups = int(pooled.max()) + 1
    found = {
        "parts": pooled,
        "told": np.ones(groups),
        "missing": np.full(groups, -1.0),
        "mean": np.zeros(groups),
        "total": np.zeros(groups),
        "counts": np.zeros((groups, cut.cells)),
    }
    of_row = pooled[parts.of_row]
    for group in range(groups):
        chosen = of_row == group
        own, rows = values[chosen & present], int(chosen.sum())
        is_small = 0 < len(own) < fewest or (not hides and 0 < rows - len(own) < fewest)
        if is_small or _find_common(own, fewest) is not None:
            found["told"][group] = 0
            found["counts"][group] = [rows, *[-1] * (cut.cells - 1)]
            continue
        bins = np.bincount(np.searchsorted(cut.edges, own, side="right"), minlength=cut.cells)
        counts = group_bins(bins, fewest)
        if hides:
            counts[np.argmax(counts)] += rows - len(own)
        else:
            found["missing"][group] = rows - len(own)
        found["counts"][group] = counts
        if len(own):
            mean = own.mean()
            found["mean"][group], found["total"][group] = mean, np.sum((own - mean) ** 2)
    return found


def _find_common(values: np.ndarray, fewest: int) -> float | None:
    """The value that all rows but a few have, if there are a few others."""
    if not len(values):
        return None
    found, counts = np.unique(values, return_counts=True)
    most = int(np.argmax(counts))
    return float(found[most]) if counts[most] > 1 and 0 < len(values) - counts[most] < fewest else None


def _count_unlike(values: np.ndarray, parts: Parts, fewest: int) -> list[np.ndarray]:
    """For each value that all rows of some part have but a few: how many rows of each part have another one."""
    number, present = len(parts.sizes), np.isfinite(values)
    own = [values[present & (parts.of_row == part)] for part in range(number)]
    common = {value for one in own if (value := _find_common(one, fewest)) is not None}
    return [np.bincount(parts.of_row[present & (values != value)], minlength=number) for value in sorted(common)]
