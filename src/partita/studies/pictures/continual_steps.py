"""The paper's first figure, left: continual learning step by step, from a run over three batches."""

from pathlib import Path

import numpy as np

from partita.report.charts import COLOURS
from partita.server.schedules import Sequential
from partita.studies.pictures.drawing import import_pyplot
from partita.studies.pictures.one_weight import (
    MODEL,
    SOLVED,
    WEIGHTS,
    Moment,
    Rows,
    density,
    draw_rows,
    find_optimum,
    follow,
    likelihood,
    shape,
    tidy,
)

# A few rows that leave the weight open to one side, some that say the contrary, and more.
BATCHES: tuple[Rows, ...] = (
    (np.array([[1.0], [1.6], [0.7]]), np.array([1.0, 1.0, 1.0])),
    (np.array([[-0.8], [-1.2], [0.9], [0.4]]), np.array([1.0, 0.0, 1.0, 0.0])),
    draw_rows(16, seed=3),
)
STEPS = ("batch 1", "batch 2", "batch 3", "batch 1, visited again")


def run() -> list[Moment]:
    """Four folds: each batch once, and the first again."""
    found = follow(BATCHES, solver=SOLVED, schedule=Sequential(2), damping=1.0)
    return [moment for moment, _ in zip(found, STEPS, strict=False)]


def draw(path: Path) -> None:
    """Above: the posterior before and after, and what the batch says; below: all factors."""
    figure, axes = import_pyplot().subplots(
        2, len(STEPS), figsize=(13, 5), sharex=True, sharey="row", height_ratios=(3, 2), layout="constrained"
    )
    best, before = find_optimum(BATCHES), MODEL.prior(MODEL.hyper)
    for number, (moment, title) in enumerate(zip(run(), STEPS, strict=True)):
        (upper, lower), site, after = axes[:, number], number % len(BATCHES), moment.event.posterior
        top = density(best).max()
        upper.fill_between(WEIGHTS, density(before), color="#dddddd", linewidth=0, label="posterior before")
        upper.plot(WEIGHTS, top * likelihood(BATCHES[site]), ":", color=COLOURS[site], label="likelihood of the batch")
        upper.plot(WEIGHTS, density(after), color="black", linewidth=2, label="posterior after")
        gap = f"\n{float(after.kl(best)):.1g} nats from all rows at once" if number >= len(BATCHES) - 1 else ""
        upper.set_title(f"{number + 1}. {title}{gap}", fontsize=10)
        for other, factor in enumerate(moment.factors):
            wide = 2.5 if other == site else 1
            name = f"factor of batch {other + 1}"
            lower.plot(WEIGHTS, shape(factor), color=COLOURS[other], linewidth=wide, label=name)
        lower.set_xlabel("θ")
        for axis in (upper, lower):
            tidy(axis)
        before = after
    handles = [line for axis in axes[:, 0] for line in axis.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, frameon=False, fontsize=9, ncols=len(handles), loc="outside lower center")
    figure.savefig(path, dpi=90)
