"""What charts are made of: curves of a history, pictures by Plotly, colours, and what is known of a run."""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.foundation.plain import Row
from partita.foundation.text import clean

# Okabe and Ito's colours, which most people can tell apart, darkened or lightened until they stand out from the page.
COLOURS = ("#0072b2", "#d55e00", "#008a63", "#b0568a", "#2f89c5", "#a87400")
ON_DARK = ("#4aa8e0", "#ff8c42", "#2fc79c", "#e29bc4", "#8fd0f5", "#e9b949")
DASHES = ("solid", "solid", "solid", "solid", "dot", "dash")
GREY = "#808080"

# What lines can be drawn against: a name in a history, with a short label for the menu and a long one for the axis.
AXES = {
    "round": ("rounds", "rounds (updates per site)"),
    "batch": ("batches", "batches"),
    "seconds": ("seconds", "seconds at the sites"),
    "bytes": ("bytes", "bytes up and down"),
    "messages": ("messages", "messages"),
}


@dataclass(frozen=True)
class Curve:
    """One method's history."""

    name: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Chart:
    """Lines of one number of a history, one for each curve. The reader chooses what they are drawn against.

    Args:
        y: the name of the number in the rows of a history.
        log: whether its axis is logarithmic.
        words: a caption.
        if_zero: whether there is a chart where the number is always zero.
        label: what the number is called on the page; the registry's label, or `y`, if it is empty.
        pages: the kinds of pages that show the chart without being asked: "run" for the folder of a run, "history" for
            what a result, an estimator or a stream has saved.
    """

    y: str
    log: bool = True
    words: str = ""
    if_zero: bool = True
    label: str = ""
    pages: tuple[str, ...] = ("run", "history")


@dataclass(frozen=True)
class Picture:
    """A figure of Plotly's, with a title, and words for those who do not see it; as wide as the page, if asked."""

    title: str
    words: str
    figure: Any
    wide: bool = False


@dataclass(frozen=True)
class Calibration:
    """What was claimed, what was found, and for which share of the rows.

    For classes, these are confidence and accuracy; for numbers, the share that an interval should hold and the share
    that it held. With `is_binary`, they are probabilities of one class and how often it was observed.
    """

    claimed: Sequence[float]
    found: Sequence[float]
    share: Sequence[float] | None = None
    is_binary: bool = False


@dataclass(frozen=True)
class Intervals:
    """95 % intervals of parameters, and a function that names the parameter at a place."""

    name_of: Callable[[int], str]
    low: np.ndarray
    middle: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class Coefficients:
    """Intervals of a regression's coefficients.

    Args:
        names: of the coefficients.
        intervals: low, mean and high, one row each.
        steps: how far each column goes in a picture of all of them.
        level: of the intervals.
        ratio: what the exponential of a coefficient is called, such as "odds ratio"; None where it means nothing.
    """

    names: Sequence[str]
    intervals: np.ndarray
    steps: np.ndarray
    level: float
    ratio: str | None


@dataclass(frozen=True)
class Findings:
    """What is known of a run so far, for pictures. What is not known is empty, or None.

    Args:
        name: of the run, for the legend.
        sites: a row per site, with its name and what it did.
        contributions: nats of each site, by name.
        calibration: on a test set, or on the sites' own rows.
        posterior: intervals of parameters.
        coefficients: of a regression.
    """

    name: str
    sites: Sequence[Row] = ()
    contributions: Sequence[tuple[str, float]] = ()
    calibration: Calibration | None = None
    posterior: Intervals | None = None
    coefficients: Coefficients | None = None


def style_figure(figure: Any) -> Any:
    """Make a figure transparent and take its theme away: the page has colours for light and for dark."""
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


def escape_for_plotly(text: str) -> str:
    """A name that Plotly, which reads some HTML in names, shows as it is."""
    return html.escape(clean(text), quote=False)
