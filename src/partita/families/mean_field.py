"""Gaussians with a diagonal covariance, over any pytree of arrays."""

import operator
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np

from partita.errors import InputError
from partita.families.abstract_gaussian import LOG_2PI, AbstractGaussian, standard_noise
from partita.families.base import Substitution, Tree
from partita.families.cone import Cone
from partita.families.marginals import Marginals
from partita.foundation.algebra import numbers_of
from partita.foundation.runtime import (
    Array,
    as_array,
    cheap_normal,
    cheap_normals,
    in_own_precision,
    on_both_sides,
    ravel,
    same_structure,
)
from partita.foundation.shapes import Inputs, Matrix, Moments, Points, Predictors, Scalar, Vector

LARGEST_DENSE = 10_000


def _flat_rows(tree: Any, rows: int) -> np.ndarray:
    return np.concatenate([np.reshape(leaf, (rows, -1)) for leaf in jax.tree.leaves(tree)], axis=1)


def _from_flat_rows(flat: np.ndarray, like: Any) -> Any:
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf[0].size for leaf in leaves])
    parts = np.split(flat, ends[:-1], axis=1)
    return jax.tree.unflatten(structure, [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)])


def _side_by_side(tree: Any) -> tuple[np.ndarray, Callable[[np.ndarray], Any]]:
    """All coordinates in order, and the way back, on the host."""
    leaves, structure = jax.tree.flatten(tree)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def back(flat: np.ndarray) -> Any:
        parts = zip(np.split(flat, ends), leaves, strict=True)
        return jax.tree.unflatten(structure, [part.reshape(leaf.shape).astype(leaf.dtype) for part, leaf in parts])

    return np.concatenate([np.ravel(leaf) for leaf in leaves]), back


class HasMoments(Protocol):
    """Means and variances of single coordinates, over an array or any pytree of arrays."""

    @property
    def location(self) -> Any: ...

    @property
    def variance(self) -> Any: ...


class Diagonal:
    """What follows from means and variances, where coordinates are independent of each other."""

    def sample(self: HasMoments, key: Array, shape: tuple[int, ...] = ()) -> Any:
        """θ = m + σ ε, differentiable in both."""
        location, variance = self.location, self.variance
        noise = standard_noise(key, shape, location)
        return jax.tree.map(lambda m, v, e: m + jnp.sqrt(v) * e, location, variance, noise)

    def sample_cheaply(self: HasMoments, key: Array) -> Any:
        """One draw, by a generator that is good enough for the noise of gradients."""
        location, variance = self.location, self.variance
        return jax.tree.map(lambda m, v, e: m + jnp.sqrt(v) * e, location, variance, cheap_normals(key, location))

    def moments_along(self: HasMoments, X: Inputs) -> tuple[Predictors, Predictors]:
        """Mean and variance of Xθᵀ, for θ an array whose last axis meets the columns of X."""
        location, variance = self.location, self.variance
        return X @ location.T, X**2 @ variance.T

    def place(self: HasMoments, points: Points) -> Points:
        """Move points with mean zero and covariance one, [n, size], to points with these moments."""
        location, variance = self.location, self.variance
        m, v = ravel(location)[0], ravel(variance)[0]
        return m + jnp.sqrt(v) * points


class MeanFieldMean(Diagonal, Tree):
    """E[θ] and -½E[θ²]."""

    location: Any
    minus_half_second_moment: Any

    @property
    def variance(self) -> Any:
        return jax.tree.map(lambda m, s: -2 * s - m**2, self.location, self.minus_half_second_moment)


class MeanFieldMoments(Diagonal, Tree):
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

    def kl(self, other: "MeanField") -> Scalar:
        """KL(q ‖ p), with nothing of p to be differentiated."""

        def term(m: Array, r: Array, centre: Array, precision: Array) -> Array:
            return 0.5 * jnp.sum(precision * (jnp.exp(2 * r) + (m - centre) ** 2) - 1 - jnp.log(precision) - 2 * r)

        terms = jax.tree.map(term, self.location, self.log_scale, other.location, other.precision)
        return sum(jax.tree.leaves(terms), jnp.zeros(()))


class MeanField(Diagonal, AbstractGaussian):
    """A Gaussian with a diagonal covariance, over an array or any pytree of arrays.

    >>> q = MeanField.from_moments(np.zeros(2), np.full(2, 0.5))
    >>> (q * q / q).scale
    array([0.5, 0.5])
    """

    precision_times_location: Any
    precision: Any

    is_mean_field: ClassVar[bool] = True
    Mean = MeanFieldMean

    def as_mean_field(self, asked_by: str) -> "MeanField":
        return self

    @classmethod
    def from_moments(cls, location: Any, scale: Any) -> Self:
        """From means and standard deviations; one number stands for equal ones everywhere."""
        location = jax.tree.map(as_array, location)
        if not same_structure(scale, location):
            scale = jax.tree.map(lambda _: scale, location)
        precision = jax.tree.map(lambda m, s: 1 / as_array(s) ** 2 + 0 * m, location, scale)
        return cls(jax.tree.map(lambda m, p: m * p, location, precision), precision)

    @classmethod
    def independent(cls, location: Any, precision: Any) -> Self:
        """From means and precisions of single coordinates."""
        return cls(jax.tree.map(lambda m, p: m * p, location, precision), precision)

    def around(self, location: Any, scale: Any) -> Self:
        return type(self).from_moments(location, scale)

    @property
    @on_both_sides
    def location(self) -> Any:
        """Means."""
        return jax.tree.map(lambda h, p: h / p, self.precision_times_location, self.precision)

    @property
    @on_both_sides
    def variance(self) -> Any:
        """Variances."""
        return jax.tree.map(lambda p: 1 / p, self.precision)

    @property
    @on_both_sides
    def scale(self) -> Any:
        """Standard deviations."""
        return jax.tree.map(lambda p: 1 / numbers_of(p).sqrt(p), self.precision)

    @property
    @on_both_sides
    def covariance(self) -> Matrix:
        """The dense matrix, over all coordinates in order; for a small number of them."""
        xp = numbers_of(self)
        variance = xp.concatenate([xp.ravel(leaf) for leaf in jax.tree.leaves(self.variance)])
        if variance.size > LARGEST_DENSE:
            raise InputError(f"a dense covariance of {variance.size} coordinates is too large: use `scale`")
        return xp.diag(variance)

    @on_both_sides
    def log_partition(self) -> Scalar:
        xp = numbers_of(self)

        def term(h: Any, p: Any) -> Any:
            return 0.5 * xp.sum(h**2 / p - xp.log(p) + LOG_2PI)

        return sum(
            jax.tree.leaves(jax.tree.map(term, self.precision_times_location, self.precision)), xp.zeros((), self.dtype)
        )

    @on_both_sides
    def statistics(self, params: Any) -> MeanFieldMean:
        return MeanFieldMean(params, jax.tree.map(lambda a: -0.5 * a**2, params))

    @on_both_sides
    def mean(self) -> MeanFieldMean:
        location = jax.tree.map(operator.truediv, self.precision_times_location, self.precision)
        return MeanFieldMean(location, jax.tree.map(lambda m, p: -0.5 * (1 / p + m**2), location, self.precision))

    @classmethod
    @in_own_precision
    def from_mean(cls, mean: MeanFieldMean) -> Self:
        return cls.from_moments(mean.location, jax.tree.map(jnp.sqrt, mean.variance))

    sample = in_own_precision(Diagonal.sample)

    def marginals(self, T: np.ndarray) -> Marginals:
        """Marginals of T θ, row by row of T, over all coordinates in order."""
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

    def quadratic(self, gradient: Vector, hessian: Matrix) -> Self:
        return self._with_curvature(gradient, jnp.diag(hessian))

    def quadratic_of_slopes(self, points: Inputs, slopes: Inputs) -> Self:
        m, gradient = ravel(self.location)[0], jnp.mean(slopes, axis=0)
        # The points' deviations add up to zero but for rounding, which a steep mean slope would make large.
        curvature = jnp.mean((slopes - gradient) * (points - m), axis=0) / ravel(self.variance)[0]
        return self._with_curvature(gradient, curvature)

    def _with_curvature(self, gradient: Vector, curvature: Vector) -> Self:
        m, whole = ravel(self.location)
        return type(self)(whole(gradient - curvature * m), whole(-curvature))

    def matched_along(self, x: Vector, before: Moments, after: Moments) -> Self:
        (m, v), (tilted_m, tilted_v) = before, after
        along = self.variance * x
        variance = self.variance + along**2 * (tilted_v - v) / v**2
        location = self.location + along * (tilted_m - m) / v
        return type(self)(location / variance, 1 / variance)

    def naturals(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Precisions times locations, and precisions, of a stack of so many rows (or of one density), on the host.

        Each is one matrix with a row for each density, and all coordinates in order.
        """
        return _flat_rows(self.precision_times_location, rows), _flat_rows(self.precision, rows)

    def with_naturals(self, shift: np.ndarray, precision: np.ndarray) -> Self:
        """The inverse of `naturals`: a stack of the shapes of this one."""
        return type(self)(_from_flat_rows(shift, self.precision), _from_flat_rows(precision, self.precision))

    def cone(self) -> Cone:
        return Cone(positive=tuple(jax.tree.leaves(self.precision)))

    def cone_part(self) -> Self:
        return type(self)((), self.precision)

    @in_own_precision
    def to_free(self) -> tuple[Any, Any]:
        return self.location, jax.tree.map(lambda p: -0.5 * jnp.log(p), self.precision)

    @in_own_precision
    def from_free(self, free: tuple[Any, Any]) -> Self:
        return type(self).from_moments(free[0], jax.tree.map(jnp.exp, free[1]))

    def natural_locations(self, gradient: tuple[Any, Any]) -> tuple[Any, Any]:
        by_location, by_log_scale = gradient
        return jax.tree.map(lambda g, p: g / p, by_location, self.precision), by_log_scale

    def seen_from_free(self, free: tuple[Any, Any]) -> MeanFieldMoments:
        return MeanFieldMoments(*free)

    def mean_gradient(self, function: Callable[[Any], Array]) -> tuple[Array, Self]:
        value, gradient = jax.value_and_grad(function)(self.mean())
        return value, self.from_gradient(gradient)
