"""Intervals of parameters, and of a regression's coefficients."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from partita.report.charts.base import (
    COLOURS,
    Coefficients,
    Findings,
    Intervals,
    Picture,
    escape_for_plotly,
    style_figure,
)
from partita.report.formatting import format_value

# The most parameters that have an interval each.
MOST_INTERVALS = 24
# A logarithmic axis goes no further than exponentials of these.
FURTHEST = 300
# Decades of an axis with three ticks in each, and powers of ten that have a tick, at most.
FEW_DECADES, MOST_POWERS = 3, 8


def draw_posterior(findings: Findings) -> Picture | None:
    """Intervals of the parameters of a finished run."""
    return None if findings.posterior is None else draw_intervals(findings.posterior)


def draw_intervals(intervals: Intervals) -> Picture:
    """95 % intervals of parameters; where there are many, of those that are surest not to be zero."""
    import plotly.graph_objects as go

    low, middle, high = intervals.low, intervals.middle, intervals.high
    sure = np.abs(middle) / np.maximum(high - low, np.finfo(float).tiny)
    # From top to bottom in their own order.
    shown = np.sort(np.argsort(-sure, kind="stable")[:MOST_INTERVALS])[::-1]
    figure = go.Figure(
        go.Scatter(
            x=middle[shown].tolist(),
            y=[escape_for_plotly(intervals.name_of(int(place))) for place in shown],
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
    more = f" Shown are the {MOST_INTERVALS} that are surest not to be zero." if len(low) > MOST_INTERVALS else ""
    apart = _count_apart(low, high)
    words = f"95 % intervals of the posterior: {apart} of {len(low)} parameters are apart from zero.{more}"
    style_figure(figure).update_layout(height=max(300, 90 + 17 * len(shown)))
    return Picture("Posterior", words, figure)


def draw_coefficients(findings: Findings) -> Picture | None:
    """Intervals of all coefficients on one axis: by steps that can be compared, whatever the units of columns are."""
    known = findings.coefficients
    if known is None:
        return None
    low, middle, high = known.steps * known.intervals
    labels = _label_steps(known)
    picture = draw_intervals(Intervals(lambda place: labels[place], low, middle, high))
    if known.ratio is None:
        picture.figure.update_xaxes(title="change of the target")
    else:
        _turn_into_ratios(picture.figure, known.ratio)
    words = (
        f"{100 * known.level:g} % intervals, of which {_count_apart(low, high)} of {len(labels)} are apart from "
        f"{'no change' if known.ratio is None else 'a ratio of one'}: for columns that are 0 or 1 from one to the "
        "other, for others per standard deviation, as their names say."
    )
    return replace(picture, title="Coefficients", words=words)


def _count_apart(low: np.ndarray, high: np.ndarray) -> int:
    """How many intervals do not hold zero."""
    return int(np.sum((low > 0) | (high < 0)))


def _label_steps(coefficients: Coefficients) -> list[str]:
    return [
        name + (f", per {format_value(step)}" if step != 1 else "")
        for name, step in zip(coefficients.names, coefficients.steps.tolist(), strict=True)
    ]


def _turn_into_ratios(figure: Any, title: str) -> None:
    """From differences of a linear predictor to ratios, on a logarithmic axis."""
    points = figure.data[0]
    middle = np.asarray(points.x, float)
    high, low = middle + np.asarray(points.error_x.array), middle - np.asarray(points.error_x.arrayminus)
    low, middle, high = (np.exp(np.clip(values, -FURTHEST, FURTHEST)) for values in (low, middle, high))
    points.x = middle.tolist()
    points.error_x.array, points.error_x.arrayminus = (high - middle).tolist(), (middle - low).tolist()
    figure.update_xaxes(title=title, type="log", **_choose_ticks(float(low.min()), float(high.max())))
    figure.add_vline(x=1, line={"width": 1, "dash": "dot"})


def _choose_ticks(low: float, high: float) -> dict[str, Any]:
    """Ticks at 1, 2 and 5 of every decade, or at powers of ten: left to itself, Plotly writes 5 where 0.5 is meant.

    Over less than a decade it writes numbers as they are.
    """
    decades = math.log10(high / low) if low > 0 else math.inf
    if decades < math.log10(5):
        return {}
    first, last = math.floor(math.log10(max(low, math.exp(-FURTHEST)))), math.ceil(math.log10(high))
    each, steps = max(1, (last - first) // MOST_POWERS), (1, 2, 5) if decades <= FEW_DECADES else (1,)
    ticks = [step * 10.0**power for power in range(first // each * each, last + 1, each) for step in steps]
    return {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
