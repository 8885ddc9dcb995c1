"""The picture of the robot arm: errors batch by batch, mean and spread over orders, from rows that are kept."""

from pathlib import Path

from partita.report.charts import COLOURS
from partita.studies.kept import choose_rows, read_kept
from partita.studies.paper.pictures import spread_by_round
from partita.studies.pictures.drawing import import_pyplot

ROWS = Path("docs/data/robot_arm.jsonl")


def draw(path: Path) -> None:
    """A panel for every torque there are rows of."""
    _, rows = read_kept(ROWS)
    torques = sorted({row["setting"] for row in rows})
    figure, axes = import_pyplot().subplots(
        1, len(torques), figsize=(max(6, 3.2 * len(torques)), 4), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, torque in zip(axes[0], torques, strict=True):
        for number, (method, (x, mean, low, high)) in enumerate(
            spread_by_round(choose_rows(rows, torque), "smse").items()
        ):
            colour = COLOURS[number % len(COLOURS)]
            axis.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
            axis.plot(x, mean, color=colour, label=method)
        axis.set(title=torque, xlabel="batches", yscale="log")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("SMSE")
    axes[0][0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=90)
