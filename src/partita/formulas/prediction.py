"""What a regression says of rows of a table that it has not seen."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from partita.designs.design import Design
from partita.result import Result

# Equally likely values of the deviation of groups.
SPREADS = 64


def expect_observations(design: Design, result: Result, means: Mapping[str, float], X: np.ndarray) -> np.ndarray:
    """The expected observation of each row: averaged over the posterior, and over groups that are new.

    Args:
        design: how tables are read.
        result: the run's.
        means: of the coefficients by name, in the units of the data.
        X: rows, as the formula reads them.
    """
    slopes = np.array([means[name] for name in design.names])
    f: np.ndarray = (X - design.centre) @ slopes + (design.centre @ slopes + means.get("Intercept", 0.0))
    return design.response.expect(f, lambda: _variance(design, result, X)[:, None] + _group_variances(result))


def _variance(design: Design, result: Result, X: np.ndarray) -> np.ndarray:
    """The variance of the linear predictor, in the units of the run, where nothing cancels."""
    posterior: Any = result.posterior
    Z = design.inputs(X)
    if design.intercept:
        Z = np.column_stack([Z, np.ones(len(Z))])
    size = Z.shape[1]
    variance: np.ndarray = np.sum((Z @ np.asarray(posterior.covariance)[:size, :size]) * Z, axis=1)
    return variance


def _group_variances(result: Result) -> np.ndarray:
    """Equally likely variances of groups. Their tails are left out: what counts expect over them is infinite."""
    quantiles = result.model.coefficients(result.posterior).log_quantiles.get("spread")
    return np.zeros(1) if quantiles is None else np.exp(2 * quantiles((np.arange(SPREADS) + 0.5) / SPREADS))
