"""Rows of studies that are kept with the documentation, so that its pictures are drawn again without running anything.

A file has one JSON object per line; the first says where the rows come from.
"""

import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from partita.errors import InputError
from partita.foundation.files import MOST_TABLE, read_file, replace_file
from partita.foundation.plain import Row
from partita.studies.options import Say

PACKAGES = ("partita", "jax", "jaxlib", "numpy", "scipy", "scikit-learn", "optax")
# What only pages of single runs need, which is most of a row. Draws are kept of the first seed, and fewer of them.
LARGE = ("surface", "axes", "drawn", "batch", "points", "x", "mean", "std", "places")
DRAWS = 100
DIGITS = 6


def keep_rows(
    say: Say,
    folder: Annotated[Path, Argument(help="The folder that an experiment was run into.")],
    page: Annotated[Path, Argument(help="The file to write, such as docs/data/banana.jsonl.")],
    command: Annotated[str, Option(help="The command that made the rows.")],
) -> None:
    """Write the rows of all finished cells into one file, with the command, the seeds and the versions here."""
    rows = read_cells(folder)
    seeds = sorted({row["seed"] for row in rows})
    head: Row = {"command": command, "seeds": seeds, "python": platform.python_version()}
    head |= {"versions": {name: version(name) for name in PACKAGES}}
    lines = [head, *(slim(row, row["seed"] == seeds[0]) for row in rows)]
    replace_file(page, "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode())
    say(f"{page}: {len(rows)} rows of {len(seeds)} seeds")


def read_cells(folder: Path) -> list[Row]:
    """All rows of a folder's finished cells, in the order of their settings, methods and seeds."""
    paths = sorted((folder / "cells").glob("*.jsonl"))
    if not paths:
        raise InputError(f"{folder}: expected finished cells: run the experiment with --out {folder} first")
    rows = [json.loads(line) for path in paths for line in read_file(path, MOST_TABLE).decode().splitlines()]
    return sorted(rows, key=lambda row: (row["setting"], row["method"], row["seed"], row["round"]))


def slim(row: Row, whole: bool) -> Row:
    """A row with fewer digits; without what is large, or, if it is to be whole, with fewer draws."""
    kept = {name: value for name, value in row.items() if name not in LARGE or (whole and name == "drawn")}
    if "drawn" in kept:
        kept["drawn"] = {name: [draws[:DRAWS] for draws in each] for name, each in kept["drawn"].items()}
    return {name: _round(value) for name, value in kept.items()}


def _round(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    return [_round(part) for part in value] if isinstance(value, list) else value


def read_kept(path: Path) -> tuple[Row, list[Row]]:
    """What a file says of its rows, and the rows."""
    if not path.exists():
        raise InputError(f"{path}: not found: run this where docs/data is, or write it with `partita study keep-rows`")
    head, *rows = map(json.loads, read_file(path, MOST_TABLE).decode().splitlines())
    return head, rows


def choose_rows(rows: Sequence[Row], setting: str) -> list[Row]:
    return [row for row in rows if row["setting"] == setting]
