"""What sites answer about tables that are summed up, checked against the question: shapes, sums, and no small cells."""

from collections.abc import Mapping

import numpy as np

from partita.designs.tallies import Cut
from partita.wire.questions import Outline, OutlineAnswer, Tabulate, TabulateAnswer

Arrays = Mapping[str, np.ndarray]
LEVELS, CROSS = {"cells", "parts", "counts"}, {"rows", "columns", "counts"}
NUMBERS = {"parts", "told", "missing", "mean", "total", "counts"}


def check_outline(question: Outline, answer: OutlineAnswer) -> None:
    """Check that columns are those that were asked for, each once."""
    names = [column.name for column in answer.columns]
    _need(len(set(names)) == len(names), "columns: one is there twice")
    _need(not question.names or names == list(question.names), f"columns: expected {list(question.names)}, got {names}")


def check_tabulation(question: Tabulate, answer: TabulateAnswer) -> None:
    """Check that every row is counted once in every tally, in cells that are not small."""
    by = next((cut for cut in question.columns if cut.name == question.by), None)
    _check_groups("parts", answer.parts, 0 if by is None else by.cells, len(answer.sizes))
    _check_counts("sizes", answer.sizes, question.fewest)
    _need(int(answer.sizes.sum()) == answer.rows, f"sizes: are not {answer.rows} rows")
    expected = len(question.columns) + len(question.crosses)
    _need(len(answer.tallies) == expected, f"tallies: expected {expected}, got {len(answer.tallies)}")
    cuts = {cut.name: cut for cut in question.columns}
    for cut, tally in zip(question.columns, answer.tallies, strict=False):
        if cut is by:
            _need(not tally, f"{cut.name}: is what is broken down by")
        elif cut.levels is None:
            _check_numbers(cut, tally, answer, question.fewest)
        else:
            _check_levels(cut, tally, answer, question.fewest)
    for (first, second), tally in zip(question.crosses, answer.tallies[len(question.columns) :], strict=True):
        _check_cross(cuts[first], cuts[second], tally, answer, question.fewest)


def _check_levels(cut: Cut, tally: Arrays, answer: TabulateAnswer, fewest: int) -> None:
    _need(set(tally) == LEVELS, f"{cut.name}: expected {sorted(LEVELS)}, got {sorted(tally)}")
    groups, counts = len(tally["counts"]), tally["counts"]
    _need(counts.ndim == 2, f"{cut.name}: counts: expected a table")
    _check_groups(cut.name, tally["cells"], cut.cells, counts.shape[1])
    _check_groups(cut.name, tally["parts"], len(answer.sizes), groups)
    _check_counts(cut.name, counts, fewest)
    _check_sums(cut.name, counts.sum(axis=1), tally["parts"], answer)


def _check_numbers(cut: Cut, tally: Arrays, answer: TabulateAnswer, fewest: int) -> None:
    _need(set(tally) == NUMBERS, f"{cut.name}: expected {sorted(NUMBERS)}, got {sorted(tally)}")
    groups, counts = len(tally["counts"]), tally["counts"]
    _need(counts.shape == (groups, cut.cells), f"{cut.name}: counts: expected {cut.cells} bins")
    for name in ("told", "missing", "mean", "total"):
        _need(tally[name].shape == (groups,), f"{cut.name}: {name}: expected {groups} numbers")
    _check_groups(cut.name, tally["parts"], len(answer.sizes), groups)
    _need(bool(np.all(counts >= -1) and np.all(counts[:, 0] >= 0)), f"{cut.name}: counts: are negative")
    _need(bool(np.all(tally["total"] >= 0)), f"{cut.name}: total: is negative")
    missing = tally["missing"]
    _need(bool(np.all(missing >= -1)), f"{cut.name}: missing: is negative")
    known = np.maximum(counts, 0)
    _check_counts(cut.name, known, fewest)
    _check_counts(cut.name, np.maximum(missing, 0), fewest)
    _check_sums(cut.name, known.sum(axis=1) + np.maximum(missing, 0), tally["parts"], answer)


def _check_cross(first: Cut, second: Cut, tally: Arrays, answer: TabulateAnswer, fewest: int) -> None:
    place = f"{first.name} and {second.name}"
    _need(set(tally) == CROSS, f"{place}: expected {sorted(CROSS)}, got {sorted(tally)}")
    counts = tally["counts"]
    _need(counts.ndim == 2, f"{place}: counts: expected a table")
    _check_groups(place, tally["rows"], first.cells, counts.shape[0])
    _check_groups(place, tally["columns"], second.cells, counts.shape[1])
    _check_counts(place, counts, fewest)
    _need(int(counts.sum()) == answer.rows, f"{place}: counts: are not {answer.rows} rows")


def _check_groups(place: str, groups: np.ndarray, number: int, most: int) -> None:
    """Check that so many cells each have a group, of at most so many."""
    fits = groups.shape == (number,) and np.all((groups >= 0) & (groups < most) & (groups == np.floor(groups)))
    _need(bool(fits), f"{place}: expected a group of {most} for each of {number} cells")


def _check_counts(place: str, counts: np.ndarray, fewest: int) -> None:
    """Check that counts are whole, and none is small."""
    fits = np.all((counts == np.floor(counts)) & ((counts == 0) | (counts >= fewest)))
    _need(bool(fits), f"{place}: counts: expected whole numbers, 0 or at least {fewest}")


def _check_sums(place: str, sums: np.ndarray, parts: np.ndarray, answer: TabulateAnswer) -> None:
    """Check that the rows of every group of parts are all counted."""
    wanted = np.bincount(parts.astype(int), weights=answer.sizes, minlength=len(sums))
    _need(np.array_equal(sums, wanted), f"{place}: counts: are not all rows, or rows are counted twice")


def _need(holds: bool, words: str) -> None:
    if not holds:
        raise ValueError(words)
