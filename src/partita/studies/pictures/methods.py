"""The picture of docs/methods.md: published methods by granularity and optimisation, from the table itself."""

from pathlib import Path

from partita.report.charts import COLOURS
from partita.studies.methods import TABLE, Method
from partita.studies.pictures.drawing import import_pyplot

COLUMNS = {"global": "global: all data at once", "local": "local: sites in turn", "online": "online: each batch once"}
ROWS = ("moment matching", "gradient", "natural gradient", "analytic")
WORDS = {
    "whole": "one site",
    "batches": "a site per batch",
    "each_group": "a site per group",
    "each_row": "a site per row",
}
PARTITIONS = dict(zip(WORDS, COLOURS, strict=False))
PARTITIONS["few_rows"] = PARTITIONS["batches"]


def draw(path: Path) -> None:
    columns = list(COLUMNS)
    cells: dict[tuple[int, int], list[Method]] = {}
    for row in TABLE:
        column = columns.index("local" if row.family == "power EP" else row.family)
        cells.setdefault((column, ROWS.index(row.optimisation)), []).append(row)
    heights = [max(len(cells.get((column, level), [])) for column in range(3)) + 1 for level in range(len(ROWS))]
    figure, axes = import_pyplot().subplots(figsize=(10, 0.27 * sum(heights) + 0.8))
    bottom = 0
    for level, height in enumerate(heights):
        axes.axhline(bottom, color="#dddddd", lw=0.8)
        axes.text(-0.04, bottom + height / 2, ROWS[level], ha="right", va="center", fontweight="bold")
        for column in range(3):
            for number, row in enumerate(cells.get((column, level), [])):
                y = bottom + height - 1 - number
                axes.text(column + 0.04, y, "●", color=PARTITIONS[row.partition.__name__], va="center", fontsize=9)
                axes.text(column + 0.1, y, row.name, color="black", va="center", fontsize=9)
        bottom += height
    for column, words in enumerate(COLUMNS.values()):
        axes.plot([column, column], [0, bottom + 1.4], color="#dddddd", lw=0.8)
        axes.text(column + 0.5, bottom + 0.6, words, ha="center", fontweight="bold")
    for number, (name, words) in enumerate(WORDS.items()):
        axes.text(0.3 + 0.65 * number, -1.2, "●", color=PARTITIONS[name])
        axes.text(0.36 + 0.65 * number, -1.2, words, fontsize=9)
    axes.set(xlim=(-0.02, 3), ylim=(-1.6, bottom + 1.4))
    axes.axis("off")
    figure.savefig(path, dpi=110, bbox_inches="tight")
