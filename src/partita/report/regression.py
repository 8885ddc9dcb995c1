"""What people read off a regression: kept beside its run, because the data are not, and shown on its page."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from partita.designs.responses import RESPONSES
from partita.errors import CorruptStorage
from partita.formulas import Regression, compare
from partita.foundation.archives import write_text
from partita.foundation.files import read_json
from partita.foundation.plain import Row, to_json
from partita.report.charts import Findings, draw_pictures
from partita.report.charts.base import Calibration, Coefficients
from partita.report.formatting import format_ratio
from partita.report.page import Report

FILE = "regression.json"
# Parts of a calibration that do not go into its table as they are.
NOT_IN_TABLE = ("curve", "inside", "on")


def describe(regressions: Sequence[Regression], level: float = 0.95) -> Row:
    """The first regression in tables, and all of them compared."""
    first = regressions[0]
    return {
        "fold": first.result.history[-1]["fold"],
        "formula": first.formula,
        "family": first.design.family,
        "level": level,
        "log evidence": first.log_evidence,
        "coefficients": first.coefficients(level),
        "steps": _find_steps(first),
        "spreads": first.spreads(level),
        "formulas": compare(regressions) if len(regressions) > 1 else [],
        "sites": first.contributions(),
        # Of a federation nobody is asked for it: the tables stay where they are.
        "calibration": None if first.silos is None else first.calibration(),
    }


def _find_steps(regression: Regression) -> dict[str, float]:
    """How far each column goes in a picture of all: from 0 to 1, if it has no other values; else by its deviation."""
    design = regression.design
    steps = np.where(np.array(regression.two_valued, bool), 1.0, design.unit)
    return dict(zip(design.names, steps.tolist(), strict=True))


def write_regression(folder: Path, described: Row) -> None:
    write_text(folder / FILE, to_json(described))


def read_regression(folder: Path, fold: int) -> Row | None:
    """What was found after this fold; None where the run is not a regression."""
    try:
        row = read_json(folder / FILE)
        if row["fold"] != fold:
            return None
        _check(row)
        return row
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CorruptStorage(
            f"{folder / FILE}: cannot be read ({error!r}): it can be deleted, nothing else is lost"
        ) from None


def _check(row: Row) -> None:
    """Check that a row from a file can be shown, by drawing it."""
    known = row["log evidence"]
    if not (known is None or isinstance(known, int | float)):
        raise TypeError("log evidence")
    for name in ("coefficients", "spreads", "formulas", "sites"):
        for one in row[name]:
            if not all(isinstance(value, str | int | float | None) for value in one.values()):
                raise TypeError(name)
    build_tables(row)
    draw_pictures(read_findings(row))


def build_tables(row: Row) -> dict[str, Sequence[Row]]:
    """Captions and rows, in the order in which they are read."""
    percent = f"{100 * row['level']:g} %"
    ratios = (RESPONSES[row["family"]].ratio, "ratio low", "ratio high")
    coefficients = [
        {name: format_ratio(value) if name in ratios else value for name, value in one.items()}
        for one in row["coefficients"]
    ]
    found = {
        f"Coefficients ({row['family']}), with {percent} intervals": coefficients,
        f"Spreads, with {percent} intervals": row["spreads"],
        "Formulas, by log evidence": row["formulas"],
        "Sites": row["sites"],
        **({} if row["calibration"] is None else _tabulate_calibration(row["calibration"])),
    }
    return {caption: rows for caption, rows in found.items() if rows}


def _tabulate_calibration(found: Row) -> dict[str, Sequence[Row]]:
    shown = {name: value for name, value in found.items() if name not in NOT_IN_TABLE}
    inside = {f"in {100 * float(level):g} %": share for level, share in found.get("inside", {}).items()}
    return {f"Calibration on {found['on']}": [shown | inside]}


def turn_into_regression(report: Report, row: Row) -> Report:
    """The page of a run with the title and the tables of a regression."""
    more = {caption: rows for caption, rows in build_tables(row).items() if caption != "Sites"}
    return replace(report, title=row["formula"], more=more, sites=row["sites"])


def read_findings(row: Row) -> Findings:
    """What pictures show of a regression."""
    return Findings(
        name="regression",
        contributions=[(one["site"], one["nats"] or 0.0) for one in row["sites"]],
        calibration=None if row["calibration"] is None else _read_calibration(row["calibration"]),
        coefficients=_read_coefficients(row),
    )


def _read_coefficients(row: Row) -> Coefficients | None:
    """All coefficients but the intercept; None where there is no other."""
    shown = [one for one in row["coefficients"] if one["name"] != "Intercept"]
    if not shown:
        return None
    names = [one["name"] for one in shown]
    return Coefficients(
        names,
        np.array([[one[name] for one in shown] for name in ("low", "mean", "high")], float),
        # A file of an earlier version has no steps.
        np.array([row.get("steps", {}).get(name, 1.0) for name in names]),
        row["level"],
        RESPONSES[row["family"]].ratio,
    )


def _read_calibration(row: Row) -> Calibration:
    if "inside" in row:
        return Calibration([float(level) for level in row["inside"]], list(row["inside"].values()))
    curve, rows = row["curve"], row["rows"]
    claimed, found = ([part[name] for part in curve] for name in ("predicted", "observed"))
    return Calibration(claimed, found, [part["rows"] / rows for part in curve], is_binary=True)
