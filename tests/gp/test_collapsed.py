"""The free energy with the function integrated out: against dense Gaussians, and its gradient against differences."""

import jax
import numpy as np
import pytest
import scipy.stats

from partita.foundation.runtime import precision
from partita.gp.collapsed import Seen, integrate_out

POINTS, OLD, ROWS = 5, 4, 7


def problem(keeps: bool) -> Seen:
    """Covariances of one function at points, old points and rows, of which the points need not hold the old ones."""
    generator = np.random.default_rng(3)

    def covariance(a, b):
        return np.exp(-0.5 * (a[:, None] - b) ** 2)

    Z, X = np.linspace(-2, 2, POINTS), generator.normal(size=ROWS)
    old = Z if keeps else np.linspace(-1.5, 1.8, OLD)
    root = generator.normal(size=(len(old), len(old)))
    return Seen(
        K=covariance(Z, Z) + 1e-6 * np.eye(POINTS),
        old=None if keeps else covariance(Z, old),
        precision=root @ root.T,
        shift=generator.normal(size=len(old)),
        rows=covariance(Z, X),
        h=generator.uniform(0.5, 2, ROWS),
        g=generator.normal(size=ROWS),
    )


def dense(seen: Seen) -> float:
    """log ∫ N(u; 0, K) exp(bᵀ u - uᵀ A u / 2) du by SciPy: the density of pseudo-observations, up to its factors."""
    A = np.linalg.solve(seen.K, seen.rows)
    back = np.eye(POINTS) if seen.old is None else np.linalg.solve(seen.K, seen.old)
    S = np.linalg.inv(back @ seen.precision @ back.T + (A * seen.h) @ A.T + 1e-9 * np.eye(POINTS))
    mean = S @ (back @ seen.shift + A @ seen.g)
    total = scipy.stats.multivariate_normal(np.zeros(POINTS), seen.K + S, allow_singular=True).logpdf(mean)
    return total - scipy.stats.multivariate_normal(mean, S, allow_singular=True).logpdf(np.zeros(POINTS))


@pytest.mark.parametrize("keeps", [True, False])
def test_value(keeps):
    seen = problem(keeps)
    A = np.linalg.solve(seen.K, seen.rows)
    halves = np.sum(seen.h * np.sum(seen.rows * A, axis=0))
    if not keeps:
        halves += np.trace(seen.precision @ seen.old.T @ np.linalg.solve(seen.K, seen.old))
    with precision(np.float64):
        assert float(integrate_out(seen)) == pytest.approx(dense(seen) + 0.5 * halves, rel=1e-6)


@pytest.mark.parametrize("keeps", [True, False])
def test_gradient(keeps):
    seen = problem(keeps)
    generator = np.random.default_rng(0)
    direction = jax.tree.map(lambda a: generator.normal(size=a.shape), seen)
    direction = direction._replace(K=direction.K + direction.K.T, precision=direction.precision + direction.precision.T)
    with precision(np.float64):
        gradient = jax.grad(integrate_out)(seen)
        for name in Seen._fields:
            if getattr(seen, name) is None:
                continue
            only, step = getattr(direction, name), 1e-6

            def moved(size, name=name, only=only):
                return float(integrate_out(seen._replace(**{name: getattr(seen, name) + size * only})))

            slope = (moved(step) - moved(-step)) / (2 * step)
            assert np.sum(getattr(gradient, name) * only) == pytest.approx(slope, rel=1e-4, abs=1e-5), name
