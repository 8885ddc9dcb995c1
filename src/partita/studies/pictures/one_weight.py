"""A logistic regression with one weight: small enough that everything about its inference can be drawn."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.families import Family
from partita.fitting import fit, prepare
from partita.models import LogisticRegression
from partita.server.events import Event
from partita.server.loop import iterate
from partita.server.schedules import Sequential
from partita.solvers import FixedPoint

MODEL = LogisticRegression(1, intercept=False, prior_scale=3.0)
# A local free energy is climbed to the top.
SOLVED = FixedPoint(steps=200, tolerance=1e-12)
WEIGHTS = np.linspace(-3.5, 8.5, 600)

Rows = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Moment:
    """A run after one fold: what it told, and all factors."""

    event: Event
    factors: Sequence[Family]


def draw_rows(number: int, seed: int, reach: float = 1.0) -> Rows:
    """Rows whose labels have odds of exp(1.5 x)."""
    generator = np.random.default_rng(seed)
    X = reach * generator.normal(size=(number, 1))
    return X, (generator.random(number) < 1 / (1 + np.exp(-1.5 * X[:, 0]))).astype(float)


def follow(groups: Sequence[Rows], **options: Any) -> Iterator[Moment]:
    """Run over groups of rows, fold by fold."""
    run, shards = prepare(MODEL, groups, options=options)
    run.engine.open(run.job(), shards)
    for event in iterate(run):
        yield Moment(event, [run.ledger.factor(site) for site in range(len(groups))])


def find_optimum(groups: Sequence[Rows]) -> Family:
    """The posterior of global VI: all rows in one group."""
    together = tuple(np.concatenate(parts) for parts in zip(*groups, strict=True))
    return fit(MODEL, [together], solver=SOLVED, schedule=Sequential(3), damping=1.0).posterior


def density(q: Family) -> np.ndarray:
    """q at `WEIGHTS`."""
    return np.exp(_log(q) - float(q.log_partition()))


def shape(factor: Family) -> np.ndarray:
    """A factor there, relative to its largest value: its scale means nothing."""
    return relative(_log(factor))


def likelihood(rows: Rows) -> np.ndarray:
    """p(y | θ) there, relative to its largest value."""
    X, y = rows
    f = X @ WEIGHTS[None]
    return relative(np.sum(y[:, None] * f - np.logaddexp(0, f), axis=0))


def relative(log_values: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.exp(log_values - log_values.max())
    return found


def _log(q: Any) -> np.ndarray:
    """⟨η, T(θ)⟩ there."""
    found: np.ndarray = WEIGHTS * q.precision_times_location[0] - 0.5 * WEIGHTS**2 * q.precision[0, 0]
    return found


def tidy(axis: Any) -> None:
    """No frame, and no marks of densities, whose height means little."""
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.set(yticks=[], xlim=(WEIGHTS[0], WEIGHTS[-1]))
