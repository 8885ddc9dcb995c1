"""What people read off a regression: kept beside its run, because the data are not, and shown on its page."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from partita.errors import CorruptStorage
from partita.files import read_json
from partita.formulas import Regression, compare
from partita.report.charts import Calibration, Picture, bars, calibration_picture, interval_picture
from partita.report.page import Report
from partita.storage import write_text
from partita.telemetry import Row, to_json

FILE = "regression.json"


def described(regressions: Sequence[Regression], level: float = 0.95) -> Row:
    """The first regression in tables, and all of them compared."""
    first = regressions[0]
    return {
        "fold": first.result.history[-1]["fold"],
        "formula": first.formula,
        "family": first.design.family,
        "level": level,
        "log evidence": first.log_evidence,
        "coefficients": first.coefficients(level),
        "spreads": first.spreads(level),
        "formulas": compare(regressions) if len(regressions) > 1 else [],
        "sites": first.contributions(),
        "calibration": first.calibration(),
    }


def write_regression(folder: Path, described: Row) -> None:
    write_text(folder / FILE, to_json(described))


def read_regression(folder: Path, fold: int) -> Row | None:
    """What was found after this fold; None, if that is not a regression."""
    try:
        row = read_json(folder / FILE)
        if row["fold"] != fold:
            return None
        tables(row)
        return row
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CorruptStorage(f"{folder / FILE}: {error!r}: it can be deleted, nothing else is lost") from None


def tables(row: Row) -> dict[str, Sequence[Row]]:
    """Captions and rows, in the order in which they are read."""
    percent = f"{100 * row['level']:g} %"
    calibration = {name: value for name, value in row["calibration"].items() if name not in ("curve", "inside", "on")}
    inside = {f"in {100 * float(level):g} %": share for level, share in row["calibration"].get("inside", {}).items()}
    found = {
        f"Coefficients ({row['family']}), with {percent} intervals": row["coefficients"],
        f"Spreads, with {percent} intervals": row["spreads"],
        "Formulas, by log evidence": row["formulas"],
        "Sites": row["sites"],
        f"Calibration on {row['calibration']['on']}": [calibration | inside],
    }
    return {caption: rows for caption, rows in found.items() if rows}


def with_regression(report: Report, row: Row) -> Report:
    """The page of a run, as that of a regression."""
    more = {caption: rows for caption, rows in tables(row).items() if caption != "Sites"}
    return replace(report, title=row["formula"], more=more, pictures=pictures(row), sites=row["sites"])


def pictures(row: Row) -> list[Picture]:
    shown = [one for one in row["coefficients"] if one["name"] != "Intercept"]
    found = []
    if shown:
        numbers = [np.array([one[name] for one in shown], float) for name in ("low", "mean", "high")]
        picture = interval_picture(lambda place: shown[place]["name"], *numbers)
        found.append(replace(picture, title="Coefficients"))
    names, nats = [one["site"] for one in row["sites"]], [one["nats"] or 0.0 for one in row["sites"]]
    words = "How far the posterior would be without a site, in nats: KL(posterior ‖ posterior / factor)."
    found.append(bars("Contribution of sites", words, "nats", names, nats))
    return [*found, _calibration_picture(row["calibration"])]


def _calibration_picture(row: Row) -> Picture:
    picture = calibration_picture({"regression": _calibration(row)})
    if "inside" in row:
        return picture
    picture.figure.update_xaxes(title="predicted probability")
    picture.figure.update_yaxes(title="observed share")
    return replace(picture, words="On the dotted line, probabilities mean what they say. Larger points: more rows.")


def _calibration(row: Row) -> Calibration:
    if "inside" in row:
        return Calibration([float(level) for level in row["inside"]], list(row["inside"].values()))
    curve, rows = row["curve"], row["rows"]
    claimed, found = ([part[name] for part in curve] for name in ("predicted", "observed"))
    return Calibration(claimed, found, [part["rows"] / rows for part in curve])
