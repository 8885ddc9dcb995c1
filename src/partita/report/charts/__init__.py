"""Charts: lines over a run's history, and pictures of what is known of it. `registry.py` lists them all."""

from partita.report.charts.base import COLOURS, ON_DARK, Chart, Curve, Findings, Picture
from partita.report.charts.registry import LABELS, choose_lines, draw_pictures

__all__ = ["COLOURS", "LABELS", "ON_DARK", "Chart", "Curve", "Findings", "Picture", "choose_lines", "draw_pictures"]
