"""The picture of the paper's federated experiments, from rows that are kept: the best of each scheme, and grids."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partita.foundation.plain import Row
from partita.report.charts import COLOURS
from partita.studies.kept import choose_rows, read_kept
from partita.studies.paper.panels import OVER_FITTING, choose_best, group_traces
from partita.studies.pictures.drawing import import_pyplot

ROWS = Path("docs/data/federated.jsonl")
AXES = (("seconds", "error"), ("seconds", "nll"), ("messages", "error"))
WORDS = {
    "seconds": "seconds of workers side by side",
    "messages": "messages",
    "error": "test error, %",
    "nll": "test NLL",
}
GRIDS = ("pvi-sync", "pvi-async")
# Ticks of errors in per cent, and of NLL; errors from white to black on grids.
TICKS = {"error": (2, 3, 5, 10, 20, 50, 90), "nll": (0.05, 0.1, 0.2, 0.5, 1, 2)}
LEAST, MOST = 0.02, 0.9
# What fit does by itself.
OURS = "default"


def draw(path: Path) -> None:
    """Two lines of panels with the best of every scheme, and one with whole grids and with over-fitting."""
    pyplot = import_pyplot()
    _, rows = read_kept(ROWS)
    settings = sorted({row["setting"] for row in rows})
    figure = pyplot.figure(figsize=(13, 4 * len(settings) + 3.4), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[4 * len(settings), 3.4])
    axes = top.subplots(len(settings), len(AXES), squeeze=False)
    schemes = list(dict.fromkeys(row["scheme"] for row in rows if row["scheme"] != OVER_FITTING))
    others = [scheme for scheme in schemes if not scheme.startswith(OURS)]
    styles = {scheme: (COLOURS[n % len(COLOURS)], "-" if n < len(COLOURS) else "--") for n, scheme in enumerate(others)}
    styles |= {scheme: ("black", "-" if scheme == OURS else ":") for scheme in schemes if scheme.startswith(OURS)}
    for line, setting in zip(axes, settings, strict=True):
        _draw_best(line, choose_rows(rows, setting), styles)
        line[0].set_ylabel(f"{setting}\n{WORDS['error']}")
    panels = bottom.subplots(1, len(settings) * len(GRIDS) + 1)
    pairs = [(scheme, setting) for scheme in GRIDS for setting in settings]
    usual = [row for row in rows if row["scheme"] in GRIDS and "passes" not in row["method"]]
    steps = tuple(sorted({row[name] for row in usual}) for name in ("rate", "damping"))
    for axis, (scheme, setting) in zip(panels[:-1], pairs, strict=True):
        own = [row for row in choose_rows(usual, setting) if row["scheme"] == scheme]
        _draw_grid(axis, list(group_traces(own).values()), *steps)
        axis.set_title(f"{scheme}, {setting}: error, %", fontsize=9)
    _draw_over_fitting(panels[-1], [row for row in rows if row["scheme"] == OVER_FITTING])
    figure.savefig(path, dpi=90)


def _draw_best(line: Sequence[Any], rows: list[Row], styles: dict[str, tuple[str, str]]) -> None:
    traces = group_traces(rows)
    for scheme, method in choose_best(rows).items():
        colour, dash = styles[scheme]
        trace = traces[method]
        # One pass, and committees, send so little that a line has no length.
        for axis, (x, y) in zip(line, AXES, strict=True):
            xs, ys = [row[x] for row in trace], [row[y] * (100 if y == "error" else 1) for row in trace]
            axis.plot(xs, ys, dash, color=colour, linewidth=1.4, label=method)
            axis.plot(xs[-1], ys[-1], "o", color=colour, markersize=4)
    for axis, (x, y) in zip(line, AXES, strict=True):
        axis.set(xscale="log", yscale="log", xlabel=WORDS[x], ylabel=WORDS[y])
        axis.set_yticks(TICKS[y], [f"{tick:g}" for tick in TICKS[y]])
        axis.minorticks_off()
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    line[-1].legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_grid(axis: Any, traces: Sequence[Sequence[Row]], rates: list[float], dampings: list[float]) -> None:
    """Errors at the end by rate and damping, as numbers on shades; what was not run is left white."""
    errors = np.full((len(dampings), len(rates)), np.nan)
    for trace in traces:
        errors[dampings.index(trace[0]["damping"]), rates.index(trace[0]["rate"])] = trace[-1]["error"]
    shades = np.log(errors / LEAST) / np.log(MOST / LEAST)
    axis.imshow(shades, cmap="Greys", vmin=0, vmax=1.4, origin="lower", aspect="auto")
    for (line, column), error in np.ndenumerate(errors):
        axis.text(
            column, line, f"{100 * error:.1f}" if np.isfinite(error) else "–", ha="center", va="center", fontsize=9
        )
    axis.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates], fontsize=8)
    axis.set_yticks(range(len(dampings)), [f"{damping:g}" for damping in dampings], fontsize=8)
    axis.set(xlabel="learning rate", ylabel="damping")


def _draw_over_fitting(axis: Any, rows: list[Row]) -> None:
    """NLL of test and training rows, round by round."""
    for number, setting in enumerate(sorted({row["setting"] for row in rows})):
        for trace in group_traces(choose_rows(rows, setting)).values():
            rounds = [row["round"] for row in trace]
            axis.plot(rounds, [row["nll"] for row in trace], color=COLOURS[number], label=f"{setting}: test")
            axis.plot(rounds, [row["train_nll"] for row in trace], "--", color=COLOURS[number], label="training rows")
    axis.set(yscale="log", xlabel="rounds", ylabel="NLL")
    axis.set_yticks(TICKS["nll"][:4], [f"{tick:g}" for tick in TICKS["nll"][:4]])
    axis.minorticks_off()
    axis.set_title("over-fitting: pvi-sync for longer", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    if rows:
        axis.legend(frameon=False, fontsize=7)
