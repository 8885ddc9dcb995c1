"""An HTML page with a table and interactive charts, readable offline, in light and dark, and on a phone."""

import html
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from partita.errors import StorageError
from partita.telemetry import Row

# Okabe and Ito's colours, told apart by most people; black and yellow left out for the sake of both themes.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
DASHES = ("solid", "solid", "solid", "solid", "dot", "dash")

LABELS = {
    "round": "rounds (updates per site)",
    "messages": "messages",
    "seconds": "seconds at the sites",
    "error": "test error",
    "nll": "test NLL",
    "ece": "calibration error",
    "rmse": "test RMSE",
    "smse": "test SMSE",
    "free_energy": "free energy",
    "accepted": "accepted share",
    "staleness": "staleness of updates",
    "change": "KL from before",
    "nlpd": "test NLPD",
    "coverage": "share in 95 % intervals",
    "points": "pseudo-points",
    "variance": "variance of the process",
}


@dataclass(frozen=True)
class Curve:
    """One method's history."""

    name: str
    rows: Sequence[Row]

    def points(self, x: str, y: str) -> tuple[list, list]:
        pairs = [(r[x], r[y]) for r in self.rows if r.get(x) is not None and r.get(y) is not None]
        finite = [(a, b) for a, b in pairs if np.isfinite(a) and np.isfinite(b)]
        return [a for a, _ in finite], [b for _, b in finite]


@dataclass(frozen=True)
class Chart:
    """Which numbers are drawn against which, and which of the axes are logarithmic."""

    x: str
    y: str
    log_x: bool = False
    log_y: bool = True


CHARTS = (
    Chart("round", "error"),
    Chart("messages", "nll"),
    Chart("seconds", "nll"),
    Chart("round", "rmse", log_y=False),
    Chart("round", "free_energy", log_y=False),
    Chart("round", "accepted", log_y=False),
    Chart("round", "staleness", log_y=False),
    Chart("round", "change"),
)


@dataclass(frozen=True)
class Report:
    """What goes on a page: a title, some words, a table, curves in charts, and pictures made elsewhere.

    `notes` say what a name in the table stands for.
    """

    title: str
    words: str
    table: Sequence[Row]
    curves: Sequence[Curve]
    figures: Sequence[Any] = field(default_factory=tuple)
    charts: Sequence[Chart] = CHARTS
    notes: Mapping[str, str] = field(default_factory=dict)


def line_chart(curves: Sequence[Curve], chart: Chart) -> Any | None:
    """One chart with a line per method, or None if nobody has such numbers."""
    import plotly.graph_objects as go

    figure, x, y = go.Figure(), chart.x, chart.y
    for number, curve in enumerate(curves):
        points = [
            (a, b)
            for a, b in zip(*curve.points(x, y), strict=True)
            if (a > 0 or not chart.log_x) and (b > 0 or not chart.log_y)
        ]
        if points:
            if len({a for a, _ in points}) == 1:
                points = points[-1:]
            xs, ys = zip(*points, strict=True)
            style = {"color": COLOURS[number % len(COLOURS)], "dash": DASHES[number % len(DASHES)]}
            mode = "lines" if len(xs) > 1 else "markers"
            figure.add_scatter(x=xs, y=ys, name=curve.name, mode=mode, line=style, marker={"size": 11})
    if not figure.data:
        return None
    figure.update_yaxes(type="log" if chart.log_y else "linear", title=LABELS.get(y, y))
    if y == "free_energy":
        figure.update_yaxes(range=energy_range(figure))
    figure.update_xaxes(type="log" if chart.log_x else "linear", title=LABELS.get(x, x))
    return styled(figure)


def energy_range(figure: Any) -> list[float]:
    """Where free energies end up; they start orders of magnitude lower."""
    values = np.concatenate([np.asarray(line.y, float) for line in figure.data])
    low, high = np.quantile(values, 0.15), np.max(values)
    return [float(low - 0.02 * (high - low)), float(high + 0.05 * (high - low) + 1e-9)]


def styled(figure: Any) -> Any:
    """Transparent, with greys that can be read on white and on black."""
    grid = {"gridcolor": "rgba(128,128,128,0.25)", "zerolinecolor": "rgba(128,128,128,0.4)"}
    figure.update_layout(
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": "#808080", "family": "system-ui, sans-serif", "size": 13},
        margin={"l": 60, "r": 15, "t": 30, "b": 50},
        height=400,
        legend={"orientation": "h", "yanchor": "top", "y": -0.2, "x": 0},
        modebar={"bgcolor": "rgba(0,0,0,0)"},
    )
    figure.update_xaxes(**grid)
    figure.update_yaxes(**grid)
    return figure


def site_chart(shards: Sequence[tuple]) -> Any:
    """How many rows of which label every site has."""
    import plotly.graph_objects as go

    labels = np.unique(np.concatenate([shard[1] for shard in shards]))
    counts = np.array([[np.sum(shard[1] == label) for shard in shards] for label in labels])
    figure = go.Figure(
        go.Heatmap(
            z=counts,
            x=[f"site {m}" for m in range(len(shards))],
            y=[f"{label:g}" for label in labels],
            colorscale="Blues",
            colorbar={"title": "rows"},
        )
    )
    figure.update_yaxes(title="label", type="category")
    return styled(figure)


def calibration_chart(reliabilities: dict[str, tuple]) -> Any:
    """Accuracy against confidence; on the diagonal, probabilities mean what they say."""
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", name="calibrated", line={"color": "#808080", "dash": "dot"})
    for number, (name, (_, confidence, accuracy, share)) in enumerate(reliabilities.items()):
        figure.add_scatter(
            x=confidence,
            y=accuracy,
            name=name,
            mode="lines+markers",
            line={"color": COLOURS[number % len(COLOURS)]},
            marker={"size": 5 + 20 * np.sqrt(share)},
        )
    figure.update_xaxes(title="confidence", range=[0, 1.02])
    figure.update_yaxes(title="accuracy", range=[0, 1.05])
    return styled(figure)


def write_report(path: str | os.PathLike, report: Report) -> Path:
    """Write the page, complete or not at all."""
    charts = [line_chart(report.curves, chart) for chart in report.charts]
    figures = [*report.figures, *(chart for chart in charts if chart is not None)]
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(page(report, figures))
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        raise StorageError(f"{target}: {error.strerror or error}") from error
    return target


def page(report: Report, figures: Sequence[Any]) -> str:
    from plotly.offline import get_plotlyjs

    config = {"responsive": True, "displaylogo": False}
    cells = [f.to_html(full_html=False, include_plotlyjs=False, config=config) for f in figures]
    return TEMPLATE.format(
        title=html.escape(report.title),
        words=html.escape(report.words),
        table=html_table(report.table),
        notes=html_notes(report.notes),
        charts="\n".join(f'<section class="chart">{cell}</section>' for cell in cells),
        script=get_plotlyjs(),
    )


def html_table(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th scope='col'>{html.escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(shown(value, name))}</td>" for name, value in row.items()) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_notes(notes: Mapping[str, str]) -> str:
    items = (f"<dt>{html.escape(name)}</dt><dd>{html.escape(words)}</dd>" for name, words in notes.items())
    return f"<dl>{''.join(items)}</dl>" if notes else ""


def shown(value: Any, name: str = "") -> str:
    """A number as people read it."""
    if value is None:
        return "–"
    if name == "bytes" and value >= 1e9:
        return f"{value / 1e9:.1f} GB"
    if name == "bytes":
        return f"{value / 1e6:.1f} MB" if value >= 1e6 else f"{value / 1e3:.0f} kB"
    if isinstance(value, float):
        if not np.isfinite(value):
            return "∞" if value > 0 else "–∞"
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 1400px; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 0.3rem 0.8rem; text-align: right; white-space: nowrap; }}
tr {{ border-bottom: 1px solid rgba(128,128,128,0.3); }}
th:first-child, td:first-child {{ text-align: left; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; font-size: 0.9rem; }}
dd {{ margin: 0; opacity: 0.8; }}
.charts {{ display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); }}
.chart {{ min-width: 0; }}
</style>
<script>{script}</script>
</head>
<body>
<h1>{title}</h1>
<p>{words}</p>
<div class="scroll">{table}</div>
{notes}
<div class="charts">
{charts}
</div>
<script>
const charts = document.querySelectorAll(".js-plotly-plot");
addEventListener("load", () => charts.forEach((chart) => Plotly.Plots.resize(chart)));
</script>
</body>
</html>
"""
