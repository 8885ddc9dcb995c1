"""What a regression says of rows of a table that it has not seen."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import expit

from partita.errors import InputError
from partita.expectations import hermite
from partita.formulas.design import Design, evaluate
from partita.formulas.tables import conformed, described, read_table
from partita.result import Result

# Points of a quadrature over the linear predictor, and equally likely values of the deviation of groups.
POINTS, SPREADS = 40, 64
LEVELS_SHOWN = 8


def read_inputs(design: Design, table: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a table as the formula reads them, and which rows have all that it needs."""
    frame = read_table(table, "table")
    _check_columns(design, frame)
    names = list(design.parsed.inputs)
    whole = frame[names].notna().all(axis=1).to_numpy()
    if not names or not whole.any():
        return np.empty((int(whole.sum()), len(design.names))), whole
    kept = conformed(frame.loc[whole], {name: design.columns[name] for name in names})
    return evaluate("table", design.spec, kept), whole


def _check_columns(design: Design, frame: Any) -> None:
    """That columns are of the kind that was agreed on, with no level that no site had."""
    # A column without any value is of no kind.
    present = [
        name for name in design.parsed.inputs if name not in frame.columns or frame[[name]].notna().any(axis=None)
    ]
    categorical = [name for name in present if design.columns[name].levels is not None]
    for name, column in described("table", frame, present, categorical).items():
        known = design.columns[name]
        if known.levels is None and column.levels is not None:
            raise InputError(f"table: column {name!r} is not numbers, as it was at all sites: make it numbers")
        new = sorted(set(column.levels or ()) - set(known.levels or ()))
        if new and known.levels is not None:
            raise InputError(
                f"table: column {name!r} has {_shown(new)}, which no site had: known are {_shown(known.levels)}; "
                "leave such rows out"
            )


def _shown(levels: Sequence[str]) -> str:
    more = f" and {len(levels) - LEVELS_SHOWN} more" if len(levels) > LEVELS_SHOWN else ""
    return ", ".join(map(repr, levels[:LEVELS_SHOWN])) + more


def expected(design: Design, result: Result, means: Mapping[str, float], X: np.ndarray) -> np.ndarray:
    """The expected observation of each row: averaged over the posterior, and over groups that are new.

    Args:
        design: how tables are read.
        result: the run's.
        means: of the coefficients by name, in the units of the data.
        X: rows, as the formula reads them.
    """
    slopes = np.array([means[name] for name in design.names])
    f = (X - design.centre) @ slopes + (design.centre @ slopes + means.get("Intercept", 0.0))
    if design.family == "gaussian":
        return f
    variance = _variance(design, result, X)[:, None] + _group_variances(result)
    if design.family == "bernoulli":
        nodes, weights = hermite(POINTS)
        points = f[:, None, None] + np.sqrt(variance)[..., None] * nodes
        return (expit(points) @ weights).mean(axis=1)
    return np.exp(f[:, None] + variance / 2).mean(axis=1)


def _variance(design: Design, result: Result, X: np.ndarray) -> np.ndarray:
    """Of the linear predictor: in the units of the run, where nothing cancels."""
    posterior: Any = result.posterior
    Z = design.inputs(X)
    if design.intercept:
        Z = np.column_stack([Z, np.ones(len(Z))])
    size = Z.shape[1]
    return np.sum((Z @ np.asarray(posterior.covariance)[:size, :size]) * Z, axis=1)


def _group_variances(result: Result) -> np.ndarray:
    """Equally likely variances of groups. Their tails are left out: what counts expect over them is infinite."""
    quantiles = result.model.coefficients(result.posterior).log_quantiles.get("spread")
    return np.zeros(1) if quantiles is None else np.exp(2 * quantiles((np.arange(SPREADS) + 0.5) / SPREADS))
