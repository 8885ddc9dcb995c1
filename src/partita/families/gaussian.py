"""Gaussians: diagonal over any pytree of arrays, and with a full covariance over a vector."""

from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_solve, solve_triangular

from partita.errors import InputError
from partita.families.base import Family, Substitution, Tree
from partita.families.cone import Cone
from partita.families.marginals import Marginals
from partita.foundation.runtime import Array, as_array, cheap_normal, in_own_precision, is_traced, same_structure

LOG_2PI = float(np.log(2 * np.pi))
LARGEST_DENSE = 10_000


def _noise(key: Array, shape: tuple[int, ...], location: Any) -> Any:
    leaves, structure = jax.tree.flatten(location)
    keys = jax.random.split(key, len(leaves))
    draws = [jax.random.normal(k, (*shape, *a.shape), a.dtype) for k, a in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, draws)


def _side_by_side(tree: Any) -> tuple[np.ndarray, Callable[[np.ndarray], Any]]:
    """All coordinates in order, and the way back, on the host."""
    leaves, structure = jax.tree.flatten(tree)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def back(flat: np.ndarray) -> Any:
        parts = zip(np.split(flat, ends), leaves, strict=True)
        return jax.tree.unflatten(structure, [part.reshape(leaf.shape).astype(leaf.dtype) for part, leaf in parts])

    return np.concatenate([np.ravel(leaf) for leaf in leaves]), back


def _inverse(matrix: Array) -> Array:
    L = jnp.linalg.cholesky(matrix)
    return cho_solve((L, True), jnp.eye(len(L), dtype=L.dtype))


def _diagonal_sample(location: Any, variance: Any, key: Array, shape: tuple[int, ...]) -> Any:
    """θ = m + σ ε, differentiable in both."""
    noise = _noise(key, shape, location)
    return jax.tree.map(lambda m, v, e: m + jnp.sqrt(v) * e, location, variance, noise)


def _diagonal_moments_along(location: Array, variance: Array, X: Array) -> tuple[Array, Array]:
    """Mean and variance of Xθᵀ, for θ an array whose last axis meets the columns of X."""
    return X @ location.T, X**2 @ variance.T


class MeanFieldMean(Tree):
    """E[θ] and -½E[θ²]."""

    location: Any
    minus_half_second_moment: Any

    @property
    def variance(self) -> Any:
        return jax.tree.map(lambda m, s: -2 * s - m**2, self.location, self.minus_half_second_moment)

    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Any:
        return _diagonal_sample(self.location, self.variance, key, shape)

    def moments_along(self, X: Array) -> tuple[Array, Array]:
        return _diagonal_moments_along(self.location, self.variance, X)


class MeanFieldMoments(Tree):
    """Means and logarithms of standard deviations: a mean-field Gaussian as gradient methods see it."""

    location: Any
    log_scale: Any

    @property
    def variance(self) -> Any:
        return jax.tree.map(lambda r: jnp.exp(2 * r), self.log_scale)

    def mean(self) -> MeanFieldMean:
        second = jax.tree.map(lambda m, v: -0.5 * (v + m**2), self.location, self.variance)
        return MeanFieldMean(self.location, second)

    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Any:
        leaves, structure = jax.tree.flatten(self.location)
        keys = jax.tree.unflatten(structure, list(jax.random.split(key, len(leaves))))

        def draw(m: Array, r: Array, key: Array) -> Array:
            return m + jnp.exp(r) * cheap_normal(key, (*shape, *m.shape), m.dtype)

        return jax.tree.map(draw, self.location, self.log_scale, keys)

    def moments_along(self, X: Array) -> tuple[Array, Array]:
        return _diagonal_moments_along(self.location, self.variance, X)

    def kl(self, other: "MeanField") -> Array:
        """KL(q ‖ p), with nothing of p to be differentiated."""

        def term(m: Array, r: Array, centre: Array, precision: Array) -> Array:
            return 0.5 * jnp.sum(precision * (jnp.exp(2 * r) + (m - centre) ** 2) - 1 - jnp.log(precision) - 2 * r)

        terms = jax.tree.map(term, self.location, self.log_scale, other.location, other.precision)
        return sum(jax.tree.leaves(terms), jnp.zeros(()))


class MeanField(Family):
    """A Gaussian with a diagonal covariance, over an array or any pytree of arrays.

    >>> q = MeanField.from_moments(np.zeros(2), np.full(2, 0.5))
    >>> (q * q / q).scale
    array([0.5, 0.5])
    """

    precision_times_location: Any
    precision: Any

    Mean = MeanFieldMean

    @classmethod
    def from_moments(cls, location: Any, scale: Any) -> Self:
        """From means and standard deviations; one number stands for equal ones everywhere."""
        location = jax.tree.map(as_array, location)
        if not same_structure(scale, location):
            scale = jax.tree.map(lambda _: scale, location)
        precision = jax.tree.map(lambda m, s: 1 / as_array(s) ** 2 + 0 * m, location, scale)
        return cls(jax.tree.map(lambda m, p: m * p, location, precision), precision)

    @property
    @in_own_precision
    def location(self) -> Any:
        """Means."""
        return jax.tree.map(lambda h, p: h / p, self.precision_times_location, self.precision)

    @property
    @in_own_precision
    def variance(self) -> Any:
        """Variances."""
        return jax.tree.map(lambda p: 1 / p, self.precision)

    @property
    @in_own_precision
    def scale(self) -> Any:
        """Standard deviations."""
        return jax.tree.map(lambda p: 1 / jnp.sqrt(p), self.precision)

    @property
    @in_own_precision
    def covariance(self) -> Array:
        """The dense matrix, over all coordinates in order; for a small number of them."""
        variance = ravel_pytree(self.variance)[0]
        if variance.size > LARGEST_DENSE:
            raise InputError(f"a dense covariance of {variance.size} coordinates is too large: use `scale`")
        return jnp.diag(variance)

    @in_own_precision
    def log_partition(self) -> Array:
        def term(h, p):
            return 0.5 * jnp.sum(h**2 / p - jnp.log(p) + LOG_2PI)

        return sum(jax.tree.leaves(jax.tree.map(term, self.precision_times_location, self.precision)), jnp.zeros(()))

    @in_own_precision
    def statistics(self, params: Any) -> MeanFieldMean:
        return MeanFieldMean(params, jax.tree.map(lambda a: -0.5 * a**2, params))

    @in_own_precision
    def mean(self) -> MeanFieldMean:
        second = jax.tree.map(lambda m, v: -0.5 * (v + m**2), self.location, self.variance)
        return MeanFieldMean(self.location, second)

    @classmethod
    @in_own_precision
    def from_mean(cls, mean: MeanFieldMean) -> Self:
        return cls.from_moments(mean.location, jax.tree.map(jnp.sqrt, mean.variance))

    @in_own_precision
    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Any:
        return _diagonal_sample(self.location, self.variance, key, shape)

    def moments_along(self, X: Array) -> tuple[Array, Array]:
        return _diagonal_moments_along(self.location, self.variance, X)

    def marginals(self, T: np.ndarray) -> Marginals:
        """Of T θ, row by row of T, over all coordinates in order."""
        location, variance = (
            np.concatenate([np.ravel(a) for a in jax.tree.leaves(t)]) for t in (self.location, self.variance)
        )
        return Marginals.normal(T @ location, np.sqrt(T**2 @ variance))

    def substituted(self, new: Substitution) -> tuple[Self, float]:
        """The same factor in other coordinates, and the logarithm of what it is larger by than the one returned.

        Coordinates that are sums of others would not be independent of each other.
        """
        diagonal = np.diag(new.matrix)
        if np.any(new.matrix != np.diag(diagonal)):
            raise InputError("a mean-field density has no sums of its coordinates as coordinates")
        (h, unravel), (p, _) = (_side_by_side(tree) for tree in (self.precision_times_location, self.precision))
        moved = h - p * new.shift
        constant = float(new.shift @ (h + moved)) / 2
        return type(self)(unravel(diagonal * moved), unravel(diagonal**2 * p)), constant

    def cone(self) -> Cone:
        return Cone(positive=tuple(jax.tree.leaves(self.precision)))

    @in_own_precision
    def to_free(self) -> tuple[Any, Any]:
        return self.location, jax.tree.map(lambda p: -0.5 * jnp.log(p), self.precision)

    @in_own_precision
    def from_free(self, free: tuple[Any, Any]) -> Self:
        return type(self).from_moments(free[0], jax.tree.map(jnp.exp, free[1]))

    def seen_from_free(self, free: tuple[Any, Any]) -> MeanFieldMoments:
        return MeanFieldMoments(*free)

    def mean_gradient(self, function: Callable[[Any], Array]) -> tuple[Array, Self]:
        value, gradient = jax.value_and_grad(function)(self.mean())
        return value, self.from_gradient(gradient)


class GaussianMean(Tree):
    """E[θ] and -½E[θθᵀ]."""

    location: Array
    minus_half_second_moment: Array

    @property
    def covariance(self) -> Array:
        S = self.minus_half_second_moment
        return -(S + S.T) - jnp.outer(self.location, self.location)

    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Array:
        """θ = m + L ε with L Lᵀ = V, differentiable in both."""
        noise = _noise(key, shape, self.location)
        return self.location + noise @ jnp.linalg.cholesky(self.covariance).T

    def moments_along(self, X: Array) -> tuple[Array, Array]:
        """Mean and variance of Xθ."""
        return X @ self.location, jnp.sum((X @ self.covariance) * X, axis=-1)


class Gaussian(Family):
    """A Gaussian over a vector, with a full covariance.

    >>> q = Gaussian.from_moments(np.zeros(2), np.eye(2))
    >>> (q**3).covariance[0, 0].round(3)
    np.float64(0.333)
    """

    precision_times_location: Array
    precision: Array

    Mean = GaussianMean

    @classmethod
    def from_moments(cls, location: Array, covariance: Array) -> Self:
        """From the mean and the covariance."""
        inverse = _inverse if is_traced(covariance) else np.linalg.inv
        precision = inverse(as_array(covariance))
        precision = 0.5 * (precision + precision.T)
        return cls(precision @ as_array(location), precision)

    def _cholesky(self) -> Array:
        return jnp.linalg.cholesky(self.precision)

    @property
    @in_own_precision
    def location(self) -> Array:
        """The mean."""
        return cho_solve((self._cholesky(), True), self.precision_times_location)

    @property
    @in_own_precision
    def covariance(self) -> Array:
        """The inverse of the precision."""
        L = self._cholesky()
        return cho_solve((L, True), jnp.eye(len(L), dtype=L.dtype))

    @property
    @in_own_precision
    def scale(self) -> Array:
        """Marginal standard deviations."""
        return jnp.sqrt(jnp.diag(self.covariance))

    @in_own_precision
    def log_partition(self) -> Array:
        L = self._cholesky()
        half = solve_triangular(L, self.precision_times_location, lower=True)  # L⁻¹ Λm
        return 0.5 * (half @ half + len(half) * LOG_2PI) - jnp.sum(jnp.log(jnp.diag(L)))

    @in_own_precision
    def statistics(self, params: Array) -> GaussianMean:
        return GaussianMean(params, -0.5 * jnp.outer(params, params))

    @in_own_precision
    def mean(self) -> GaussianMean:
        L = self._cholesky()
        m = cho_solve((L, True), self.precision_times_location)
        V = cho_solve((L, True), jnp.eye(len(L), dtype=L.dtype))
        return GaussianMean(m, -0.5 * (V + jnp.outer(m, m)))

    @classmethod
    @in_own_precision
    def from_mean(cls, mean: GaussianMean) -> Self:
        return cls.from_moments(mean.location, mean.covariance)

    @in_own_precision
    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Array:
        """The same draws as from the mean parameters, so that both are one function of the density."""
        return self.mean().sample(key, shape)

    def moments_along(self, X: Array) -> tuple[Array, Array]:
        """Mean and variance of Xθ."""
        half = solve_triangular(self._cholesky(), X.T, lower=True)  # L⁻¹ Xᵀ
        return X @ self.location, jnp.sum(half**2, axis=0)

    def marginals(self, T: np.ndarray) -> Marginals:
        """Of T θ, row by row of T."""
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
