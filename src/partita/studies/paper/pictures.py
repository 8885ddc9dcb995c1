"""The paper's pictures of streams, drawn from the rows of a study."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.foundation.plain import Row
from partita.report.charts import COLOURS, LABELS, Picture
from partita.report.charts.base import style_figure

# A panel's place in a figure, and the row of the study that is drawn there.
Panel = tuple[dict[str, int], Row]


def make_panels(rows: Sequence[Row], batches: bool = False, **spacing: float) -> tuple[Any, list[list[Panel]]]:
    """A figure with a line of panels for every method, one after every batch; with `batches`, these have titles."""
    from plotly.subplots import make_subplots

    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row["method"], []).append(row)
    columns = max(map(len, by_method.values()))
    titles = [f"batch {number}" for number in range(1, columns + 1)] if batches else None
    figure = make_subplots(
        len(by_method), columns, row_titles=list(by_method), column_titles=titles, shared_xaxes=True, shared_yaxes=True,
        **spacing,
    )  # fmt: skip
    lines = [
        [({"row": line, "col": column}, row) for column, row in enumerate(own, 1)]
        for line, own in enumerate(by_method.values(), 1)
    ]
    return figure, lines


def surfaces(rows: Sequence[Row]) -> Picture:
    """Probabilities after every batch, a line of panels per method, with what was seen so far and the pseudo-points."""
    figure, lines = make_panels(rows, horizontal_spacing=0.02, vertical_spacing=0.03)
    for line in lines:
        seen: list[tuple[np.ndarray, np.ndarray]] = []
        for place, row in line:
            figure.add_contour(
                x=row["axes"][0], y=row["axes"][1], z=row["surface"], zmin=0, zmax=1, colorscale="RdBu",
                contours={"start": 0.1, "end": 0.9, "size": 0.2}, showscale=False, **place,
            )  # fmt: skip
            seen.append((np.array(row["batch"][0]), np.array(row["batch"][1])))
            for label, colour in ((0, "#8b1a1a"), (1, "#123a6b")):
                X = np.concatenate([x[y == label] for x, y in seen])
                figure.add_scatter(x=X[:, 0], y=X[:, 1], mode="markers", marker={"size": 3, "color": colour}, **place)
            points = np.reshape(row["points"], (-1, 2))
            figure.add_scatter(
                x=points[:, 0], y=points[:, 1], mode="markers",
                marker={"size": 7, "color": "black", "symbol": "x-thin", "line": {"width": 2}}, **place,
            )  # fmt: skip
    style_figure(figure).update_layout(height=240 * len(lines) + 60, showlegend=False)
    words = "Probabilities of the second class after every batch, with what was seen and the pseudo-points."
    return Picture("What is learnt, batch by batch", words, figure, wide=True)


def beliefs(rows: Sequence[Row]) -> Picture:
    """What each method believes of the hyperparameters after every batch: densities, or a line for a point.

    A method that has seen all rows at once is drawn beside every batch.
    """
    from plotly.subplots import make_subplots

    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row["method"], []).append(row)
    names, batches = ["variance", "lengthscale 1", "lengthscale 2"], max(map(len, by_method.values()))
    titles = {
        "column_titles": [f"log {name}" for name in names],
        "row_titles": [f"batch {number + 1}" for number in range(batches)],
    }
    figure = make_subplots(
        batches, 3, **titles,
        shared_xaxes="columns", horizontal_spacing=0.06, vertical_spacing=0.05,
    )  # fmt: skip
    for number, (method, own) in enumerate(by_method.items()):
        colour = COLOURS[number % len(COLOURS)]
        for batch in range(batches):
            row = own[min(batch, len(own) - 1)]
            for column, draws in enumerate([*row["drawn"]["variance"], *row["drawn"]["lengthscale"]], 1):
                shown = {"name": method, "legendgroup": method, "showlegend": batch == 0 and column == 1}
                place = {"row": batch + 1, "col": column}
                if len(draws) == 1:
                    line = {"color": colour, "dash": "dash"}
                    figure.add_scatter(x=draws * 2, y=[0, 1], mode="lines", line=line, **place, **shown)
                else:
                    x, density = smooth(np.array(draws))
                    figure.add_scatter(x=x, y=density, mode="lines", line={"color": colour}, **place, **shown)
    style_figure(figure).update_layout(height=240 * batches + 100, margin_t=70)
    words = "Densities of logarithms after every batch; dashed lines are points."
    return Picture("Hyperparameters", words, figure, wide=True)


def spread_by_round(rows: Sequence[Row], name: str) -> dict[str, np.ndarray]:
    """Round, mean, smallest and largest of a number over seeds, one line each, for every method.

    Only rounds that all of a method's seeds have come to: a mean over others would jump.
    """
    values: dict[str, dict[int, dict[int, float]]] = {}
    for row in rows:
        values.setdefault(row["method"], {}).setdefault(row["seed"], {})[row["round"]] = row[name]
    found = {}
    for method, by_seed in values.items():
        rounds = sorted(set.intersection(*map(set, by_seed.values())))
        table = np.array([[own[number] for number in rounds] for own in by_seed.values()])
        found[method] = np.stack([np.array(rounds, float), table.mean(0), table.min(0), table.max(0)])
    return found


def spreads(rows: Sequence[Row], name: str) -> Picture:
    """A number after every batch: the mean over all orders of the stream, and a band from the least to the most."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for number, (method, (x, mean, low, high)) in enumerate(spread_by_round(rows, name).items()):
        colour, shown = COLOURS[number % len(COLOURS)], {"name": method, "legendgroup": method}
        figure.add_scatter(
            x=np.concatenate([x, x[::-1]]), y=np.concatenate([high, low[::-1]]), fill="toself", mode="lines",
            line={"width": 0, "color": colour}, opacity=0.2, showlegend=False, **shown,
        )  # fmt: skip
        figure.add_scatter(x=x, y=mean, mode="lines", line={"color": colour}, **shown)
    style_figure(figure).update_layout(height=420)
    figure.update_yaxes(type="log", title=LABELS.get(name, name))
    figure.update_xaxes(title="batches")
    words = "Lines are means over all seeds or orders, bands go from the least to the most."
    return Picture("Mean and spread, batch by batch", words, figure, wide=True)


def smooth(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points, and a kernel density estimate of draws there."""
    from scipy.stats import gaussian_kde

    x = np.linspace(draws.min() - 0.3, draws.max() + 0.3, 200)
    return x, gaussian_kde(draws)(x)


def frames(rows: Sequence[Row], truth: Any) -> Picture:
    """One panel per batch: the function, the data of that batch and of earlier ones, the prediction, the points."""
    figure, lines = make_panels(rows, batches=True, horizontal_spacing=0.01, vertical_spacing=0.04)
    for line in lines:
        earlier: list[list[float]] = [[], []]
        for place, row in line:
            x, mean, std = (np.array(row[name]) for name in ("x", "mean", "std"))
            band = np.concatenate([mean + 1.96 * std, (mean - 1.96 * std)[::-1]])
            figure.add_scatter(
                x=np.concatenate([x, x[::-1]]), y=band, fill="toself", mode="lines", line={"width": 0},
                fillcolor="rgba(0,114,178,0.2)", **place,
            )  # fmt: skip
            figure.add_scatter(x=x, y=truth(x), mode="lines", line={"color": "#808080", "dash": "dot"}, **place)
            figure.add_scatter(x=x, y=mean, mode="lines", line={"color": COLOURS[0]}, **place)
            figure.add_scatter(
                x=earlier[0], y=earlier[1], mode="markers", marker={"size": 3, "color": "#aaaaaa"}, **place
            )
            figure.add_scatter(
                x=row["batch"][0], y=row["batch"][1], mode="markers", marker={"size": 4, "color": COLOURS[1]}, **place
            )
            figure.add_scatter(
                x=row["places"], y=[-2.6] * len(row["places"]), mode="markers",
                marker={"symbol": "triangle-up", "size": 6, "color": "#808080"}, **place,
            )  # fmt: skip
            earlier = [earlier[0] + row["batch"][0], earlier[1] + row["batch"][1]]
    figure.update_yaxes(range=[-2.8, 2.8])
    style_figure(figure).update_layout(height=300 * len(lines) + 60, showlegend=False, margin_t=50)
    words = "The function (dotted), predictions with 95 % bands, data of the batch and of earlier ones, pseudo-points."
    return Picture("What is learnt, batch by batch", words, figure, wide=True)
