"""A Gaussian over a vector, with a full covariance."""

from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular

from partita.families.abstract_gaussian import LOG_2PI, AbstractGaussian, standard_noise
from partita.families.base import Substitution, Tree
from partita.families.cone import Cone
from partita.families.marginals import Marginals
from partita.foundation.algebra import cholesky, numbers_of, solve_definite, solve_lower
from partita.foundation.runtime import Array, as_array, in_own_precision, is_traced, on_both_sides, outer
from partita.foundation.shapes import Inputs, Matrix, Moments, PerRow, Points, Predictors, Scalar, Vector


def inverse_of(matrix: Matrix) -> Matrix:
    """The inverse of a positive definite matrix; may be traced."""
    L = jnp.linalg.cholesky(matrix)
    return cho_solve((L, True), jnp.eye(len(L), dtype=L.dtype))


class GaussianMean(Tree):
    """E[θ] and -½E[θθᵀ]."""

    location: Array
    minus_half_second_moment: Array

    @property
    def covariance(self) -> Matrix:
        S = self.minus_half_second_moment
        return -(S + S.T) - outer(self.location, self.location)

    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Array:
        """θ = m + L ε with L Lᵀ = V, differentiable in both."""
        noise = standard_noise(key, shape, self.location)
        return self.location + noise @ jnp.linalg.cholesky(self.covariance).T

    def moments_along(self, X: Inputs) -> tuple[Predictors, Predictors]:
        """Mean and variance of Xθ."""
        return X @ self.location, jnp.sum((X @ self.covariance) * X, axis=-1)

    def place(self, points: Points) -> Points:
        return _place(self.location, self.covariance, points)


class Gaussian(AbstractGaussian):
    """A Gaussian over a vector, with a full covariance.

    >>> q = Gaussian.from_moments(np.zeros(2), np.eye(2))
    >>> (q**3).covariance[0, 0].round(3)
    np.float64(0.333)
    """

    precision_times_location: Array
    precision: Array

    is_full: ClassVar[bool] = True
    Mean = GaussianMean

    @classmethod
    def independent(cls, location: Vector, precision: Vector) -> Self:
        """From means and precisions of single coordinates."""
        return cls(precision * location, numbers_of(precision).diag(precision))

    @classmethod
    def from_moments(cls, location: Vector, covariance: Matrix) -> Self:
        """From the mean and the covariance."""
        inverse = inverse_of if is_traced(covariance) else np.linalg.inv
        precision = inverse(as_array(covariance))
        precision = 0.5 * (precision + precision.T)
        return cls(precision @ as_array(location), precision)

    def around(self, location: Vector, scale: Vector) -> Self:
        xp = jnp if is_traced((location, scale)) else np
        return type(self).from_moments(location, xp.diag(scale**2))

    def _cholesky(self) -> Array:
        return cholesky(self.precision)

    @property
    @on_both_sides
    def location(self) -> Vector:
        """The mean."""
        return solve_definite(self._cholesky(), self.precision_times_location)

    @property
    @on_both_sides
    def covariance(self) -> Matrix:
        """The inverse of the precision."""
        L = self._cholesky()
        return solve_definite(L, numbers_of(L).eye(len(L), dtype=L.dtype))

    @property
    @on_both_sides
    def variance(self) -> Vector:
        return numbers_of(self).diag(self.covariance)

    @on_both_sides
    def log_partition(self) -> Scalar:
        L, xp = self._cholesky(), numbers_of(self)
        half = solve_lower(L, self.precision_times_location)  # L⁻¹ Λm
        return 0.5 * (half @ half + len(half) * LOG_2PI) - xp.sum(xp.log(xp.diag(L)))

    @on_both_sides
    def statistics(self, params: Vector) -> GaussianMean:
        return GaussianMean(params, -0.5 * numbers_of(params).outer(params, params))

    @on_both_sides
    def mean(self) -> GaussianMean:
        L, xp = self._cholesky(), numbers_of(self)
        m = solve_definite(L, self.precision_times_location)
        V = solve_definite(L, xp.eye(len(L), dtype=L.dtype))
        return GaussianMean(m, -0.5 * (V + xp.outer(m, m)))

    @classmethod
    @in_own_precision
    def from_mean(cls, mean: GaussianMean) -> Self:
        return cls.from_moments(mean.location, mean.covariance)

    @in_own_precision
    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Array:
        """The same draws as from the mean parameters, so that both are one function of the density."""
        return self.mean().sample(key, shape)

    def moments_along(self, X: Inputs) -> tuple[Predictors, Predictors]:
        """Mean and variance of Xθ."""
        half = solve_lower(self._cholesky(), X.T)  # L⁻¹ Xᵀ
        return X @ self.location, numbers_of(half).sum(half**2, axis=0)

    def place(self, points: Points) -> Points:
        return _place(self.location, self.covariance, points)

    def quadratic(self, gradient: Vector, hessian: Matrix) -> Self:
        return type(self)(gradient - hessian @ self.location, -0.5 * (hessian + hessian.T))

    def quadratic_of_slopes(self, points: Inputs, slopes: Inputs) -> Self:
        m, gradient = self.location, jnp.mean(slopes, axis=0)
        # The points' deviations add up to zero but for rounding, which a steep mean slope would make large.
        H = (slopes - gradient).T @ (points - m) @ self.precision / len(points)
        # What the likelihood does not look at has no curvature, with anything.
        seen = jnp.any(slopes != 0, axis=0)
        H = jnp.where(seen & seen[:, None], 0.5 * (H + H.T), 0)
        return type(self)(gradient - H @ m, -H)

    def quadratic_along(self, X: Inputs, slope: PerRow, curvature: PerRow) -> Self:
        return type(self)(X.T @ slope, (X.T * curvature) @ X)

    def matched_along(self, x: Vector, before: Moments, after: Moments) -> Self:
        (m, v), (tilted_m, tilted_v) = before, after
        precision = 1 / tilted_v - 1 / v
        return self * type(self)((tilted_m / tilted_v - m / v) * x, precision * outer(x, x))

    def as_full(self, asked_by: str) -> "Gaussian":
        return self

    def naturals(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Precisions times locations, and precisions, of a stack of so many rows (or of one density), on the host."""
        shift, precision = np.asarray(self.precision_times_location), np.asarray(self.precision)
        return shift.reshape(rows, -1), precision.reshape(rows, *precision.shape[-2:])

    def with_naturals(self, shift: np.ndarray, precision: np.ndarray) -> Self:
        """The inverse of `naturals`: a stack."""
        return type(self)(shift, precision)

    def marginals(self, T: np.ndarray) -> Marginals:
        """Marginals of T θ, row by row of T."""
        return Marginals.normal(T @ self.location, np.sqrt(np.sum((T @ self.covariance) * T, axis=1)))

    def substituted(self, new: Substitution) -> tuple[Self, float]:
        """The same factor in other coordinates, and the logarithm of what it is larger by than the one returned."""
        h, moved = self.precision_times_location, self.precision_times_location - self.precision @ new.shift
        matrix = new.matrix.T @ self.precision @ new.matrix
        return type(self)(new.matrix.T @ moved, 0.5 * (matrix + matrix.T)), float(new.shift @ (h + moved)) / 2

    def cone(self) -> Cone:
        return Cone(definite=(self.precision,))

    @in_own_precision
    def to_free(self) -> tuple[Array, Array, Array]:
        """The mean, and the covariance's Cholesky factor as log diagonal and strict lower triangle."""
        L = jnp.linalg.cholesky(self.covariance)
        return self.location, jnp.log(jnp.diag(L)), jnp.tril(L, -1)

    @in_own_precision
    def natural_locations(self, gradient: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        return self.covariance @ gradient[0], *gradient[1:]

    @in_own_precision
    def from_free(self, free: tuple[Array, Array, Array]) -> Self:
        m, log_diagonal, lower = free
        L = jnp.tril(lower, -1) + jnp.diag(jnp.exp(log_diagonal))
        half = solve_triangular(L, jnp.eye(len(m), dtype=m.dtype), lower=True)
        precision = half.T @ half  # L⁻ᵀ L⁻¹
        return type(self)(precision @ m, precision)

    def mean_gradient(self, function: Callable[[Any], Array]) -> tuple[Array, Self]:
        value, gradient = jax.value_and_grad(function)(self.mean())
        S = gradient.minus_half_second_moment
        return value, type(self)(gradient.location, 0.5 * (S + S.T))


def _place(location: Array, covariance: Array, points: Array) -> Array:
    return location + points @ jnp.linalg.cholesky(covariance).T
