"""The picture of hyperparameters of the banana stream, batch by batch, from rows that are kept."""

from pathlib import Path
from typing import Any

import numpy as np

from partita.report.charts import COLOURS
from partita.studies.kept import choose_rows, read_kept
from partita.studies.paper.banana import SETTINGS
from partita.studies.pictures.drawing import import_pyplot

ROWS = Path("docs/data/banana.jsonl")
NAMES = ("variance", "lengthscale 1", "lengthscale 2")


def draw(path: Path) -> None:
    """A line of panels for every setting: medians of q(θ), or the point, as mean and range over seeds."""
    _, rows = read_kept(ROWS)
    figure, axes = import_pyplot().subplots(len(SETTINGS), 3, figsize=(11, 8), sharex=True, layout="constrained")
    for line, setting in zip(axes, SETTINGS, strict=True):
        here = choose_rows(rows, setting)
        methods = sorted({row["method"] for row in here if row["round"] > 1})
        for column, (axis, name) in enumerate(zip(line, NAMES, strict=True)):
            for number, method in enumerate(methods):
                _draw_method(axis, [row for row in here if row["method"] == method], column, number, method)
            axis.set(yscale="log", title=name, xticks=(1, 2, 3))
            axis.spines[["top", "right"]].set_visible(False)
        line[0].set_ylabel(setting)
    axes[-1][1].set_xlabel("batch")
    axes[0][0].legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=90)


def _draw_method(axis: Any, rows: list[dict[str, Any]], column: int, number: int, method: str) -> None:
    rounds = sorted({row["round"] for row in rows})
    values = [[[row["variance"], *row["lengthscales"]][column] for row in rows if row["round"] == r] for r in rounds]
    middle = np.array([np.mean(each) for each in values])
    low, high = (np.array([choose(each) for each in values]) for choose in (min, max))
    # Side by side, so that ranges can be told apart.
    x = np.array(rounds) + 0.05 * number
    axis.errorbar(
        x, middle, [middle - low, high - middle], color=COLOURS[number % len(COLOURS)], marker="o", markersize=3,
        linewidth=1, label=method, linestyle="-" if method.endswith("vi") else "--",
    )  # fmt: skip
