"""What a regression says of rows of a table that it has not seen."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import expit

from partita.designs.design import COUNTS, Design
from partita.expectations import hermite
from partita.result import Result

# Points of a quadrature over the linear predictor, and equally likely values of the deviation of groups.
POINTS, SPREADS = 40, 64


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
    if design.family == "gaussian":
        return f
    variance = _variance(design, result, X)[:, None] + _group_variances(result)
    if design.family == "bernoulli":
        nodes, weights = hermite(POINTS)
        points = f[:, None, None] + np.sqrt(variance)[..., None] * nodes
        mean: np.ndarray = (expit(points) @ weights).mean(axis=1)
    elif design.family in COUNTS:
        mean = np.exp(f[:, None] + variance / 2).mean(axis=1)
    else:
        raise NotImplementedError(f"expectations of the response {design.family!r}")
    return mean


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
