"""The best Gaussian for two classes, by quadrature along each row and SciPy's L-BFGS, without Partita."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr

from partita.foundation.runtime import precision
from partita.models import ProbitRegression
from partita.result import Result
from partita.studies.methods.comparisons import Comparison
from partita.studies.methods.problems import Problem

POINTS = 64


def best_bound(problem: Problem, result: Result) -> Comparison:
    """How far the bound of a posterior is below the largest one, both by the same quadrature."""
    from scipy.optimize import minimize

    q: Any = result.posterior
    size, full = len(q.location), bool(q.is_full)
    with precision(np.float64):
        bound = _bound(problem)

        def loss(free: Any) -> Any:
            return -bound(free[:size], _root(free[size:], size, full))

        value = jax.jit(jax.value_and_grad(loss))
        entries = size * (size + 1) // 2 if full else size
        found = minimize(
            lambda free: tuple(map(np.asarray, value(free))), np.zeros(size + entries), jac=True, method="L-BFGS-B",
            options={"maxiter": 5000, "maxfun": 20000, "ftol": 1e-15, "gtol": 1e-9},
        )  # fmt: skip
        root = np.linalg.cholesky(q.covariance) if full else np.diag(q.scale)
        ours = float(bound(jnp.asarray(q.location), jnp.asarray(root)))
    kind = "Gaussian" if full else "diagonal Gaussian"
    words = f"nats from the bound of the best {kind}, by quadrature and SciPy, {-found.fun:.3f}"
    return Comparison(abs(float(-found.fun - ours)), words)


def _root(entries: Any, size: int, full: bool) -> Any:
    """A root of a covariance: a lower triangle with a diagonal of exponentials."""
    if not full:
        return jnp.diag(jnp.exp(entries))
    L = jnp.zeros((size, size)).at[np.tril_indices(size)].set(entries)
    return jnp.tril(L, -1) + jnp.diag(jnp.exp(jnp.diag(L)))


def _bound(problem: Problem) -> Callable[[Any, Any], Any]:
    """E_q[log p(y | θ)] - KL(q ‖ prior) for q = N(m, CCᵀ)."""
    model: Any = problem.model
    X, y = problem.data
    scales = np.full(X.shape[1], model.prior_scale)
    if model.intercept:
        X, scales = np.column_stack([X, np.ones(len(X))]), np.append(scales, model.intercept_scale)
    probit = isinstance(model, ProbitRegression)
    points, weights = np.polynomial.hermite_e.hermegauss(POINTS)
    weights = weights / weights.sum()
    signs = 2 * y - 1

    def bound(m: Any, C: Any) -> Any:
        f = (X @ m)[:, None] + jnp.sqrt(jnp.sum((X @ C) ** 2, axis=1))[:, None] * points
        logs = log_ndtr(signs[:, None] * f) if probit else -jax.nn.softplus(-signs[:, None] * f)
        distance = (jnp.sum(C**2, axis=1) + m**2) / scales**2 - 1 + 2 * np.log(scales)
        return jnp.sum(logs @ weights) - 0.5 * jnp.sum(distance) + jnp.sum(jnp.log(jnp.diag(C)))

    return bound
