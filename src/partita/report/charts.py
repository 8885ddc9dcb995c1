"""What is drawn: lines of a history, and pictures that Plotly makes of sites, calibration and posteriors."""

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.foundation.plain import Row
from partita.foundation.text import clean

# Okabe and Ito's colours, told apart by most people, darkened or lightened until they stand out from the page.
COLOURS = ("#0072b2", "#d55e00", "#008a63", "#b0568a", "#2f89c5", "#a87400")
ON_DARK = ("#4aa8e0", "#ff8c42", "#2fc79c", "#e29bc4", "#8fd0f5", "#e9b949")
DASHES = ("solid", "solid", "solid", "solid", "dot", "dash")
GREY = "#808080"

# What lines can be drawn against.
AXES = {"round": "rounds", "batch": "batches", "seconds": "seconds", "bytes": "bytes", "messages": "messages"}
LABELS = {
    "round": "rounds (updates per site)",
    "batch": "batches",
    "seconds": "seconds at the sites",
    "bytes": "bytes up and down",
    "messages": "messages",
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
# More sites, or parameters, than these are not drawn one by one.
MOST_BARS, MOST_INTERVALS = 40, 24


@dataclass(frozen=True)
class Curve:
    """One method's history."""

    name: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Chart:
    """Which numbers are drawn, and whether their axis is logarithmic. What they are drawn against, the reader says.

    Where all are zero, some say nothing.
    """

    y: str
    log: bool = True
    words: str = ""
    if_zero: bool = True


CHARTS = (
    Chart("error"),
    Chart("nll"),
    Chart("rmse", log=False),
    Chart("free_energy", log=False, words="A lower bound of the log evidence; the diamond is that of the result."),
    Chart("accepted", log=False, words="How much of the proposed changes was taken."),
    Chart("staleness", log=False, words="How many updates were folded while a site was at work.", if_zero=False),
    Chart("change", words="How far the posterior moved, in nats."),
)


@dataclass(frozen=True)
class Picture:
    """A figure of Plotly's, with a title, and words for those who do not see it; as wide as the page, if asked."""

    title: str
    words: str
    figure: Any
    wide: bool = False


def styled(figure: Any) -> Any:
    """Transparent and without a theme: the page has colours for light and for dark."""
    grid = {"gridcolor": "rgba(128,128,128,0.25)", "zerolinecolor": "rgba(128,128,128,0.4)"}
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 60, "r": 15, "t": 26, "b": 50},
        height=380,
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
    )
    figure.update_xaxes(automargin=True, **grid)
    figure.update_yaxes(automargin=True, **grid)
    return figure


def plotly_text(text: str) -> str:
    """A name that Plotly, which reads some HTML in it, shows as it is."""
    return html.escape(clean(text), quote=False)


def label_picture(shards: Sequence[tuple[np.ndarray, ...]]) -> Picture:
    """How many rows of which label every site has."""
    import plotly.graph_objects as go

    labels = np.unique(np.concatenate([shard[1] for shard in shards]))
    counts = np.array([[np.sum(shard[1] == label) for shard in shards] for label in labels])
    figure = go.Figure(
        go.Heatmap(
            z=counts,
            x=[f"site {m}" for m in range(len(shards))],
            y=[f"{label:g}" for label in labels],
            colorscale="Viridis",
            colorbar={"title": {"text": "rows"}, "thickness": 14},
        )
    )
    figure.update_yaxes(title="label", type="category")
    rows = ", ".join(str(len(shard[1])) for shard in shards)
    return Picture("Labels at each site", f"Rows per site: {rows}.", styled(figure))


@dataclass(frozen=True)
class Calibration:
    """What was claimed, what was found, and for which share of the rows.

    Of classes: confidence and accuracy. Of numbers: how much an interval should hold, and how much it held.
    """

    claimed: Sequence[float]
    found: Sequence[float]
    share: Sequence[float] | None = None


def calibration_picture(calibrations: Mapping[str, Calibration]) -> Picture:
    """On the diagonal, probabilities mean what they say."""
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", name="calibrated", line={"color": GREY, "dash": "dot"})
    of_classes = all(calibration.share is not None for calibration in calibrations.values())
    for number, (name, calibration) in enumerate(calibrations.items()):
        share = np.full(len(calibration.found), 0.01) if calibration.share is None else np.asarray(calibration.share)
        figure.add_scatter(
            x=list(calibration.claimed),
            y=list(calibration.found),
            name=plotly_text(name),
            mode="lines+markers",
            line={"color": COLOURS[number % len(COLOURS)]},
            marker={"size": 5 + 20 * np.sqrt(share)},
        )
    figure.update_xaxes(title="confidence" if of_classes else "level of the interval", range=[0, 1.03])
    figure.update_yaxes(title="accuracy" if of_classes else "share of targets inside", range=[0, 1.06])
    rule = "Above the dotted line, predictions are too modest; below it, too sure."
    words = f"{rule} Larger points stand for more rows." if of_classes else rule
    styled(figure).update_layout(showlegend=False)
    return Picture("Calibration", words, figure)


def bars(title: str, words: str, unit: str, names: Sequence[str], values: Sequence[float]) -> Picture:
    """One bar for every name; of many, those of the largest values."""
    import plotly.graph_objects as go

    numbers = np.nan_to_num(np.asarray(values, float))
    shown = np.sort(np.argsort(-numbers, kind="stable")[:MOST_BARS])
    more = f" The {MOST_BARS} largest of {len(names)}." if len(names) > MOST_BARS else ""
    figure = go.Figure(
        go.Bar(
            x=[plotly_text(names[i]) for i in shown], y=numbers[shown].tolist(), marker={"color": COLOURS[0]}, name=unit
        )
    )
    figure.update_xaxes(type="category")
    figure.update_yaxes(title=unit, rangemode="tozero")
    top = int(np.argmax(numbers))
    return Picture(title, f"{words} Most: {clean(names[top])}, {numbers[top]:.3g}.{more}", styled(figure))


def grouped_bars(title: str, words: str, unit: str, values: Mapping[str, Sequence[float] | None]) -> Picture:
    """A bar per site for each of several methods, in the colours of their lines; None for a line without bars."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for number, (name, numbers) in enumerate(values.items()):
        if numbers is not None:
            sites = [f"site {m}" for m in range(len(numbers))]
            figure.add_bar(
                x=sites, y=list(numbers), name=plotly_text(name), marker={"color": COLOURS[number % len(COLOURS)]}
            )
    figure.update_yaxes(title=unit, rangemode="tozero")
    styled(figure).update_layout(showlegend=False)
    return Picture(title, words, figure)


def interval_picture(name_of: Callable[[int], str], low: np.ndarray, middle: np.ndarray, high: np.ndarray) -> Picture:
    """95 % intervals of parameters; of many, those that are surest not to be zero."""
    import plotly.graph_objects as go

    sure = np.abs(middle) / np.maximum(high - low, np.finfo(float).tiny)
    # From top to bottom in their own order.
    shown = np.sort(np.argsort(-sure, kind="stable")[:MOST_INTERVALS])[::-1]
    figure = go.Figure(
        go.Scatter(
            x=middle[shown].tolist(),
            y=[plotly_text(name_of(int(place))) for place in shown],
            error_x={
                "type": "data",
                "symmetric": False,
                "array": (high - middle)[shown].tolist(),
                "arrayminus": (middle - low)[shown].tolist(),
                "color": COLOURS[0],
            },
            mode="markers",
            marker={"color": COLOURS[0]},
            name="95 % interval",
        )
    )
    figure.update_xaxes(title="value", zeroline=True)
    figure.update_yaxes(type="category", dtick=1)
    apart = int(np.sum((low > 0) | (high < 0)))
    more = f" Shown are the {MOST_INTERVALS} that are surest not to be zero." if len(low) > MOST_INTERVALS else ""
    words = f"95 % intervals of the posterior: {apart} of {len(low)} parameters are apart from zero.{more}"
    styled(figure).update_layout(height=max(300, 90 + 17 * len(shown)))
    return Picture("Posterior", words, figure)
