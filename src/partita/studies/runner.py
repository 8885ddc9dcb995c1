"""What experiments share: cells that can be stopped and resumed, rows of results, a page with the paper's plots."""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import optax

from partita import datasets
from partita.errors import InputError
from partita.files import MOST_TABLE, make_folder, read_file
from partita.models import Network
from partita.report import Chart, Curve
from partita.telemetry import Row, plain

KEYS = ("method", "setting", "seed", "round", "seconds", "messages", "bytes", "error", "nll", "ece", "free_energy")

# As in the paper: error and log likelihood, against time or communication.
CHARTS = (Chart("error"), Chart("nll"), Chart("free_energy", log=False))
# Seconds until a cell's program is compiled.
START_UP = 6.0


@dataclass(frozen=True)
class Cell:
    """One run of an experiment: a method in a setting, with a seed.

    `run` yields rows as it goes. `work` is how many rows of data its steps visit, in units of the study's network: what
    time is estimated from. `settings` tells one version of a cell from another, so that stale results are not reused.
    `words` say what its method is.
    """

    method: str
    setting: str
    seed: int
    work: float
    settings: Row
    run: Callable[[], Iterator[Row]]
    words: str = ""

    @property
    def name(self) -> str:
        return f"{self.setting} {self.method} {self.seed}"

    @property
    def path(self) -> str:
        digest = hashlib.sha256(json.dumps(plain(self.settings), sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.setting}-{self.method}-{self.seed}-{digest}.jsonl"


class Watch(AbstractContextManager):
    """Who is told how a study goes on."""

    def plan(self, cells: int, finished: int, seconds: float) -> None:
        """Before anything runs: how many cells, how many of them finished earlier, and how long the rest may take."""

    def begin(self, cell: Cell) -> None: ...

    def row(self, cell: Cell, row: Row) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def run_study(cells: Sequence[Cell], folder: Path, rows_per_second: Callable[[], float], watch: Watch) -> list[Row]:
    """Run what has not been run, and return all rows.

    A finished cell is one file; it is not run again. A cell that was interrupted leaves nothing and starts afresh.
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
                _write(path, list(_watched(cell, watch)))
            rows += [json.loads(line) for line in read_file(path, MOST_TABLE).decode().splitlines()]
    return rows


def _watched(cell: Cell, watch: Watch) -> Iterator[Row]:
    for row in cell.run():
        full = plain({"method": cell.method, "setting": cell.setting, "seed": cell.seed, **row})
        watch.row(cell, full)
        yield full


def _write(path: Path, rows: Sequence[Row]) -> None:
    """All rows or none."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    os.replace(temporary, path)


@dataclass(frozen=True)
class Images:
    """Training and test images with labels: MNIST, or scikit-learn's digits where a quick look is enough."""

    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]

    @classmethod
    def load(cls, name: str, folder: Path | None = None, rows: int | None = None, validate: bool = False) -> "Images":
        """With `rows`, only so many random ones of the training part.

        With `validate`, a sixth of the training part takes the place of the test set: settings are chosen on it.
        """
        if name == "mnist":
            train, test = datasets.load_split("mnist", folder)
        else:
            X, y = datasets.load(name)
            train, test = datasets.train_test((X / X.max(), y), share=0.2)
        order = np.random.default_rng(0).permutation(len(train[1]))
        if validate:
            held_out, order = order[: len(order) // 6], order[len(order) // 6 :]
            test = (train[0][held_out], train[1][held_out])
        order = order[:rows]
        return cls((train[0][order], train[1][order]), test)

    def network(self, hidden: Sequence[int], **settings: Any) -> Network:
        return Network([self.train[0].shape[1], *hidden, int(self.train[1].max()) + 1], **settings)


@lru_cache
def decaying_adam(rate: float, steps: int) -> optax.GradientTransformation:
    """Adam whose rate falls to zero, as that of natural gradients does: what is left is the solvers' difference.

    The same object for the same numbers, so that programs are compiled once.
    """
    # Free energies are sums over rows: gradients as small as eps are rounding, which Adam would make whole steps of.
    return optax.adam(optax.cosine_decay_schedule(rate, steps), eps=1e-4)


def flops() -> float:
    """Floating-point operations per second of products of matrices of doubles, as large as those of sparse GPs."""
    A = np.ones((500, 500))
    A @ A
    began = time.perf_counter()
    for _ in range(10):
        A @ A
    return 10 * 2 * 500**3 / (time.perf_counter() - began)


def speed_of(model: Network) -> float:
    """Rows per second that one-message passes take here: a few passes over random rows."""
    import jax

    from partita.expectations import GaussNewton
    from partita.free_energy import LocalProblem

    generator = np.random.default_rng(0)
    X = generator.random((2000, model.layers[0]), np.float32)
    shard = model.shard(0, (X, generator.integers(0, model.layers[-1] // model.heads, 2000)))
    q: Any = model.start
    message = jax.jit(lambda q, key: LocalProblem(model, GaussNewton(), q, shard, model.hyper).message(q, key)[0])
    message(q, jax.random.key(0)).block_until_ready()
    began = time.perf_counter()
    for number in range(5):
        message(q, jax.random.key(number)).block_until_ready()
    return 5 * 2000 / (time.perf_counter() - began)


def curves(rows: Sequence[Row], setting: str) -> list[Curve]:
    """One curve per method: the first seed's."""
    here = [row for row in rows if row["setting"] == setting]
    methods = list(dict.fromkeys(row["method"] for row in here))
    seeds = {method: min(row["seed"] for row in here if row["method"] == method) for method in methods}
    return [
        Curve(method, [r for r in here if r["method"] == method and r["seed"] == seeds[method]]) for method in methods
    ]


def summary(
    rows: Sequence[Row], names: Sequence[str] = ("error", "nll", "ece"), reach: float | None = None
) -> list[Row]:
    """The last row of every cell, as mean and spread (half the range) over seeds.

    With `reach`, also how many messages it took to a test error of that much, if all seeds got there.
    """
    groups: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        groups.setdefault((row["setting"], row["method"]), {})[row["seed"]] = row
    table = []
    for (setting, method), by_seed in groups.items():
        last = list(by_seed.values())
        line: Row = {"setting": setting, "method": method, "seeds": len(last), "rounds": round(last[0]["round"])}
        for name in names:
            values = [row[name] for row in last if row.get(name) is not None]
            line[name] = spread(values, 100 if name == "error" else 1)
        line |= {name: last[0][name] for name in ("messages", "bytes", "points") if isinstance(last[0].get(name), int)}
        line["seconds"] = float(np.mean([row["seconds"] for row in last]))
        if reach is not None:
            counts = messages_to(rows, setting, method, reach)
            line[f"messages to {100 * reach:g} %"] = round(np.mean(counts)) if len(counts) == len(last) else None
        table.append(line)
    return table


def spread(values: Sequence[float], scale: float = 1.0) -> str:
    """Mean ± half the range."""
    if not values:
        return "–"
    half = scale * (max(values) - min(values)) / 2
    digits = 2 if scale == 100 else 4
    mean = f"{scale * float(np.mean(values)):.{digits}f}"
    return f"{mean} ± {half:.{digits}f}" if len(values) > 1 else mean


def messages_to(rows: Sequence[Row], setting: str, method: str, error: float) -> list[int]:
    """For every seed that gets there: how many messages until the test error is at most this."""
    counts = {}
    for row in rows:
        here = row["setting"] == setting and row["method"] == method
        if here and row["error"] is not None and row["error"] <= error and row["seed"] not in counts:
            counts[row["seed"]] = row["messages"]
    return [int(count) for count in counts.values()]
