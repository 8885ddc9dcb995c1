"""Pictures of runs: one self-contained HTML page, also live; and on a terminal."""

from partita.report.charts import Chart, Curve, Picture
from partita.report.page import Report, write_report

__all__ = ["Chart", "Curve", "Picture", "Report", "write_report"]
