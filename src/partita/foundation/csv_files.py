"""Tables of numbers in CSV files, read cell by cell so that what is wrong is told with its line."""

import csv
import math
from array import array
from collections import Counter
from collections.abc import Collection, Generator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from partita.errors import InputError
from partita.foundation.files import MOST_TABLE, check_lines, check_size


def read_csv(path: Path, target: str) -> tuple[np.ndarray, np.ndarray]:
    """A CSV file of numbers with a header, as (X, y) where y is the column `target`."""
    header, table = read_columns(path, needed=[target])
    column = header.index(target)
    return np.delete(table, column, axis=1), table[:, column]


def read_header(path: Path) -> list[str]:
    """The names of a CSV file's columns."""
    with closing(_read_rows(path)) as rows:
        return next(rows)


def _read_rows(path: Path) -> Generator[list[str], None, None]:
    """The header and the rows of a CSV file, as text, one after the other."""
    found = False
    try:
        check_size(path, MOST_TABLE)
        check_lines(path)
        with path.open(newline="", encoding="utf-8") as stream:
            for row in csv.reader(stream):
                if row:
                    found = True
                    yield row
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path}: not a CSV file with a header ({error})") from None
    if not found:
        raise InputError(f"{path}: not a CSV file with a header (it is empty)")


def read_columns(
    path: Path, columns: Sequence[str] | None = None, needed: Sequence[str] = (), missing: Collection[str] = ()
) -> tuple[list[str], np.ndarray]:
    """These columns of a CSV file with a header, as numbers; all of them, among them those needed, if not given.

    Other columns may hold anything. Cells that are one of the words of `missing` are nan.
    """
    rows = _read_rows(path)
    header = next(rows)
    wanted = header if columns is None else list(columns)
    place_of = {name: place for place, name in reversed(list(enumerate(header)))}
    for name in (*wanted, *needed):
        if name not in place_of:
            raise InputError(f"{path}: no column {name!r}; it has {', '.join(header)}")
    if repeated := {*wanted, *needed} & _find_repeated(header):
        raise InputError(f"{path}: two columns are called {min(repeated)!r}: rename one")
    places = [place_of[name] for name in wanted]
    cells = array("d")
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise InputError(f"{path}:{number + 2}: expected {len(header)} cells, got {len(row)}")
        for column, place in enumerate(places):
            try:
                cells.append(math.nan if row[place].strip() in missing else float(row[place]))
            except ValueError:
                raise InputError(f"{path}:{number + 2}: {wanted[column]} is not a number") from None
    if wanted and not cells:
        raise InputError(f"{path}: has a header and no rows")
    return wanted, np.array(cells).reshape(-1, len(wanted))


def _find_repeated(header: Sequence[str]) -> set[str]:
    return {name for name, number in Counter(header).items() if number > 1}
