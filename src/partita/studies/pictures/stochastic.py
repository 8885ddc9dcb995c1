"""The paper's eighth figure, as runs: mini-batches inside one free energy, and random turns of fixed ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partita.families import Family
from partita.report.charts import COLOURS
from partita.server.schedules import RandomOrder, Sequential
from partita.solvers import FixedPoint
from partita.studies.pictures.drawing import import_pyplot
from partita.studies.pictures.one_weight import Rows, draw_rows, find_optimum, follow

ROWS, BATCHES, PASSES, SEEDS = draw_rows(1200, seed=4), 60, 3, 8
# Rates ρ' = L ρ of the first scheme, and ρ of the second.
INSIDE, TURNS = (1.0, 4.0, 16.0), (0.5, 1.0)


def step_inside(rate: float, passes: int, seed: int) -> list[float]:
    """Nats from global VI after every mini-batch of rows that are drawn anew (Eq. 13)."""
    solver = FixedPoint(step_size=rate / BATCHES, batch_size=len(ROWS[1]) // BATCHES)
    return _measure([ROWS], solver=solver, schedule=Sequential(passes * BATCHES), damping=1.0, seed=seed)


def step_between(rate: float, passes: int, seed: int) -> list[float]:
    """The same where each mini-batch is always the same rows, has a factor, and is visited in random order (Eq. 15)."""
    X, y = ROWS
    groups = [(X[start::BATCHES], y[start::BATCHES]) for start in range(BATCHES)]
    return _measure(groups, solver=FixedPoint(step_size=1.0), schedule=RandomOrder(passes), damping=rate, seed=seed)


def average(scheme: Any, rate: float, passes: int, seeds: int = SEEDS) -> np.ndarray:
    """The mean over seeds, after every mini-batch."""
    found: np.ndarray = np.mean([scheme(rate, passes, seed) for seed in range(seeds)], axis=0)
    return found


def draw(path: Path) -> None:
    """How far both schemes are from global VI, mini-batch by mini-batch."""
    figure, axis = import_pyplot().subplots(figsize=(9, 4.2), layout="constrained")
    seen = np.arange(1, PASSES * BATCHES + 1)
    for rate, colour in zip(INSIDE, COLOURS, strict=False):
        name = f"inside one free energy, ρ' = {rate:g}"
        axis.plot(seen, average(step_inside, rate, PASSES), "--", color=colour, label=name)
    for rate, colour in zip(TURNS, ("#909090", "black"), strict=True):
        name = f"random turns, ρ = {rate:g}"
        axis.plot(seen, average(step_between, rate, PASSES), color=colour, label=name)
    axis.axvline(BATCHES, color="#bbbbbb", linewidth=1)
    words = {"rotation": 90, "fontsize": 8, "color": "#808080", "va": "bottom", "transform": axis.get_xaxis_transform()}
    axis.text(BATCHES * 1.03, 0.03, "as many rows as there are", **words)
    axis.set(xscale="log", yscale="log", xlabel="mini-batches")
    axis.set_ylabel("nats from global VI")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8, loc="lower left")
    figure.savefig(path, dpi=90)


def _measure(groups: Sequence[Rows], **options: Any) -> list[float]:
    best: Family = find_optimum([ROWS])
    return [float(moment.event.posterior.kl(best)) for moment in follow(groups, **options)]
