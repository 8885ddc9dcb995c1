"""Intervals of a posterior's parameters, whatever its family."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from scipy.special import ndtri

from partita.families import Family
from partita.foundation.runtime import precision
from partita.models.linear import LinearPredictor, to_units_of_data
from partita.report.charts.base import Intervals
from partita.result import Result

# Quantiles of families that are not Gaussian come from so many draws, and only of so many parameters at most.
DRAWS, MOST_DRAWN = 1000, 5000


def find_intervals(result: Result, features: Sequence[str] = ()) -> Intervals | None:
    """95 % intervals of the parameters, or None of very many that are not Gaussian. Features may have names.

    Weights of linear models are in units of the data, where the result's design says what those are.
    """
    found = compute_quantiles(result.posterior, read_units(result))
    if found is None:
        return None
    tree, low, middle, high = found
    return Intervals(lambda place: result.model.parameter_name(tree, place, features), low, middle, high)


def read_units(result: Result) -> np.ndarray | None:
    """A, with which parameters Aθ act on columns as they are; None where θ itself does, or the model is not linear.

    θᵀ (x - c)/s + b = (θ/s)ᵀ x + b - θᵀ(c/s)
    """
    design, model = result.design, result.model
    if design is None or "formula" in design or "unit" not in design or not isinstance(model, LinearPredictor):
        return None
    if len(design["columns"]) != model.features:
        return None
    block = to_units_of_data(np.asarray(design["centre"]), np.asarray(design["unit"]), model.intercept)
    return np.kron(np.eye(max(model.outputs, len(model.blocks))), block)


def compute_quantiles(
    posterior: Family, units: np.ndarray | None = None
) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray] | None:
    """The parameters as a tree, and three quantiles of all of them in a row.

    With `units`, the first parameters are multiplied by that matrix. None, where there are too many to draw.
    """
    if posterior.is_gaussian:
        gaussian = posterior.as_gaussian("report")
        middle, scale = _flatten(gaussian.location), _flatten(gaussian.scale)
        if units is not None:
            found = gaussian.marginals(_extend(units, len(middle)))
            middle, scale = found.mean, found.deviation
        half = float(ndtri(0.975)) * scale
        return gaussian.location, middle - half, middle, middle + half
    with precision(posterior.dtype):
        like = jax.eval_shape(posterior.sample, jax.random.key(0))
    if sum(leaf.size for leaf in jax.tree.leaves(like)) > MOST_DRAWN:
        return None
    leaves = jax.tree.leaves(posterior.sample(jax.random.key(0), (DRAWS,)))
    draws = np.concatenate([np.asarray(leaf).reshape(DRAWS, -1) for leaf in leaves], axis=1)
    if units is not None:
        draws = draws @ _extend(units, draws.shape[1]).T
    low, middle, high = np.quantile(draws, [0.025, 0.5, 0.975], axis=0)
    return like, low, middle, high


def _extend(units: np.ndarray, size: int) -> np.ndarray:
    """The matrix for so many parameters, which leaves the others as they are."""
    A = np.eye(size)
    A[: len(units), : len(units)] = units
    return A


def _flatten(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
