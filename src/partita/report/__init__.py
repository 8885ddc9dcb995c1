"""Pictures of runs: one self-contained HTML page, also live; and on a terminal."""

from partita.report.charts import Chart, Curve, Picture
from partita.report.page import Report, write_report
from partita.report.saved import history_report, saved_report

__all__ = ["Chart", "Curve", "Picture", "Report", "history_report", "saved_report", "write_report"]
