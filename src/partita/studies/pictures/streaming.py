"""The picture of docs/streaming.md: a stream in one dimension."""

from pathlib import Path

import numpy as np

from partita.report.charts import COLOURS
from partita.studies.paper import streaming_1d
from partita.studies.pictures.drawing import import_pyplot


def draw(path: Path) -> None:
    figure, axes = import_pyplot().subplots(
        2, streaming_1d.BATCHES, figsize=(14, 5.2), sharex=True, sharey=True, layout="constrained"
    )
    for line, cell in zip(axes, streaming_1d.cells(None, 1), strict=True):
        earlier: list[np.ndarray] = []
        for axis, row in zip(line, cell.run(), strict=True):
            x, mean, std = (np.array(row[name]) for name in ("x", "mean", "std"))
            axis.fill_between(x, mean - 1.96 * std, mean + 1.96 * std, color=COLOURS[0], alpha=0.2, linewidth=0)
            axis.plot(x, streaming_1d.truth(x), color="grey", linestyle=":", linewidth=1)
            axis.plot(x, mean, color=COLOURS[0], linewidth=1.5)
            for old in earlier:
                axis.plot(*old, ".", color="#bbbbbb", markersize=3)
            earlier.append(np.array(row["batch"]))
            axis.plot(*earlier[-1], ".", color=COLOURS[1], markersize=4)
            axis.plot(row["places"], np.full(len(row["places"]), -2.7), "^", color="grey", markersize=4)
            axis.set(ylim=(-2.9, 2.9))
            axis.spines[["top", "right"]].set_visible(False)
        line[0].set_ylabel(cell.method)
    for axis, number in zip(axes[0], range(1, streaming_1d.BATCHES + 1), strict=True):
        axis.set_title(f"batch {number}", fontsize=10)
    figure.savefig(path, dpi=90)
