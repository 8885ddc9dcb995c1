"""What was measured on a test set: kept beside a run, because the data are not."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from partita.errors import CorruptStorage, InputError
from partita.foundation.archives import write_text
from partita.foundation.fields import entries, fields, items, maybe, number, text, whole
from partita.foundation.files import read_json
from partita.foundation.plain import Row, to_json
from partita.metrics import reliability
from partita.predictive import score_rows
from partita.report.charts.base import Calibration
from partita.result import Result

LEVELS = np.arange(1, 20) / 20
# Shares in a file may exceed one by rounding.
SHARES = items(number(0, most=1.001))
# What a file holds of a calibration.
COLUMNS = ("claimed", "found", "share")
MEASURES = fields(
    {
        "fold": whole(),
        "scores": entries(maybe(number())),
        "calibration": maybe(fields({"claimed": SHARES, "found": SHARES}, {"share": maybe(SHARES)})),
    },
    {"features": items(text())},
)


def measure_calibration(result: Result, X: Any, y: Any) -> Calibration | None:
    """Whether probabilities, or intervals, hold what they promise; None where a model has neither."""
    try:
        return calibrate_classes(result.predict_proba(X), y)
    except InputError:
        pass
    try:
        mean, std = result.predict(X, return_std=True)
    except InputError:
        return None
    off = np.abs(np.ravel(y) - np.ravel(mean)) / np.ravel(std)
    return Calibration(LEVELS.tolist(), [float(np.mean(off <= ndtri(0.5 + level / 2))) for level in LEVELS])


def calibrate_classes(probabilities: np.ndarray, labels: np.ndarray) -> Calibration:
    """Confidence beside accuracy, in ten bins of confidence."""
    _, confidence, accuracy, share = reliability(probabilities, labels, 10)
    return Calibration(confidence.tolist(), accuracy.tolist(), share.tolist())


@dataclass(frozen=True)
class Measures:
    """What a result is worth on a test set, and what its inputs are called; nothing, if nothing is known."""

    scores: Row = field(default_factory=dict)
    calibration: Calibration | None = None
    features: Sequence[str] = ()


def write_measures(folder: Path, result: Result, test: Sequence[Any], features: Sequence[str] = ()) -> None:
    """What a finished run's result is worth on its test set, in `measures.json`."""
    model = result.model
    found = measure_calibration(result, *test) if model.takes_target else None
    row = {
        "fold": result.history[-1]["fold"],
        "scores": score_rows(model, result.posterior, test),
        "calibration": None if found is None else {name: getattr(found, name) for name in COLUMNS},
        "features": list(features),
    }
    write_text(folder / "measures.json", to_json(row))


def read_measures(folder: str | os.PathLike[str], fold: int) -> Measures:
    """What was measured of the result after this fold; nothing, if that was another result."""
    path = Path(folder) / "measures.json"
    try:
        row = read_json(path)
        if row["fold"] != fold:
            return Measures()
        MEASURES(row, "measures")
        calibration = None if row["calibration"] is None else _read_calibration(row["calibration"])
        return Measures(row["scores"], calibration, row.get("features", ()))
    except FileNotFoundError:
        return Measures()
    except (OSError, ValueError, KeyError) as error:
        raise CorruptStorage(f"{path}: cannot be read ({error!r}): it can be deleted, nothing else is lost") from None


def _read_calibration(row: Row) -> Calibration:
    if len({len(column) for column in row.values() if column is not None}) > 1:
        raise ValueError("calibration: columns of unequal length")
    return Calibration(**row)
