"""`partita predict`: what a site says of new rows, from the posterior that it was sent last, with nobody else there."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from partita.errors import InputError
from partita.foundation.checks import check_level
from partita.foundation.csv_files import read_columns, read_header
from partita.foundation.plain import Row
from partita.models import prior_of
from partita.result import Result
from partita.site.latest import Latest, read_posterior
from partita.site.settings import SiteSettings, read_site

# What a cell without a value looks like.
MISSING = ("", "NA", "nan", "NaN")


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
    latest = read_posterior(settings.path / "run")
    X = _read_features(settings, latest, table)
    whole = np.isfinite(X).all(axis=1)
    # What is predicted for rows that miss something is thrown away.
    names, values = _predict(_make_result(latest), np.where(whole[:, None], X, 0.0), level)
    return Predictions(names, np.where(whole[:, None], values, np.nan), latest, level)


def _read_features(settings: SiteSettings, latest: Latest, table: Path) -> np.ndarray:
    """The features of rows, unscaled; those that are missing are nan."""
    features, header = latest.recipe.columns.features, set(read_header(table))
    own = {name: settings.columns.get(name, name) for name in features}
    # The site's own name of a column, or the federation's.
    found = {name: alias if alias in header else name for name, alias in own.items()}
    missing = [own[name] for name in features if found[name] not in header]
    if missing:
        raise InputError(
            f"{table}: has no column {', '.join(map(repr, missing))}: it has to have {', '.join(own.values())}"
        )
    _, X = read_columns(table, list(found.values()), missing=MISSING)
    if np.isinf(X).any():
        raise InputError(f"{table}: has infinite numbers: leave cells that are not known empty")
    return X


def _make_result(latest: Latest) -> Result:
    """As much of the run's result as a site knows: what predicts, and nothing of the other sites."""
    model = latest.recipe.model
    return Result(
        model=model,
        posterior=latest.posterior,
        prior=prior_of(model, model.hyper),
        factors=(),
        log_evidence=np.nan,
        expected_log_probs=(),
        hyper=latest.hyper,
        history=[],
        design=latest.recipe.columns.design,
    )


def _predict(result: Result, X: np.ndarray, level: float) -> tuple[tuple[str, ...], np.ndarray]:
    intervals = result.predict_interval(X, level)
    if intervals.ndim == 2:
        return ("mean", "low", "high"), np.column_stack([result.predict(X), intervals])
    probabilities = result.predict_proba(X)
    if probabilities.shape[1] == 2:
        return ("probability", "low", "high"), np.column_stack([probabilities[:, 1], intervals[:, 1]])
    names = [f"{kind} {label}" for label in range(probabilities.shape[1]) for kind in ("probability", "low", "high")]
    together = np.concatenate([probabilities[:, :, None], intervals], axis=2)
    return tuple(names), together.reshape(len(X), -1)
