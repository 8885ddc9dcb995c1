"""The Gaussian closest to a posterior, in KL(q ‖ p), found without Partita: what a variational fit can reach at best.

Where a way to fit differs from NUTS and from this Gaussian, it is at fault; where it equals this Gaussian, the
posterior is no Gaussian.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from experiments.regression_nuts import log_joint, whiten
from experiments.regression_references import Problem, Reference

POINTS = 64


def best_gaussian(problem: Problem) -> Reference:
    """Of bernoulli and poisson regressions, whose rows see one projection: Gauss-Hermite along each."""
    with jax.enable_x64(True):
        density, size = log_joint(problem)
        start = np.zeros(size)
        if problem.family == "poisson":
            start[-1] = np.log(max(problem.y.mean(), 0.1))
        mode, L = whiten(density, start)
        bound = _bound(problem, mode, L)
        lower = np.tril_indices(size)
        value = jax.jit(jax.value_and_grad(lambda free: -bound(free[:size], _lower(free[size:], lower))))
        free = np.concatenate([np.zeros(size), np.eye(size)[lower] * 0.0])
        found = minimize(
            lambda free: tuple(map(np.asarray, value(free))), free, jac=True, method="L-BFGS-B",
            options={"maxiter": 5000, "maxfun": 20000, "ftol": 1e-15, "gtol": 1e-9},
        )  # fmt: skip
        C = L @ np.asarray(_lower(found.x[size:], lower))
    mean, sd = problem.in_units_of_data(mode + L @ found.x[:size], C @ C.T)
    return Reference(mean, sd, problem.evidence(-float(found.fun)))


def _lower(entries: Any, lower: Any) -> Any:
    """A triangle whose diagonal is exp of what is given."""
    T = jnp.zeros((lower[0].max() + 1,) * 2).at[lower].set(entries)
    return jnp.tril(T, -1) + jnp.diag(jnp.exp(jnp.diag(T)))


def _bound(problem: Problem, mode: np.ndarray, L: np.ndarray) -> Any:
    """E_q[log p(y, θ)] + H[q] for θ = mode + L(m + Cε)."""
    points, weights = np.polynomial.hermite_e.hermegauss(POINTS)
    weights = weights / weights.sum()
    scales = problem.scales
    constant = {"bernoulli": 0.0, "poisson": float(-np.sum(jax.scipy.special.gammaln(problem.y + 1)))}[problem.family]

    def bound(m: Any, C: Any) -> Any:
        location, root = mode + L @ m, L @ C
        f = problem.design @ location
        sd = jnp.sqrt(jnp.sum((problem.design @ root) ** 2, axis=1))
        drawn = f[:, None] + sd[:, None] * points
        link = jax.nn.softplus(drawn) if problem.family == "bernoulli" else jnp.exp(drawn)
        seen = jnp.sum(problem.y * f) - jnp.sum(link @ weights) + constant
        square = location**2 + jnp.sum(root**2, axis=1)
        prior = -0.5 * jnp.sum(square / scales**2 + jnp.log(2 * jnp.pi * scales**2))
        entropy = 0.5 * len(m) * jnp.log(2 * jnp.pi * jnp.e) + jnp.linalg.slogdet(root)[1]
        return seen + prior + entropy

    return bound
