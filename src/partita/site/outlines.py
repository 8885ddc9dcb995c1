"""What the columns of a site's table are like: their kinds, rough ranges, and levels that several rows have.

No value of a single row is in it: what is told of numbers are means of neighbours, rounded; of levels, those that at
least `fewest` rows have.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.designs.columns import sort_levels, to_text
from partita.designs.tallies import LONGEST_LEVEL, MOST_COLUMNS, MOST_LEVELS, SHARES, ColumnOutline, Kind
from partita.errors import InputError
from partita.foundation.frames import has_dates

# What is told of a range has a precision of so many steps between its ends.
STEPS = 50
# Whole numbers up to here are told apart by floats, with a half between them.
LARGEST_WHOLE = 2.0**50
# Numbers beyond this are not summed up: their squares have no room.
LARGEST = 1e140


def check_table(place: str, frame: Any, fewest: int) -> None:
    """Check that a table has enough rows to be summed up."""
    if len(frame) < fewest:
        raise InputError(
            f"{place}: its table has fewer than {fewest} rows, too few to be summed up: leave the site out, or lower "
            "fewest_per_cell"
        )


def choose_columns(place: str, frame: Any, names: Sequence[str]) -> list[str]:
    """The columns that are asked for, all of them if none are named."""
    own = list(map(str, frame.columns))
    chosen = list(names) or own
    if len(chosen) > MOST_COLUMNS:
        raise InputError(f"{place}: {len(chosen)} columns, at most {MOST_COLUMNS} are summed up: name some")
    for name in chosen:
        if name not in own:
            raise InputError(f"{place}: has no column {name!r}: it has {', '.join(own)}")
        if own.count(name) > 1:
            raise InputError(f"{place}: has {name!r} twice: give columns different names")
    return chosen


def outline_column(name: str, column: Any, is_categorical: bool, fewest: int) -> ColumnOutline:
    """What one column is like."""
    kind = find_kind(column, is_categorical, fewest)
    if kind in ("nothing", "dates"):
        return ColumnOutline(name, kind)
    if kind == "levels":
        return ColumnOutline(name, kind, levels=_find_levels(column, fewest))
    values = read_numbers(column)
    return ColumnOutline(name, kind, knots=_find_knots(values[np.isfinite(values)], fewest, kind != "numbers"))


def find_kind(column: Any, is_categorical: bool, fewest: int) -> Kind:
    """What the values of a column are; nothing, if only a few rows have one."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    if has_dates(column):
        return "dates"
    if not is_numeric_dtype(column) or is_bool_dtype(column) or is_categorical:
        return "levels" if column.notna().sum() >= fewest else "nothing"
    values = read_numbers(column)
    values = values[np.isfinite(values)]
    if len(values) < fewest:
        return "nothing"
    if np.all((values == 0) | (values == 1)):
        return "two values"
    is_whole = np.all((values == np.floor(values)) & (np.abs(values) < LARGEST_WHOLE))
    return "whole numbers" if is_whole else "numbers"


def read_numbers(column: Any) -> np.ndarray:
    """Numbers as floats; missing ones, infinite ones and those that are too large are nan."""
    values = column.to_numpy(float, na_value=np.nan)
    return np.where(np.abs(values) < LARGEST, values, np.nan)


def _find_levels(column: Any, fewest: int) -> tuple[str, ...]:
    """Levels that enough rows have; of many, the most frequent."""
    counts = column.dropna().astype(object).map(_shorten).value_counts()
    frequent = counts[counts >= fewest].index[:MOST_LEVELS]
    return sort_levels(frequent)


def _shorten(item: Any) -> str:
    """A cell as text. Texts that are too long for a level are all one."""
    (text,) = to_text([item])
    return text if len(text) <= LONGEST_LEVEL else "…"


def _find_knots(values: np.ndarray, fewest: int, is_whole: bool) -> tuple[float, ...]:
    """About where the quantiles of `SHARES` are: means of so many neighbours that nobody's own number is told."""
    ordered = np.sort(values)
    size = max(fewest, len(ordered) // 100)
    starts = [round(share * (len(ordered) - size)) for share in SHARES]
    knots = np.array([ordered[start : start + size].mean() for start in starts])
    span = float(knots[-1] - knots[0])
    # Powers of ten, so that the same numbers come out whatever the unit is.
    step = 10.0 ** np.floor(np.log10(span / STEPS)) if span > 0 else 0.0
    if is_whole:
        step = max(step, 1.0)
    rounded = knots if step == 0 or not np.isfinite(step) else np.round(knots / step) * step
    return tuple(np.maximum.accumulate(rounded).tolist())
