"""The paper's first figure, right: federated learning without waiting, step by step, from a run of three workers."""

from pathlib import Path
from typing import Any

from partita.engines import InProcess
from partita.report.charts import COLOURS
from partita.server.schedules import Asynchronous
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

WORKERS: tuple[Rows, ...] = (draw_rows(5, seed=1), draw_rows(9, seed=2), draw_rows(14, seed=5))
SPEEDS = (1.0, 0.62, 0.37)
UPDATES, SHARE = 14, 0.5
# Folds after which the posterior is drawn.
SHOWN = (1, 3, 6, UPDATES)


def run() -> list[Moment]:
    """Every fold; of each change a half is taken."""
    return list(follow(WORKERS, solver=SOLVED, schedule=Asynchronous(UPDATES), damping=SHARE, engine=InProcess(SPEEDS)))


def draw(path: Path) -> None:
    """Above: who works when, and what is sent; below: the posterior and all factors after some of the folds."""
    moments, best = run(), find_optimum(WORKERS)
    figure = import_pyplot().figure(figsize=(13, 5.6), layout="constrained")
    grid = figure.add_gridspec(2, len(SHOWN), height_ratios=(3, 2))
    _draw_times(figure.add_subplot(grid[0, :]), moments)
    first = None
    for column, number in enumerate(SHOWN):
        first = axis = figure.add_subplot(grid[1, column], sharey=first)
        moment = moments[number - 1]
        axis.fill_between(WEIGHTS, density(best), color="#dddddd", linewidth=0, label="global VI")
        axis.plot(WEIGHTS, density(moment.event.posterior), color="black", linewidth=2, label="posterior")
        for site, factor in enumerate(moment.factors):
            height = 0.5 * density(best).max()
            axis.plot(WEIGHTS, height * shape(factor), color=COLOURS[site], linewidth=1, label=f"factor {site + 1}")
        gap = float(moment.event.posterior.kl(best))
        axis.set_title(f"update {number}: {gap:.2g} nats from global VI", fontsize=9)
        axis.set_xlabel("θ")
        tidy(axis)
        if column == 0:
            axis.legend(frameon=False, fontsize=7, loc="upper right")
    figure.savefig(path, dpi=90)


def _draw_times(axis: Any, moments: list[Moment]) -> None:
    """A lane for every worker below the server's; nobody waits, so a task begins where the last one ended."""
    server, begun = len(WORKERS), [0.0] * len(WORKERS)
    end = moments[-1].event.clock
    axis.plot([0, end], [server, server], color="black", linewidth=3, solid_capstyle="butt")
    for moment in moments:
        (site,), now = moment.event.sites, moment.event.clock
        lane, colour = server - 1 - site, COLOURS[site]
        axis.barh(lane, now - begun[site], left=begun[site], height=0.34, color=colour, alpha=0.35, edgecolor=colour)
        axis.annotate("", (now, server), (now, lane), arrowprops={"arrowstyle": "<|-|>", "color": colour})
        if moment.event.staleness:
            place = (now - 0.04, lane)
            axis.text(*place, f"{moment.event.staleness} behind", ha="right", va="center", fontsize=7)
        axis.text(now, server + 0.12, str(moment.event.fold), ha="center", fontsize=8)
        begun[site] = now
    names = [f"worker {site + 1}: {len(y)} rows" for site, (_, y) in enumerate(WORKERS)]
    axis.set(ylim=(-0.5, server + 0.45), xlim=(-0.05, end + 0.15), xlabel="time")
    axis.set_yticks([*range(server - 1, -1, -1), server], [*names, "server: posterior"])
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
