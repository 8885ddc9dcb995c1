"""Whether probabilities and intervals mean what they say."""

from collections.abc import Mapping

import numpy as np

from partita.report.charts.base import COLOURS, GREY, Calibration, Findings, Picture, escape_for_plotly, style_figure

RULE = "Above the dotted line, predictions are too modest; below it, too sure."
# What the axes are called, and how the picture is read.
BINARY = (
    "predicted probability",
    "observed share",
    "On the dotted line, probabilities mean what they say. Larger points: more rows.",
)
CLASSES = ("confidence", "accuracy", f"{RULE} Larger points stand for more rows.")
INTERVALS = ("level of the interval", "share of targets inside", RULE)


def draw_calibration(findings: Findings) -> Picture | None:
    """The calibration of one run."""
    if findings.calibration is None:
        return None
    return compare_calibrations({findings.name: findings.calibration})


def compare_calibrations(calibrations: Mapping[str, Calibration]) -> Picture:
    """One line for each method. On the diagonal, probabilities mean what they say."""
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", name="calibrated", line={"color": GREY, "dash": "dot"})
    for number, (name, calibration) in enumerate(calibrations.items()):
        share = np.full(len(calibration.found), 0.01) if calibration.share is None else np.asarray(calibration.share)
        figure.add_scatter(
            x=list(calibration.claimed),
            y=list(calibration.found),
            name=escape_for_plotly(name),
            mode="lines+markers",
            line={"color": COLOURS[number % len(COLOURS)]},
            marker={"size": 5 + 20 * np.sqrt(share)},
        )
    claimed, found, words = _describe_axes(list(calibrations.values()))
    figure.update_xaxes(title=claimed, range=[0, 1.03])
    figure.update_yaxes(title=found, range=[0, 1.06])
    style_figure(figure).update_layout(showlegend=False)
    return Picture("Calibration", words, figure)


def _describe_axes(calibrations: list[Calibration]) -> tuple[str, str, str]:
    if all(calibration.is_binary for calibration in calibrations):
        return BINARY
    return CLASSES if all(calibration.share is not None for calibration in calibrations) else INTERVALS
