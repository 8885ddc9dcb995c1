"""Stochastic volatility: how much a series moves changes in time, at a level, a persistence and a size to be learnt."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from partita.families import Gaussian
from partita.foundation.checks import import_extra
from partita.models import Model
from partita.studies.methods.problems import Problem

QUARTERS = 100
# The deviation of a prior that log variances have to have, which rows take back.
WIDE = 3.0


def inflation() -> Problem:
    """Changes of American inflation in the last hundred quarters of statsmodels' macroeconomic data.

    Over the log variance's level, the inverse hyperbolic tangent of its persistence and the logarithm of the size of
    its steps; and log variances in units of that size, which depend on it less than they do themselves.
    """
    table = import_extra("statsmodels.datasets", "statsmodels", "dev").macrodata.load_pandas().data
    y = np.diff(table["infl"].to_numpy())[-QUARTERS:]

    def log_prob(params: Any, rows: Any) -> Any:
        number, y = rows
        persistence, size, path = jnp.tanh(params[1]), jnp.exp(params[2]), params[3:]
        level = params[0] / size
        first = number == 0
        before = jnp.where(first, 0.0, path[jnp.maximum(number - 1, 0)] - level)
        # The first one is as far from the level as any other.
        narrower = jnp.where(first, 1 - persistence**2, 1.0)
        step = path[number] - level - persistence * before
        moved = -0.5 * (step**2 * narrower - path[number] ** 2 / WIDE**2 - jnp.log(narrower)) + np.log(WIDE)
        h = size * path[number]
        return moved - 0.5 * (h + y**2 * jnp.exp(-h) + np.log(2 * np.pi))

    location = np.concatenate([[0.0, 1.5, -1.0], np.zeros(QUARTERS)])
    scale = np.concatenate([[2.0, 0.5, 0.5], np.full(QUARTERS, WIDE)])
    prior = Gaussian.from_moments(location, np.diag(scale**2))
    start = Gaussian.from_moments(location, 0.01 * np.eye(len(location)))
    return Problem(Model(prior, log_prob), (np.arange(QUARTERS), y), start)
