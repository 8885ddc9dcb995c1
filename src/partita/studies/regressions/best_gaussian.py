"""The Gaussian closest to a posterior, in KL(q ‖ p), found without Partita: what a variational fit can reach at best.

Where a way to fit differs from this Gaussian, it is at fault; where it equals it and NUTS does not, the posterior is no
Gaussian. Batch after batch, each closest Gaussian is the prior of the next batch: what a stream can reach at best.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from scipy.optimize import minimize

from partita.studies.regressions.references import Problem, Reference
from partita.studies.regressions.sampling import whiten

POINTS = 64
FAMILIES = ("bernoulli", "poisson")


class Normal(NamedTuple):
    mean: np.ndarray
    covariance: np.ndarray


def best_gaussian(problem: Problem, sites: np.ndarray | None = None) -> Reference:
    """The closest one of a bernoulli or poisson regression: of all rows at once or, with `sites`, batch after batch."""
    sites = np.zeros(len(problem.y), int) if sites is None else sites
    q, evidence = Normal(np.zeros(len(problem.scales)), np.diag(problem.scales**2)), 0.0
    with jax.enable_x64(True):
        for site in np.unique(sites):
            batch = problem.design[sites == site], problem.y[sites == site]
            q, gained = _absorb(problem.family, q, *batch)
            evidence += gained
    return Reference(*problem.in_units_of_data(*q), problem.evidence(evidence))


def _absorb(family: str, prior: Normal, X: np.ndarray, y: np.ndarray) -> tuple[Normal, float]:
    """The closest Gaussian to prior times likelihood, and the bound of its evidence, in units of the mode's width."""
    precision, size = np.linalg.inv(prior.covariance), len(prior.mean)

    def log_density(z: Any) -> Any:
        f = X @ z
        link = jax.nn.softplus(f) if family == "bernoulli" else jnp.exp(f)
        return jnp.sum(y * f - link) - 0.5 * (z - prior.mean) @ precision @ (z - prior.mean)

    mode, L = whiten(log_density, _start(family, prior, y))
    bound, lower = _bound(family, prior, X, y), np.tril_indices(size)

    def loss(free: Any) -> Any:
        return -bound(mode + L @ free[:size], L @ _triangle(free[size:], lower))

    value = jax.jit(jax.value_and_grad(loss))
    found = minimize(
        lambda free: tuple(map(np.asarray, value(free))), np.zeros(size + len(lower[0])), jac=True, method="L-BFGS-B",
        options={"maxiter": 5000, "maxfun": 20000, "ftol": 1e-15, "gtol": 1e-9},
    )  # fmt: skip
    root = L @ np.asarray(_triangle(found.x[size:], lower))
    return Normal(mode + L @ found.x[:size], root @ root.T), -float(found.fun)


def _start(family: str, prior: Normal, y: np.ndarray) -> np.ndarray:
    """The prior's mean; for the first counts, with an intercept that gives theirs: exponentials are steep."""
    start = prior.mean.copy()
    if family == "poisson" and not start.any():
        start[-1] = np.log(max(y.mean(), 0.1))
    return start


def _triangle(entries: Any, lower: Any) -> Any:
    """A lower triangle with a diagonal of exponentials."""
    T = jnp.zeros((lower[0].max() + 1,) * 2).at[lower].set(entries)
    return jnp.tril(T, -1) + jnp.diag(jnp.exp(jnp.diag(T)))


def _bound(family: str, prior: Normal, X: np.ndarray, y: np.ndarray) -> Callable[[Any, Any], Any]:
    """E_q[log p(y | θ)] - KL(q ‖ prior) for q = N(m, CCᵀ), by Gauss-Hermite along each row's projection."""
    points, weights = np.polynomial.hermite_e.hermegauss(POINTS)
    weights = weights / weights.sum()
    precision, log_det = np.linalg.inv(prior.covariance), np.linalg.slogdet(prior.covariance)[1]
    constant = 0.0 if family == "bernoulli" else -jnp.sum(gammaln(y + 1))

    def bound(m: Any, C: Any) -> Any:
        f, v = X @ m, jnp.sum((X @ C) ** 2, axis=1)
        if family == "bernoulli":
            link = jax.nn.softplus(f[:, None] + jnp.sqrt(v)[:, None] * points) @ weights
        else:
            link = jnp.exp(f + v / 2)
        off = m - prior.mean
        distance = jnp.sum(precision * (C @ C.T)) + off @ precision @ off - len(m) + log_det
        return jnp.sum(y * f - link) + constant - 0.5 * distance + jnp.linalg.slogdet(C)[1]

    return bound
