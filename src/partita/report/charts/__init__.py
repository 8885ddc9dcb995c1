"""Charts: lines over a run's history, and pictures of what is known of it. `registry.py` lists them all."""

from partita.report.charts.base import AXES, COLOURS, DASHES, ON_DARK, Chart, Curve, Findings, Picture
from partita.report.charts.registry import LABELS, LINES, PICTURES, choose_lines, draw_pictures

__all__ = [
    "AXES",
    "COLOURS",
    "DASHES",
    "LABELS",
    "LINES",
    "ON_DARK",
    "PICTURES",
    "Chart",
    "Curve",
    "Findings",
    "Picture",
    "choose_lines",
    "draw_pictures",
]
