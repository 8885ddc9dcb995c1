"""Tables of grouped data, by column."""

import csv

import numpy as np

from partita.datasets.places import Folder, find_needed
from partita.errors import InputError
from partita.foundation.files import MOST_TABLE, check_size

TABLES = ("bacteria", "Contraception", "epil", "Garch", "radon", "sleepstudy")


def load_table(name: str, folder: Folder = None) -> dict[str, np.ndarray]:
    """Columns by name: numbers where all cells are numbers or empty (then nan), else text.

    These are data sets of R packages, as Rdatasets (Arel-Bundock) publishes them: a file such as epil.csv in a folder
    tables/, which is looked for as `load` looks for files.
    """
    if name not in TABLES:
        raise InputError(f"table {name!r} is not known: use one of {', '.join(TABLES)}")
    path = find_needed(f"tables/{name}.csv", folder, "Rdatasets (vincentarelbundock.github.io/Rdatasets)")
    try:
        check_size(path, MOST_TABLE)
        with path.open(newline="", encoding="utf-8") as stream:
            header, *rows = list(csv.reader(stream))
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as a table ({error})") from None
    if not rows or any(len(row) != len(header) for row in rows):
        raise InputError(f"{path}: expected as many cells in every row as in the header")
    columns = zip(*rows, strict=True)
    return {title: _column(cells) for title, cells in zip(header, columns, strict=True) if title != "rownames"}


def _column(cells: tuple[str, ...]) -> np.ndarray:
    try:
        return np.array([float(cell) if cell else np.nan for cell in cells])
    except ValueError:
        return np.array(cells)
