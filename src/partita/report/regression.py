"""What people read off a regression: kept beside its run, because the data are not, and shown on its page."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from partita.designs.responses import RESPONSES
from partita.errors import CorruptStorage
from partita.formulas import Regression, compare
from partita.foundation.files import read_json
from partita.foundation.plain import Row, to_json
from partita.report.charts import Calibration, Picture, bars, calibration_picture, interval_picture
from partita.report.page import Report
from partita.report.page import shown as text
from partita.server.storage import write_text

FILE = "regression.json"
# What exponentials of coefficients are called.
RATIOS = [response.ratio for response in RESPONSES.values() if response.ratio]
RATIO_COLUMNS = (*RATIOS, "ratio low", "ratio high")


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
        "steps": _steps(first),
        "spreads": first.spreads(level),
        "formulas": compare(regressions) if len(regressions) > 1 else [],
        "sites": first.contributions(),
        "calibration": first.calibration(),
    }


def _steps(regression: Regression) -> dict[str, float]:
    """How far each column goes in a picture of all: from 0 to 1, if it has no other values; else by its deviation."""
    design = regression.design
    steps = np.where(np.array(regression.two_valued, bool), 1.0, design.unit)
    return dict(zip(design.names, steps.tolist(), strict=True))


def write_regression(folder: Path, described: Row) -> None:
    write_text(folder / FILE, to_json(described))


def read_regression(folder: Path, fold: int) -> Row | None:
    """What was found after this fold; None, if that is not a regression."""
    try:
        row = read_json(folder / FILE)
        if row["fold"] != fold:
            return None
        _check(row)
        return row
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CorruptStorage(f"{folder / FILE}: {error!r}: it can be deleted, nothing else is lost") from None


def _check(row: Row) -> None:
    """That it can be shown."""
    known = row["log evidence"]
    if not (known is None or isinstance(known, int | float)):
        raise TypeError("log evidence")
    for name in ("coefficients", "spreads", "formulas", "sites"):
        for one in row[name]:
            if not all(isinstance(value, str | int | float | None) for value in one.values()):
                raise TypeError(name)
    tables(row)
    pictures(row)


def tables(row: Row) -> dict[str, Sequence[Row]]:
    """Captions and rows, in the order in which they are read."""
    percent = f"{100 * row['level']:g} %"
    calibration = {name: value for name, value in row["calibration"].items() if name not in ("curve", "inside", "on")}
    inside = {f"in {100 * float(level):g} %": share for level, share in row["calibration"].get("inside", {}).items()}
    found = {
        f"Coefficients ({row['family']}), with {percent} intervals": [_with_ratios(one) for one in row["coefficients"]],
        f"Spreads, with {percent} intervals": row["spreads"],
        "Formulas, by log evidence": row["formulas"],
        "Sites": row["sites"],
        f"Calibration on {row['calibration']['on']}": [calibration | inside],
    }
    return {caption: rows for caption, rows in found.items() if rows}


def _with_ratios(one: Row) -> Row:
    return {name: ratio_text(value) if name in RATIO_COLUMNS else value for name, value in one.items()}


def ratio_text(ratio: float | None) -> Any:
    """A ratio that is nearly one with as many digits as tell it from one.

    >>> ratio_text(0.99961), ratio_text(1.00001174), ratio_text(1.0)
    ('0.99961', '1.000012', 1.0)
    """
    if ratio is None or ratio == 1 or abs(ratio - 1) >= 0.01:
        return ratio
    return f"{ratio:.{min(1 - math.floor(math.log10(abs(ratio - 1))), 16)}f}"


def with_regression(report: Report, row: Row) -> Report:
    """The page of a run, as that of a regression."""
    more = {caption: rows for caption, rows in tables(row).items() if caption != "Sites"}
    return replace(report, title=row["formula"], more=more, pictures=pictures(row), sites=row["sites"])


def pictures(row: Row) -> list[Picture]:
    shown = [one for one in row["coefficients"] if one["name"] != "Intercept"]
    found = [_forest(row, shown)] if shown else []
    names, nats = [one["site"] for one in row["sites"]], [one["nats"] or 0.0 for one in row["sites"]]
    words = "How far the posterior would be without a site, in nats: KL(posterior ‖ posterior / factor)."
    found.append(bars("Contribution of sites", words, "nats", names, nats))
    return [*found, _calibration_picture(row["calibration"])]


def _forest(row: Row, shown: Sequence[Row]) -> Picture:
    """Intervals of all coefficients on one axis: by steps that can be compared, whatever the units of columns are."""
    steps = np.array([row.get("steps", {}).get(one["name"], 1.0) for one in shown])
    low, middle, high = (steps * np.array([one[name] for one in shown], float) for name in ("low", "mean", "high"))
    labels = [
        one["name"] + (f", per {text(step)}" if step != 1 else "")
        for one, step in zip(shown, steps.tolist(), strict=True)
    ]
    picture = interval_picture(lambda place: labels[place], low, middle, high)
    ratio = next((name for name in RATIOS if name in shown[0]), None)
    if ratio is None:
        picture.figure.update_xaxes(title="change of the target")
    else:
        _as_ratios(picture.figure, ratio)
    apart = int(np.sum((low > 0) | (high < 0)))
    words = (
        f"{100 * row['level']:g} % intervals, of which {apart} of {len(shown)} are apart from "
        f"{'no change' if ratio is None else 'a ratio of one'}: for columns that are 0 or 1 from one to the other, for "
        "others per standard deviation, as their names say."
    )
    return replace(picture, title="Coefficients", words=words)


def _as_ratios(figure: Any, title: str) -> None:
    """From a linear predictor's differences to ratios, on a logarithmic axis."""
    points = figure.data[0]
    middle = np.asarray(points.x, float)
    high, low = middle + np.asarray(points.error_x.array), middle - np.asarray(points.error_x.arrayminus)
    # An axis goes no further.
    low, middle, high = (np.exp(np.clip(values, -300, 300)) for values in (low, middle, high))
    points.x = middle.tolist()
    points.error_x.array, points.error_x.arrayminus = (high - middle).tolist(), (middle - low).tolist()
    figure.update_xaxes(title=title, type="log")
    figure.add_vline(x=1, line={"width": 1, "dash": "dot"})


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
