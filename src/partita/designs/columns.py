"""Columns of tables as sites tell of them: numbers, or levels of a category, which are text."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.errors import InputError

# The most levels of a column that a formula reads at one site.
LARGEST_LEVELS = 1000


@dataclass(frozen=True)
class Column:
    """What a site tells of a column before anything is fitted: whether it holds numbers, or which levels it has."""

    name: str
    levels: tuple[str, ...] | None

    @property
    def kind(self) -> str:
        return "numbers" if self.levels is None else "text"


def agree_on_columns(columns_by_site: Mapping[str, Mapping[str, Column]]) -> dict[str, Column]:
    """One description for all sites: a column's levels are those of all of them together."""
    first, *others = columns_by_site
    agreed = dict(columns_by_site[first])
    for site in others:
        for name, column in columns_by_site[site].items():
            known = agreed[name]
            if column.kind != known.kind:
                raise InputError(
                    f"column {name!r}: is {known.kind} at site {first}, {column.kind} at site {site}: make them alike"
                )
            if column.levels is not None and known.levels is not None:
                agreed[name] = Column(name, sort_levels({*known.levels, *column.levels}))
    return agreed


def sort_levels(levels: Iterable[str]) -> tuple[str, ...]:
    """Levels that are numbers by their size, then words.

    >>> sort_levels({"10", "2", "b", "a"})
    ('2', '10', 'a', 'b')
    """
    return tuple(sorted(levels, key=_order))


def is_number_text(level: str) -> bool:
    """Whether a level is a finite number, written as text."""
    return _order(level)[0] == 0


def to_text(items: Iterable[Any]) -> list[str]:
    """Cells as text. Numbers are written as people do: a file's are floats here, and 3.0 is a frame's 3."""
    return [_to_text(item) for item in items]


def make_example(columns: Mapping[str, Column]) -> Any:
    """A frame with every level of every column, and no data."""
    import pandas

    rows = max((len(column.levels) for column in columns.values() if column.levels), default=1)
    cells = {}
    for name, column in columns.items():
        if column.levels is None:
            cells[name] = np.full(rows, np.nan)
        elif not column.levels:
            raise InputError(f"column {name!r}: has no value at any site")
        else:
            cells[name] = pandas.Categorical(np.resize(column.levels, rows), categories=list(column.levels))
    return pandas.DataFrame(cells)


def _to_text(item: Any) -> str:
    if isinstance(item, float | np.floating):
        return str(int(item)) if float(item).is_integer() else str(float(item))
    return str(item)


def _order(level: str) -> tuple[int, float, str]:
    try:
        number = float(level)
    except ValueError:
        number = np.nan
    return (0, number, level) if np.isfinite(number) else (1, 0.0, level)
