"""Multinomial regression, and the best diagonal Gaussian for it by quadrature and SciPy's L-BFGS."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partita.foundation.runtime import precision
from partita.models import SoftmaxRegression
from partita.result import Result
from partita.studies.documents import compare_moments
from partita.studies.methods.comparisons import Comparison
from partita.studies.methods.problems import Problem, standardise_irises

# Nodes of the quadrature in each of two directions.
NODES = 30


def kinds() -> Problem:
    """Three kinds of irises from lengths of sepals and petals, 75 rows."""
    from sklearn.datasets import load_iris

    y = load_iris().target[::2].astype(float)
    return Problem(SoftmaxRegression(2, classes=3, intercept_scale=1.0), (standardise_irises((0, 2))[::2], y))


def quadrature_optimum(problem: Problem, result: Result) -> Comparison:
    location, scale, bound = _climb(problem)
    q: Any = result.posterior
    gap = compare_moments(q.location, q.scale, location, scale)
    words = f"largest difference to the optimum by quadrature and SciPy, whose bound is {bound:.3f}, in deviations"
    return Comparison(float(max(gap.means.max(), np.abs(gap.ratios - 1).max())), words)


def _climb(problem: Problem) -> tuple[np.ndarray, np.ndarray, float]:
    """Means and deviations that maximise the bound, and the bound there."""
    from scipy.optimize import minimize

    model: Any = problem.model
    X, y = problem.data
    A = np.column_stack([X, np.ones(len(X))])
    shape = (3, A.shape[1])
    wide = np.array([model.prior_scale] * X.shape[1] + [model.intercept_scale])
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    weights = weights / weights.sum()

    def expected_log_sum(m: Any, v: Any) -> Any:
        """E[log Σ exp f] of one row: f_0, and what the others are above it, two correlated normals."""
        first = jnp.sqrt(v[1] + v[0])
        shared = v[0] / first
        a = m[1] - m[0] + first * nodes[:, None]
        b = m[2] - m[0] + shared * nodes[:, None] + jnp.sqrt(v[2] + v[0] - shared**2) * nodes
        return m[0] + weights @ jnp.logaddexp(jnp.logaddexp(0, a), b) @ weights

    def loss(free: Any) -> Any:
        m, s = free.reshape(2, *shape)
        scale = jnp.exp(s)
        means, variances = A @ m.T, A**2 @ (scale**2).T
        fit = means[np.arange(len(y)), y.astype(int)] - jax.vmap(expected_log_sum)(means, variances)
        divergence = 0.5 * ((m**2 + scale**2) / wide**2 - 1) + jnp.log(wide) - s
        return jnp.sum(divergence) - jnp.sum(fit)

    with precision(np.float64):
        slope = jax.jit(jax.value_and_grad(loss))
        start = np.concatenate([np.zeros(9), np.full(9, -1.0)])
        found = minimize(lambda free: tuple(map(np.asarray, slope(free))), start, jac=True, options={"gtol": 1e-7})
    m, s = found.x.reshape(2, *shape)
    return m, np.exp(s), -float(found.fun)
