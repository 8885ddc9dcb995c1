"""Pictures of runs: one self-contained HTML page."""

from partita.report.page import Curve, Report, write_report

__all__ = ["Curve", "Report", "write_report"]
