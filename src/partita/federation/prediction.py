"""`partita predict`: what a site says of new rows, from the posterior that it was sent last, with nobody else there."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from partita.designs.design import Design
from partita.errors import InputError
from partita.formulas import Regression
from partita.foundation.checks import check_level
from partita.foundation.csv_files import read_columns, read_header
from partita.foundation.plain import Row
from partita.foundation.text import clean
from partita.models import prior_of
from partita.result import Result
from partita.site.latest import Latest, read_posterior
from partita.site.settings import SiteSettings, read_site
from partita.site.tables import read_table
from partita.wire.formula_recipe import FormulaRecipe
from partita.wire.recipe import Recipe

# What a cell without a value looks like.
MISSING = ("", "NA", "nan", "NaN")
# Names of columns, and a row of numbers for each row of a file.
Predicted = tuple[tuple[str, ...], np.ndarray]


@dataclass(frozen=True)
class Predictions:
    """What is predicted for each row of a file.

    Args:
        names: of the columns of `values`.
        values: a row for each row of the file; nan in those that miss something.
        latest: the posterior that they are from.
        level: the probability of the intervals.
    """

    names: tuple[str, ...]
    values: np.ndarray
    latest: Latest
    level: float

    @property
    def missing(self) -> int:
        """How many rows miss something."""
        return int(np.isnan(self.values).any(axis=1).sum())

    def rows(self) -> Iterator[Row]:
        """As plain values, rows counted from 1; None where something is missing."""
        for number, values in enumerate(self.values.tolist(), 1):
            yield {
                "row": number,
                **{name: None if np.isnan(x) else x for name, x in zip(self.names, values, strict=True)},
            }

    def to_csv(self) -> str:
        """As the text of a CSV file, with all digits."""
        lines = [",".join("" if value is None else str(value) for value in row.values()) for row in self.rows()]
        return "\n".join([",".join(("row", *self.names)), *lines, ""])

    def describe(self) -> Row:
        """Where they are from, as plain values."""
        latest = self.latest
        return {
            "rows": len(self.values),
            "missing": self.missing,
            "level": self.level,
            "version": latest.version,
            "time": latest.time,
            "run": latest.run,
        }

    def notes(self) -> list[str]:
        """The same in words."""
        latest = self.latest
        which = "evaluated at the end of a run" if latest.version is None else f"of version {latest.version}"
        came = datetime.fromtimestamp(latest.time, UTC)
        found = [f"from the posterior {which}, which came {came:%Y-%m-%d %H:%M:%S} UTC"]
        reading = None if latest.agreed is None else latest.agreed.reading
        if reading is not None and reading.design.classes is not None:
            found.append(f"probabilities that {clean(reading.design.target)} is {clean(reading.design.classes[1])!r}")
        if self.missing:
            found.append(
                f"rows without a prediction, because they miss something: {self.missing} of {len(self.values)}"
            )
        return found


def predict_rows(folder: Path, table: Path, level: float = 0.95) -> Predictions:
    """Predict each row of a CSV file, whose columns are called as in the site's own table or as in the federation.

    Args:
        folder: the site's.
        table: a CSV file with a header; the target need not be there.
        level: the probability of the intervals.
    """
    check_level(level)
    settings = read_site(folder)
    latest = read_posterior(settings.path)
    predict = _predict_by_formula if isinstance(latest.recipe, FormulaRecipe) else _predict_by_columns
    names, values = predict(settings, latest, table, level)
    return Predictions(names, values, latest, level)


def _find_names(settings: SiteSettings, names: Sequence[str], table: Path) -> dict[str, str]:
    """What columns are called in a file: by the site's own names, or by the federation's."""
    header = set(read_header(table))
    own = {name: settings.columns.get(name, name) for name in names}
    found = {name: alias if alias in header else name for name, alias in own.items()}
    missing = [own[name] for name in names if found[name] not in header]
    if missing:
        needed = ", ".join(own.values())
        raise InputError(f"{table}: has no column {', '.join(map(repr, missing))}: it has to have {needed}")
    return found


def _find_factors(settings: SiteSettings, found: Mapping[str, str]) -> dict[str, float]:
    """What numbers are multiplied by: those that are called, and so measured, as the site's own."""
    own = {name: settings.columns.get(name, name) for name in found}
    return {name: settings.units.get(name, 1.0) if found[name] == own[name] else 1.0 for name in found}


def _predict_by_columns(settings: SiteSettings, latest: Latest, table: Path, level: float) -> Predicted:
    """From columns of numbers."""
    recipe = latest.recipe
    assert isinstance(recipe, Recipe)
    found = _find_names(settings, recipe.columns.features, table)
    _, X = read_columns(table, list(found.values()), missing=MISSING)
    if np.isinf(X).any():
        raise InputError(f"{table}: has infinite numbers: leave cells that are not known empty")
    X = X * np.array(list(_find_factors(settings, found).values()))
    whole = np.isfinite(X).all(axis=1)
    # What is predicted for rows that miss something is thrown away.
    names, values = _predict(_make_result(latest, recipe.columns.design), np.where(whole[:, None], X, 0.0), level)
    return names, np.where(whole[:, None], values, np.nan)


def _predict_by_formula(settings: SiteSettings, latest: Latest, table: Path, level: float) -> Predicted:
    """From the columns of a formula, which may be text."""
    reading = None if latest.agreed is None else latest.agreed.reading
    assert reading is not None
    found = _find_names(settings, reading.design.parsed.inputs, table)
    factors, frame = _find_factors(settings, found), read_table(table)
    columns = {}
    for name, given in found.items():
        column = frame[given]
        columns[name] = column * factors[name] if factors[name] != 1 else column
    regression = Regression(reading, _make_result(latest, None), None, {}, "")
    rows = type(frame)(columns)
    expected, intervals = regression.predict(rows), regression.predict_interval(rows, level)
    return (_name_expected(reading.design), "low", "high"), np.column_stack([expected, intervals])


def _name_expected(design: Design) -> str:
    return "probability" if design.response.classes is not None else "mean"


def _make_result(latest: Latest, design: Row | None) -> Result:
    """As much of the run's result as a site knows: what predicts, and nothing of the other sites."""
    return Result(
        model=latest.model,
        posterior=latest.posterior,
        prior=prior_of(latest.model, latest.model.hyper),
        factors=(),
        log_evidence=np.nan,
        expected_log_probs=(),
        hyper=latest.hyper,
        history=[],
        design=design,
    )


def _predict(result: Result, X: np.ndarray, level: float) -> Predicted:
    intervals = result.predict_interval(X, level)
    if intervals.ndim == 2:
        return ("mean", "low", "high"), np.column_stack([result.predict(X), intervals])
    probabilities = result.predict_proba(X)
    if probabilities.shape[1] == 2:
        return ("probability", "low", "high"), np.column_stack([probabilities[:, 1], intervals[:, 1]])
    names = [f"{kind} {label}" for label in range(probabilities.shape[1]) for kind in ("probability", "low", "high")]
    together = np.concatenate([probabilities[:, :, None], intervals], axis=2)
    return tuple(names), together.reshape(len(X), -1)
