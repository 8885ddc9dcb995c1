"""Intervals of a posterior's parameters, whatever its family."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from scipy.special import ndtri

from partita.families import Family
from partita.foundation.runtime import precision
from partita.models.linear import LinearPredictor, to_units_of_data
from partita.report.charts import Picture, interval_picture
from partita.result import Result

# Parameters of other families than Gaussians are drawn, so many times; not of huge ones.
DRAWS, MOST_DRAWN = 1000, 5000


def posterior_picture(result: Result, features: Sequence[str] = ()) -> Picture | None:
    """95 % intervals of the parameters; None of very many that are not Gaussian. Features may have names.

    Weights of linear models are in units of the data, where the result's design says what those are.
    """
    found = intervals(result.posterior, in_units(result))
    if found is None:
        return None
    tree, low, middle, high = found
    return interval_picture(lambda place: result.model.parameter_name(tree, place, features), low, middle, high)


def in_units(result: Result) -> np.ndarray | None:
    """A, of parameters Aθ that act on columns as they are; None, if θ does, or is no linear model's.

    θᵀ (x - c)/s + b = (θ/s)ᵀ x + b - θᵀ(c/s)
    """
    design, model = result.design, result.model
    if design is None or "formula" in design or "unit" not in design or not isinstance(model, LinearPredictor):
        return None
    if len(design["columns"]) != model.features:
        return None
    block = to_units_of_data(np.asarray(design["centre"]), np.asarray(design["unit"]), model.intercept)
    return np.kron(np.eye(max(model.outputs, len(model.blocks))), block)


def intervals(
    posterior: Family, units: np.ndarray | None = None
) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray] | None:
    """Parameters as a tree, and the quantiles of all of them in a row; of the first ones times a matrix, if given."""
    if posterior.is_gaussian:
        gaussian = posterior.as_gaussian("report")
        middle, scale = _flat(gaussian.location), _flat(gaussian.scale)
        if units is not None:
            found = gaussian.marginals(_padded(units, len(middle)))
            middle, scale = found.mean, found.deviation
        half = float(ndtri(0.975)) * scale
        return gaussian.location, middle - half, middle, middle + half
    with precision(posterior.dtype):
        like = jax.eval_shape(posterior.sample, jax.random.key(0))
    if sum(leaf.size for leaf in jax.tree.leaves(like)) > MOST_DRAWN:
        return None
    draws = [
        np.asarray(leaf).reshape(DRAWS, -1) for leaf in jax.tree.leaves(posterior.sample(jax.random.key(0), (DRAWS,)))
    ]
    together = np.concatenate(draws, axis=1)
    if units is not None:
        together = together @ _padded(units, together.shape[1]).T
    low, middle, high = np.quantile(together, [0.025, 0.5, 0.975], axis=0)
    return like, low, middle, high


def _padded(units: np.ndarray, size: int) -> np.ndarray:
    """The rest of the parameters are left as they are."""
    A = np.eye(size)
    A[: len(units), : len(units)] = units
    return A


def _flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
