"""The runner of studies: cells that can be stopped and resumed, each of which leaves rows of results."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from partita.errors import InputError
from partita.foundation.files import MOST_TABLE, make_folder, read_file, replace_file
from partita.foundation.plain import Row, plain

# Seconds that compiling the program of a cell takes, about.
START_UP = 6.0


@dataclass(frozen=True)
class Cell:
    """One run of an experiment: a method in a setting, with a seed.

    `run` yields rows as it goes. `work` is how many rows of data its steps visit, in units of the study's network: what
    time is estimated from. `settings` tells one version of a cell from another, so that stale results are not reused.
    `words` say what its method is. A cell that takes long has `go_on` instead: it is given a file for what it wants to
    find again when it was interrupted, yields all rows in any case, and the file is gone when it has finished.
    """

    method: str
    setting: str
    seed: int
    work: float
    settings: Row
    run: Callable[[], Iterator[Row]]
    words: str = ""
    go_on: Callable[[Path], Iterator[Row]] | None = None

    @property
    def name(self) -> str:
        return f"{self.setting} {self.method} {self.seed}"

    @property
    def path(self) -> str:
        digest = hashlib.sha256(json.dumps(plain(self.settings), sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.setting}-{self.method}-{self.seed}-{digest}.jsonl"


class Watch(AbstractContextManager["Watch"]):
    """Who is told how a study goes on."""

    def plan(self, cells: int, finished: int, seconds: float) -> None:
        """Hear before anything runs how many cells there are, how many are finished, and how long the rest may take."""

    def begin(self, cell: Cell) -> None: ...

    def row(self, cell: Cell, row: Row) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def run_study(cells: Sequence[Cell], folder: Path, rows_per_second: Callable[[], float], watch: Watch) -> list[Row]:
    """Run what has not been run, and return all rows.

    A finished cell is one file; it is not run again. A cell that was interrupted leaves nothing and starts afresh,
    unless it keeps a file of its own to go on from.
    """
    kept = folder / "cells"
    try:
        make_folder(kept)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}") from None
    waiting = [cell for cell in cells if not (kept / cell.path).exists()]
    rows: list[Row] = []
    with watch:
        work = sum(cell.work for cell in waiting)
        seconds = START_UP * len(waiting) + (work / rows_per_second() if waiting else 0.0)
        watch.plan(len(cells), len(cells) - len(waiting), seconds)
        for cell in cells:
            path = kept / cell.path
            if not path.exists():
                watch.begin(cell)
                own = path.with_suffix(".part.npz")
                _write(path, list(_run_cell(cell, own, watch)))
                own.unlink(missing_ok=True)
            rows += [json.loads(line) for line in read_file(path, MOST_TABLE).decode().splitlines()]
    return rows


def _run_cell(cell: Cell, own: Path, watch: Watch) -> Iterator[Row]:
    for row in cell.run() if cell.go_on is None else cell.go_on(own):
        full = plain({"method": cell.method, "setting": cell.setting, "seed": cell.seed, **row})
        watch.row(cell, full)
        yield full


def _write(path: Path, rows: Sequence[Row]) -> None:
    """Write all rows or none."""
    replace_file(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())
