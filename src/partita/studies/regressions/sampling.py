"""NUTS and bridge sampling for the table of regressions, over one flat vector in float64.

The vector holds coefficients, then logarithms of what is positive (noise, spread of groups, size), then intercepts of
groups in units of their spread.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jax.scipy.stats import gamma, norm
from jax.scipy.stats import t as student
from scipy import stats
from scipy.optimize import minimize
from scipy.special import logsumexp

from partita.foundation.checks import import_extra
from partita.studies.nuts import Plan, sample_until
from partita.studies.regressions.references import Problem, Reference

CHAINS, DRAWS, WARM_UP = 4, 6000, 1000
# Sampling ends when the Monte Carlo error of every standard deviation is relatively this small, or after so many runs.
ERROR, MOST = 0.01, 8


def log_joint(problem: Problem) -> tuple[Callable[[Any], Any], int]:
    """The logarithm of prior times likelihood, with Jacobians, and the size of the vector."""
    scales, k = jnp.asarray(problem.scales), len(problem.scales)
    X, y, groups = jnp.asarray(problem.design), jnp.asarray(problem.y), problem.group
    gram, cross, square, n = X.T @ X, X.T @ y, y @ y, len(problem.y)

    def gaussian(z: Any) -> Any:
        """The density from sums over rows alone, so that many rows cost nothing."""
        w, log_noise = z[:k], z[k]
        residual = square - 2 * w @ cross + w @ gram @ w
        fit = -0.5 * residual * jnp.exp(-2 * log_noise) - n * (log_noise + 0.5 * jnp.log(2 * jnp.pi))
        return fit + _log_half_t(log_noise)

    def grouped(z: Any) -> Any:
        w, log_noise, log_spread, own = z[:k], z[k], z[k + 1], z[k + 2 :]
        f = X @ w + jnp.exp(log_spread) * own[groups]
        prior = norm.logpdf(jnp.exp(log_spread)) + jnp.log(2) + log_spread + norm.logpdf(own).sum()
        return norm.logpdf(y, f, jnp.exp(log_noise)).sum() + _log_half_t(log_noise) + prior

    def bernoulli(z: Any) -> Any:
        f = X @ z
        return jnp.sum(y * f - jax.nn.softplus(f))

    def poisson(z: Any) -> Any:
        f = X @ z
        return jnp.sum(y * f - jnp.exp(f) - gammaln(y + 1))

    def negative_binomial(z: Any) -> Any:
        f, size = X @ z[:k], jnp.exp(z[k])
        total = jnp.log(size + jnp.exp(f))
        seen = gammaln(y + size) - gammaln(size) - gammaln(y + 1) + size * (z[k] - total) + y * (f - total)
        return seen.sum() + gamma.logpdf(size, 2, scale=10) + z[k]

    kind = "grouped" if groups is not None else problem.family
    extra = {"gaussian": 1, "negative binomial": 1, "grouped": 2 + (0 if groups is None else int(groups.max()) + 1)}
    likelihoods = {
        "gaussian": gaussian, "grouped": grouped, "bernoulli": bernoulli, "poisson": poisson,
        "negative binomial": negative_binomial,
    }  # fmt: skip
    return (
        lambda z: norm.logpdf(z[:k], 0, scales).sum() + likelihoods[kind](z),
        k + extra.get(kind, 0),
    )


def _log_half_t(log_noise: Any) -> Any:
    return jnp.log(2) + student.logpdf(jnp.exp(log_noise), 3) + log_noise


def whiten(density: Callable[[Any], Any], start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mode m, and L with LLᵀ the inverse Hessian there: samplers work on u of z = m + Lu."""
    value = jax.jit(jax.value_and_grad(lambda z: -density(z)))
    hessian = jax.jit(jax.hessian(lambda z: -density(z)))
    found = minimize(
        lambda z: tuple(map(np.asarray, value(z))), start, jac=True, method="trust-exact",
        hess=lambda z: np.asarray(hessian(z)), options={"gtol": 1e-6, "maxiter": 2000},
    )  # fmt: skip
    values, vectors = np.linalg.eigh(np.asarray(hessian(found.x)))
    return found.x, vectors / np.sqrt(np.maximum(values, 1e-3 * np.median(np.abs(values))))


def sample(problem: Problem, chains: int = CHAINS, draws: int = DRAWS, error: float = ERROR) -> Reference:
    """NUTS in float64 until standard deviations are known to `error`; the evidence by a bridge from its draws."""
    with jax.enable_x64(True):
        density, size = log_joint(problem)
        start = np.zeros(size)
        if problem.family in ("poisson", "negative binomial"):
            start[len(problem.scales) - 1] = np.log(max(problem.y.mean(), 0.1))
        mode, L = whiten(density, start)
        log_scale = float(np.linalg.slogdet(L)[1])

        def white_density(u: Any) -> Any:
            return density(mode + L @ u) + log_scale

        def is_precise(u: np.ndarray) -> bool:
            return not _worst_error(_to_data(problem, u, mode, L)) > error

        plan = Plan(WARM_UP, draws, chains, seed=1, accept=0.9, dense=True)
        u = sample_until(lambda u: -white_density(u), plan, size, is_precise, MOST)
        beta = _to_data(problem, u, mode, L)
        evidence, evidence_error = bridge(jax.jit(jax.vmap(white_density)), u)
    flat = beta.reshape(-1, beta.shape[-1])
    return Reference(
        flat.mean(axis=0), flat.std(axis=0), problem.evidence(evidence), _worst_error(beta), evidence_error,
        noise=_median_noise(problem, u, mode, L),
    )  # fmt: skip


def _to_data(problem: Problem, u: np.ndarray, mode: np.ndarray, L: np.ndarray) -> np.ndarray:
    """Draws of coefficients in the units of the data: chains, draws, coefficients."""
    k = len(problem.scales)
    theta = mode[:k] + u @ L[:k].T
    beta: np.ndarray = theta @ problem.back.T
    beta[..., -1] += problem.target_centre
    return beta


def _median_noise(problem: Problem, u: np.ndarray, mode: np.ndarray, L: np.ndarray) -> float:
    if problem.family != "gaussian":
        return float("nan")
    k = len(problem.scales)
    return problem.target_unit * float(np.exp(mode[k] + np.median(u @ L[k])))


def _worst_error(beta: np.ndarray) -> float:
    """The largest relative Monte Carlo error of a standard deviation."""
    squares = (beta - beta.mean(axis=(0, 1))) ** 2
    squares = squares / squares.mean(axis=(0, 1))
    size = _effective_size(squares)
    return float(np.max(0.5 * squares.std(axis=(0, 1)) / np.sqrt(size)))


def _effective_size(draws: np.ndarray) -> np.ndarray:
    return np.asarray(import_extra("numpyro.diagnostics", "NumPyro", "numpyro").effective_sample_size(draws))


def bridge(log_density: Callable[[Any], Any], draws: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """log ∫ p by Meng and Wong's (1996) iterative bridge to a Gaussian, and its standard error over chains.

    The Gaussian for the draws of one chain has the moments of the others, so that it does not depend on them.
    """
    estimates = []
    rng = np.random.default_rng(seed)
    for number, own in enumerate(draws):
        others = np.concatenate([draws[i] for i in range(len(draws)) if i != number])
        proposal = stats.multivariate_normal(others.mean(axis=0), np.cov(others, rowvar=False))
        proposed = proposal.rvs(len(own), random_state=rng).reshape(own.shape)
        own_ratio, new_ratio = (np.asarray(log_density(z)) - proposal.logpdf(z) for z in (own, proposed))
        share = _effective_size(own[None, :, :]).min() / len(own)
        estimates.append(_meng_wong(own_ratio, new_ratio, min(float(share), 1.0)))
    return float(np.mean(estimates)), float(np.std(estimates, ddof=1) / np.sqrt(len(estimates)))


def _meng_wong(own: np.ndarray, new: np.ndarray, share: float) -> float:
    """The fixed point, from log p/g at draws of p and of g; draws of p count by their effective share."""
    shift = float(np.median(own))
    l1, l2 = own - shift, new - shift
    s1 = share / (1 + share)
    log_r = 0.0
    for _ in range(1000):
        bottom = partial(np.logaddexp, np.log(1 - s1) + log_r)
        above = logsumexp(l2 - bottom(np.log(s1) + l2)) - np.log(len(l2))
        below = logsumexp(-bottom(np.log(s1) + l1)) - np.log(len(l1))
        before, log_r = log_r, above - below
        if abs(log_r - before) < 1e-10:
            break
    return log_r + shift
