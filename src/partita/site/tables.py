"""A site's own table: read, its columns described, its incomplete rows left out. Nothing here leaves the site."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partita.designs.advice import FEW_LEVELS, doubt_levels
from partita.designs.columns import LARGEST_LEVELS, Column, is_number_text, sort_levels, to_text
from partita.errors import InputError, reason
from partita.foundation.files import MOST_TABLE, check_lines, check_size
from partita.wire.naming import name_sources

# Floats tell whole numbers apart up to here; beyond, these columns hold them.
LARGEST_WHOLE = 2**53
WHOLE_NUMBERS = (("Int64", 2**63 - 1), ("UInt64", 2**64 - 1))
# The most rows of a site, after rows have been repeated as their weights say.
MOST_ROWS = 20_000_000
# The most cells of a file that says how many it has before they are read.
MOST_CELLS = 100_000_000


def read_sites(sites: Any, folder: Path | None = None) -> dict[str, Any]:
    """Frames by the names of sites, all of which are here: from what `name_sources` takes."""
    return {name: read_table(source) for name, source in name_sources(sites, folder).items()}


def read_table(table: Any, argument: str = "sites") -> Any:
    """A pandas frame, from one, from a polars frame, or from a CSV or Parquet file."""
    import pandas
    import polars

    if isinstance(table, pandas.DataFrame):
        return table
    if isinstance(table, str | os.PathLike):
        path = Path(table)
        try:
            check_size(path, MOST_TABLE)
            if path.suffix.lower() in (".parquet", ".pq"):
                _check_parquet(path)
                table = polars.read_parquet(path)
            else:
                check_lines(path)
                table = polars.read_csv(path, infer_schema_length=None, null_values=["NA", "", "nan", "NaN"])
        except InputError:
            raise
        except (OSError, ValueError, polars.exceptions.PolarsError, polars.exceptions.PanicException) as error:
            raise InputError(f"{path}: cannot be read as a table: {reason(error)}") from None
    if not isinstance(table, polars.DataFrame):
        raise InputError(f"{argument}: expected a file or a pandas or polars frame, got {type(table).__name__}")
    return pandas.DataFrame({name: _as_array(table[name]) for name in table.columns})


def _check_parquet(path: Path) -> None:
    """Check that there are no more rows than can be used: a small file can say one of them very often."""
    import polars

    columns = polars.read_parquet_schema(path)
    nested = [name for name, kind in columns.items() if kind.is_nested()]
    if nested:
        raise InputError(f"{path}: column {nested[0]!r} holds lists or records: give one column of each value")
    rows = polars.scan_parquet(path).select(polars.len()).collect().item()
    if rows > MOST_ROWS:
        raise InputError(f"{path}: has {rows:,} rows, more than {MOST_ROWS:,}: use fewer")
    if rows * len(columns) > MOST_CELLS:
        raise InputError(f"{path}: has {rows * len(columns):,} cells, more than {MOST_CELLS:,}: leave columns out")


def _as_array(column: Any) -> Any:
    """Numbers as floats, missing ones nan; anything else as text, missing as None.

    Whole numbers beyond those that floats tell apart are mostly names, of people or groups, and stay what they are.
    """
    if column.dtype.is_integer() and (largest := _largest(column)) > LARGEST_WHOLE:
        import pandas

        dtype: Any = next((name for name, most in WHOLE_NUMBERS if largest <= most), object)
        return pandas.array([None if item is None else int(item) for item in column.to_list()], dtype=dtype)
    if column.dtype.is_numeric():
        return column.cast(float).to_numpy()
    return np.array([None if item is None else str(item) for item in column.to_list()], dtype=object)


def _largest(column: Any) -> int:
    """The largest size of a column's whole numbers."""
    return max((abs(int(item)) for item in (column.min(), column.max()) if item is not None), default=0)


def repeat_rows(place: str, frame: Any, name: str) -> Any:
    """Every row as often as a column says: as many observations as it stands for."""
    from pandas.api.types import is_numeric_dtype

    column = describe_columns(place, frame, [name], [])[name]
    numbers = frame[name].to_numpy(float, na_value=np.nan) if is_numeric_dtype(frame[name]) else np.array([np.nan])
    if column.levels is not None or not np.all((numbers >= 0) & (numbers == np.floor(numbers))):
        raise InputError(
            f"{place}: weights {name!r} has to hold whole numbers of at least 0, as many observations as a row stands "
            "for, and none missing: weights of surveys or of precision are not known"
        )
    if numbers.sum() > MOST_ROWS:
        raise InputError(f"{place}: weights {name!r} stand for more than {MOST_ROWS:,} rows: use fewer")
    return frame.iloc[np.repeat(np.arange(len(frame)), numbers.astype(int))]


def describe_columns(place: str, frame: Any, names: Sequence[str], categorical: Sequence[str]) -> dict[str, Column]:
    """What one site tells of the columns that a formula needs; `place` is whose table it is, in words."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    columns = {}
    for name in names:
        if name not in frame.columns:
            raise InputError(f"{place}: has no column {name!r}: it has {', '.join(map(str, frame.columns))}")
        if list(frame.columns).count(name) > 1:
            raise InputError(f"{place}: has {name!r} twice: give columns different names")
        column = frame[name].dropna()
        if is_numeric_dtype(column) and not is_bool_dtype(column) and name not in categorical:
            columns[name] = Column(name, None)
        else:
            columns[name] = Column(name, _find_levels(place, name, column, name in categorical))
    return columns


def _find_levels(place: str, name: str, column: Any, is_categorical: bool) -> tuple[str, ...]:
    """The levels of a column of text, or of one that a formula takes for levels; without those that look wrong."""
    levels = sort_levels(set(to_text(column)))
    numbers = sum(map(is_number_text, levels))
    if not is_categorical and len(levels) > FEW_LEVELS and numbers > len(levels) / 2:
        other = next((level for level in levels if not is_number_text(level)), None)
        also = "" if other is None else f", and {other!r}"
        raise InputError(
            f"{place}: column {name!r} is text that holds numbers{also}: make it numbers, or say C({name})"
        )
    if len(levels) > LARGEST_LEVELS:
        why = doubt_levels(name, levels, len(column)) or f"column {name!r} has {len(levels)} levels"
        raise InputError(f"{place}: {why}; there may be no more than {LARGEST_LEVELS} levels")
    return levels


def keep_complete(place: str, frame: Any, names: Sequence[str]) -> Any:
    """A site's rows that miss nothing of what is needed."""
    needed = list(dict.fromkeys(names))
    kept = frame[needed].dropna()
    if not len(kept):
        raise InputError(f"{place}: no row has all of {', '.join(needed)}: leave the site out")
    return kept


def number_labels(column: Any) -> np.ndarray:
    """The number of each row's label, from 0."""
    return np.unique(np.array(to_text(column)), return_inverse=True)[1].astype(np.int32)


def conform(kept: Any, columns: Mapping[str, Column]) -> Any:
    """Rows with columns as agreed."""
    import pandas

    found = {}
    for name, column in columns.items():
        if column.levels is None:
            found[name] = kept[name].astype(float)
            continue
        text = to_text(kept[name])
        if not set(text) <= set(column.levels):
            # Or such rows would be taken for ones of the first level.
            raise InputError(f"column {name!r}: has levels that sites have not agreed on: leave such rows out")
        found[name] = pandas.Categorical(text, categories=list(column.levels))
    return pandas.DataFrame(found)
