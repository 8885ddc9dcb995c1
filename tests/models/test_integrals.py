"""Integrals over local variables, against SciPy's adaptive quadrature and exact algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate, special, stats

from partita.foundation.runtime import precision
from partita.models.integrals import find_peak, log_integral

COUNTS = np.array([3.0, 0.0, 7.0, 40.0])


def log_joint(given, u):
    """Poisson counts around exp(level + u), u ~ N(0, exp(log_spread)²)."""
    level, log_spread = given
    f = level + u[0]
    likely = jnp.sum(COUNTS * f - jnp.exp(f)) - jnp.sum(jax.scipy.special.gammaln(COUNTS + 1))
    return likely - 0.5 * u[0] ** 2 * jnp.exp(-2 * log_spread) - log_spread - 0.5 * jnp.log(2 * jnp.pi)


def by_scipy(given):
    level, log_spread = given
    peak = special.xlogy(1, COUNTS.mean()) - level

    def density(u):
        logs = stats.poisson.logpmf(COUNTS, np.exp(level + u)).sum() + stats.norm.logpdf(u, 0, np.exp(log_spread))
        return np.exp(logs + 40)

    value, _ = integrate.quad(density, -20, 20, points=[peak], limit=200, epsabs=0, epsrel=1e-11)
    return np.log(value) - 40


@pytest.mark.parametrize("given", [(0.0, 0.0), (2.0, -1.0), (-3.0, 1.0)])
def test_one_variable(given):
    with precision(np.float64):
        found = jax.jit(lambda g: log_integral(log_joint, g, 1))(jnp.asarray(given))
    assert_allclose(found, by_scipy(given), atol=1e-6)


def test_derivatives_do_not_need_those_of_the_mode():
    given, step = np.array([1.0, -0.5]), 1e-4
    with precision(np.float64):
        gradient = jax.jit(jax.grad(lambda g: log_integral(log_joint, g, 1)))(jnp.asarray(given))
        hessian = jax.jit(jax.hessian(lambda g: log_integral(log_joint, g, 1)))(jnp.asarray(given))
    shifts = step * np.eye(2)
    numeric = [(by_scipy(given + s) - by_scipy(given - s)) / (2 * step) for s in shifts]
    second = [(by_scipy(given + s) - 2 * by_scipy(given) + by_scipy(given - s)) / step**2 for s in shifts]
    assert_allclose(gradient, numeric, atol=1e-5)
    assert_allclose(np.diag(hessian), second, atol=1e-2)


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_gaussians_are_exact(dimension):
    rng = np.random.default_rng(dimension)
    A = rng.normal(size=(dimension, dimension + 2))
    precision_matrix, pull = A @ A.T, rng.normal(size=dimension)

    def quadratic(given, u):
        return -0.5 * u @ given @ u + u @ pull

    with precision(np.float64):
        given = jnp.asarray(precision_matrix)
        found = jax.jit(lambda g: log_integral(quadratic, g, dimension))(given)
        peak = jax.jit(lambda g: find_peak(quadratic, g, dimension))(given)
    covariance = np.linalg.inv(precision_matrix)
    exact = 0.5 * (pull @ covariance @ pull + np.linalg.slogdet(2 * np.pi * covariance)[1])
    assert_allclose(found, exact, rtol=1e-10)
    assert_allclose(peak.mode, covariance @ pull, atol=1e-6)
    root = np.asarray(peak.root)
    assert_allclose(root @ root.T, covariance, rtol=1e-8)
