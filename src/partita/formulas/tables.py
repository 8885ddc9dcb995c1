"""Tables of several sites: read where they are, and agreed on without being shown."""

import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from partita.errors import InputError, reason
from partita.formulas.advice import FEW_LEVELS, unlikely_levels
from partita.foundation.files import MOST_TABLE, check_lines, check_size

LARGEST_LEVELS = 1000
# Floats tell whole numbers apart up to here; beyond, these columns hold them.
LARGEST_WHOLE = 2**53
WHOLE_NUMBERS = (("Int64", 2**63 - 1), ("UInt64", 2**64 - 1))
# Of a site, after rows have been repeated as their weights say.
MOST_ROWS = 20_000_000
# Of a file that says how many it has, before they are read.
MOST_CELLS = 100_000_000


@dataclass(frozen=True)
class Column:
    """What a site tells of a column before anything is fitted: whether it holds numbers, or which levels it has."""

    name: str
    levels: tuple[str, ...] | None

    @property
    def kind(self) -> str:
        return "numbers" if self.levels is None else "text"


def read_sites(sites: Any, folder: Path | None = None) -> dict[str, Any]:
    """Frames by the names of sites: from frames or files by name, a list of files, or a pattern such as data/*.csv."""
    if isinstance(sites, str):
        found = sorted(glob.glob(str((folder or Path()) / sites)))
        if not found:
            raise InputError(f"sites: no file matches {sites}")
        sites = found
    if isinstance(sites, Sequence):
        if not all(isinstance(path, str | os.PathLike) for path in sites):
            raise InputError("sites: a list has to be of files; give frames by name, {name: frame}")
        paths = [(folder or Path()) / path for path in sites]
        names = [path.stem for path in paths]
        if len(set(names)) < len(names):
            raise InputError("sites: two files have the same name; give a table of names and files")
        sites = dict(zip(names, paths, strict=True))
    if not isinstance(sites, Mapping) or not sites:
        raise InputError("sites: expected a table with one file or frame per site")
    called = [str(name) for name in sites]
    if len(set(called)) < len(called):
        raise InputError(f"sites: two are called {max(called, key=called.count)!r}: give each a name of its own")
    return {
        str(name): read_table((folder or Path()) / table if isinstance(table, str | os.PathLike) else table)
        for name, table in sites.items()
    }


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
    """That there are no more rows than can be used: a small file can say one of them very often."""
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


def repeat_rows(frames: Mapping[str, Any], weights: str | None) -> Mapping[str, Any]:
    """Every row as often as a column says: as many observations as it stands for."""
    if weights is None:
        return frames
    if not isinstance(weights, str):
        raise InputError(
            "weights: expected the name of a column that says how many observations a row stands for, "
            f"got {type(weights).__name__}"
        )
    return {site: _repeated(f"site {site}", frame, weights) for site, frame in frames.items()}


def _repeated(place: str, frame: Any, name: str) -> Any:
    from pandas.api.types import is_numeric_dtype

    column = described(place, frame, [name], [])[name]
    numbers = frame[name].to_numpy(float, na_value=np.nan) if is_numeric_dtype(frame[name]) else np.array([np.nan])
    if column.levels is not None or not np.all((numbers >= 0) & (numbers == np.floor(numbers))):
        raise InputError(
            f"{place}: weights {name!r} has to hold whole numbers of at least 0, as many observations as a row stands "
            "for, and none missing: weights of surveys or of precision are not known"
        )
    if numbers.sum() > MOST_ROWS:
        raise InputError(f"{place}: weights {name!r} stand for more than {MOST_ROWS:,} rows: use fewer")
    return frame.iloc[np.repeat(np.arange(len(frame)), numbers.astype(int))]


def described(place: str, frame: Any, names: Sequence[str], categorical: Sequence[str]) -> dict[str, Column]:
    """What one site tells of the columns that a formula needs; `place` is whose table it is, in words."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    found = {}
    for name in names:
        if name not in frame.columns:
            raise InputError(f"{place}: has no column {name!r}: it has {', '.join(map(str, frame.columns))}")
        if list(frame.columns).count(name) > 1:
            raise InputError(f"{place}: has {name!r} twice: give columns different names")
        column = frame[name].dropna()
        if is_numeric_dtype(column) and not is_bool_dtype(column) and name not in categorical:
            found[name] = Column(name, None)
            continue
        levels = tuple(sorted(set(as_text(column)), key=_order))
        numbers = sum(_order(level)[0] == 0 for level in levels)
        if name not in categorical and len(levels) > FEW_LEVELS and numbers > len(levels) / 2:
            other = next((level for level in levels if _order(level)[0]), None)
            also = "" if other is None else f", and {other!r}"
            raise InputError(
                f"{place}: column {name!r} is text that holds numbers{also}: make it numbers, or say C({name})"
            )
        if len(levels) > LARGEST_LEVELS:
            why = unlikely_levels(name, levels, len(column)) or f"column {name!r} has {len(levels)} levels"
            raise InputError(f"{place}: {why}; there may be no more than {LARGEST_LEVELS} levels")
        found[name] = Column(name, levels)
    return found


def agreed(told: Mapping[str, Mapping[str, Column]]) -> dict[str, Column]:
    """One description for all sites: a column's levels are those of all of them together."""
    first, *others = told
    columns = dict(told[first])
    for site in others:
        for name, column in told[site].items():
            known = columns[name]
            if column.kind != known.kind:
                raise InputError(
                    f"column {name!r}: is {known.kind} at site {first}, {column.kind} at site {site}: make them alike"
                )
            if column.levels is not None and known.levels is not None:
                columns[name] = Column(name, tuple(sorted({*known.levels, *column.levels}, key=_order)))
    return columns


def complete(site: str, frame: Any, names: Sequence[str]) -> Any:
    """A site's rows that miss nothing of what is needed."""
    needed = list(dict.fromkeys(names))
    kept = frame[needed].dropna()
    if not len(kept):
        raise InputError(f"site {site}: no row has all of {', '.join(needed)}: leave the site out")
    return kept


def labelled(column: Any) -> np.ndarray:
    """The number of each row's label, from 0."""
    return np.unique(np.array(as_text(column)), return_inverse=True)[1].astype(np.int32)


def as_text(column: Any) -> list[str]:
    return [_text(item) for item in column]


def conformed(kept: Any, columns: Mapping[str, Column]) -> Any:
    """Rows with columns as agreed."""
    import pandas

    return pandas.DataFrame(
        {
            name: kept[name].astype(float)
            if column.levels is None
            else pandas.Categorical(as_text(kept[name]), categories=list(column.levels))
            for name, column in columns.items()
        }
    )


def example(columns: Mapping[str, Column]) -> Any:
    """A frame with every level, and no data."""
    import pandas

    rows = max((len(column.levels) for column in columns.values() if column.levels), default=1)
    made = {}
    for name, column in columns.items():
        if column.levels is None:
            made[name] = np.full(rows, np.nan)
        elif not column.levels:
            raise InputError(f"column {name!r}: has no value at any site")
        else:
            made[name] = pandas.Categorical(np.resize(column.levels, rows), categories=list(column.levels))
    return pandas.DataFrame(made)


def _text(item: Any) -> str:
    """Numbers as they are written: a file's are floats here, and 3.0 is a frame's 3."""
    if isinstance(item, float | np.floating):
        return str(int(item)) if float(item).is_integer() else str(float(item))
    return str(item)


def _order(level: str) -> tuple[int, float, str]:
    """Numbers by size, then words."""
    try:
        number = float(level)
    except ValueError:
        number = np.nan
    return (0, number, level) if np.isfinite(number) else (1, 0.0, level)
