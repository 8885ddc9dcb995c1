"""Frames of pandas, polars or others, by what they have in common: columns with names."""

from typing import Any

import numpy as np

from partita.errors import ShardError


def names_of(table: Any) -> tuple[str, ...] | None:
    """The names of a frame's columns; None of anything else."""
    columns = getattr(table, "columns", None)
    if columns is None or np.ndim(columns) != 1:
        return None
    names = tuple(columns)
    return names if names and all(isinstance(name, str) for name in names) else None


def has_dates(values: Any) -> bool:
    """Whether a column holds points or spans of time, with or without a time zone."""
    kind = getattr(getattr(values, "dtype", None), "kind", None)
    return kind in ("m", "M") or np.asarray(values).dtype.kind in "mM"


def check_columns(site: int | None, table: Any) -> None:
    """Check that all columns of a frame hold numbers; of anything else, nothing."""
    names = names_of(table) or ()
    if len(set(names)) < len(names):
        raise ShardError(site, "X", f"has two columns called {max(names, key=names.count)!r}")
    for name in names:
        column = table[name]
        if has_dates(column):
            raise ShardError(site, name, "holds dates: give numbers instead, such as days since the first one")
        try:
            np.asarray(column, float)
        except (TypeError, ValueError) as error:
            if "NA" in str(error):  # missing values, which are told of elsewhere
                continue
            words = "holds text or categories: give one column of 0 and 1 for each level but one instead"
            raise ShardError(site, name, words) from None
