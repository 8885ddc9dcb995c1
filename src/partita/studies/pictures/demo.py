"""The README's picture: what `partita demo` measures, drawn."""

from pathlib import Path

from partita.report.charts import COLOURS, LABELS
from partita.studies.demo import run_demo
from partita.studies.pictures.drawing import import_pyplot


def draw(path: Path) -> None:
    pyplot = import_pyplot()
    outcomes, _ = run_demo(0, lambda name, labels: ())
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for axis, quantity in zip(axes, ("nll", "free_energy"), strict=True):
        for colour, outcome in zip(COLOURS, outcomes, strict=True):
            known = [row for row in outcome.curve.rows if row.get(quantity) is not None]
            xs, ys = [row["round"] for row in known], [row[quantity] for row in known]
            final = outcome.row["log evidence" if quantity == "free_energy" else quantity]
            if outcome.row["rounds"] == 1:
                axis.axhline(final, color=colour, linestyle="--", linewidth=1.2, label=outcome.row["method"])
            else:
                axis.plot(xs, ys, color=colour, linewidth=1.8, label=outcome.row["method"])
        axis.set(xlabel=LABELS["round"], ylabel=LABELS[quantity], xlim=(0, 40))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    axes[0].set(yscale="log", ylim=(0.13, 2.5))
    axes[1].set(ylim=(-1500, -650))
    axes[0].legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=110)
