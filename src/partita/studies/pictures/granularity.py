"""The paper's second figure: one set of rows as one group, as several, and row by row, by three schedules."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partita.report.charts import COLOURS
from partita.server.schedules import OnePass, Sequential, Synchronous
from partita.solvers import FixedPoint
from partita.studies.pictures.drawing import import_pyplot
from partita.studies.pictures.one_weight import (
    SOLVED,
    WEIGHTS,
    Moment,
    Rows,
    density,
    draw_rows,
    find_optimum,
    follow,
    shape,
    tidy,
)

ROWS = draw_rows(24, seed=8)
# Numbers of groups: those whose factors are drawn, and those that one pass is measured with.
SHOWN, MORE = (1, 4, 24), (1, 2, 3, 4, 6, 8, 12, 24)
WORDS = {1: "M = 1: global", 4: "M = 4: local", 24: "M = N = 24: fully local"}
STEP = FixedPoint(step_size=1.0)
PASSES = 8


def split_rows(number: int) -> list[Rows]:
    X, y = ROWS
    return [(X[part], y[part]) for part in np.array_split(np.arange(len(y)), number)]


def measure(number: int, schedule: Any, solver: Any = STEP) -> list[float]:
    """KL from the optimum of global VI after every pass, or at the end of a single one."""
    best, moments = (
        find_optimum([ROWS]),
        list(follow(split_rows(number), schedule=schedule, solver=solver, damping=1.0)),
    )
    return [float(moment.event.posterior.kl(best)) for moment in passes(moments, number)]


def passes(moments: Sequence[Moment], number: int) -> list[Moment]:
    """Those after which all groups have been visited equally often."""
    return [moment for moment in moments if moment.event.version % number == 0]


def draw(path: Path) -> None:
    """Above: factors and posterior; below: how far the posterior is from global VI."""
    figure, axes = import_pyplot().subplots(2, len(SHOWN), figsize=(13, 6.4), layout="constrained")
    for axis, number in zip(axes[0], SHOWN, strict=True):
        _draw_factors(axis, number)
    _draw_passes(axes[1, 0], Sequential(PASSES), "groups in turn")
    _draw_passes(axes[1, 1], Synchronous(PASSES), "all groups at once")
    lost = [measure(number, OnePass(), SOLVED)[-1] for number in MORE]
    axes[1, 2].plot(MORE, lost, "o-", color=COLOURS[3])
    axes[1, 2].set(xscale="log", title="each group once, solved", xlabel="groups M", ylim=(-0.01, 1.15 * max(lost)))
    axes[1, 2].set_xticks(MORE, map(str, MORE))
    axes[1, 2].minorticks_off()
    for axis in axes[1]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    axes[1, 0].set_ylabel("nats from global VI")
    figure.savefig(path, dpi=90)


def _draw_factors(axis: Any, number: int) -> None:
    moment = list(follow(split_rows(number), schedule=Sequential(PASSES), solver=STEP, damping=1.0))[-1]
    axis.fill_between(WEIGHTS, density(moment.event.posterior), color="#cccccc", linewidth=0)
    height = density(moment.event.posterior).max()
    for factor in moment.factors:
        axis.plot(WEIGHTS, height * shape(factor), color=COLOURS[SHOWN.index(number)], linewidth=1)
    axis.set(title=WORDS[number], xlabel="θ")
    tidy(axis)


def _draw_passes(axis: Any, schedule: Any, title: str) -> None:
    for place, number in enumerate(SHOWN):
        # Lines that lie on each other are all seen.
        style = {"linewidth": 5 - 2 * place, "alpha": 0.8, "color": COLOURS[place]}
        axis.plot(range(1, PASSES + 1), measure(number, schedule), label=f"M = {number}", **style)
    axis.set(title=title, xlabel="passes over all rows", yscale="log", ylim=(1e-14, 10))
    axis.legend(frameon=False, fontsize=8)
