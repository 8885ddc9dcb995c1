"""A Gaussian over a vector whose covariance has blocks: within each it is full, and between them zero."""

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from partita.errors import InputError
from partita.families.abstract_gaussian import AbstractGaussian, GaussianView, standard_noise
from partita.families.base import Substitution, Tree
from partita.families.cone import Cone
from partita.families.gaussian import Gaussian, GaussianMean
from partita.families.marginals import Marginals
from partita.foundation.runtime import Array, as_array, in_own_precision, outer
from partita.foundation.shapes import Inputs, Matrix, Moments, Points, Predictors, Scalar, Vector


def _split(array: Array, sizes: Sequence[int]) -> list[Array]:
    """The last axis in pieces, one after the other."""
    ends = np.cumsum(sizes)
    return [array[..., end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _together(pieces: Sequence[Array]) -> Array:
    return jnp.concatenate(list(pieces), axis=-1)


class BlockGaussianMean(Tree):
    """E[θ], and -½E[θθᵀ] of each block."""

    location: Array
    minus_half_second_moment: tuple[Array, ...]

    @property
    def blocks(self) -> list[GaussianMean]:
        """Each block as a Gaussian of its own."""
        sizes = [matrix.shape[-1] for matrix in self.minus_half_second_moment]
        return list(map(GaussianMean, _split(self.location, sizes), self.minus_half_second_moment))

    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Array:
        """θ = m + L ε with L Lᵀ = V, block by block; differentiable in both."""
        return self.place(standard_noise(key, shape, self.location))

    def moments_along(self, X: Inputs) -> tuple[Predictors, Predictors]:
        return _moments_along(self.blocks, X)

    def place(self, points: Points) -> Points:
        return _place(self.blocks, points)


def _moments_along(blocks: Sequence[GaussianView], X: Inputs) -> tuple[Predictors, Predictors]:
    """Sums over blocks, because they are independent."""
    pieces = _split(X, [block.location.shape[-1] for block in blocks])
    moments = [block.moments_along(piece) for block, piece in zip(blocks, pieces, strict=True)]
    return reduce(operator.add, (m for m, _ in moments)), reduce(operator.add, (v for _, v in moments))


def _place(blocks: Sequence[GaussianView], points: Points) -> Points:
    pieces = _split(points, [block.location.shape[-1] for block in blocks])
    return _together([block.place(piece) for block, piece in zip(blocks, pieces, strict=True)])


class BlockGaussian(AbstractGaussian):
    """A Gaussian over a vector that falls into blocks, each with a full covariance, independent of each other.

    >>> q = BlockGaussian.from_moments(np.zeros(3), [np.array([[2.0, 0.5], [0.5, 1.0]]), np.eye(1)])
    >>> q.sizes, q.covariance[:2, 1:].round(6)
    ((2, 1), array([[0.5, 0. ],
           [1. , 0. ]]))
    """

    precision_times_location: Array
    precision: tuple[Array, ...]

    Mean = BlockGaussianMean

    @classmethod
    def from_moments(cls, location: Array, covariances: Sequence[Array]) -> Self:
        """From the mean, and the covariance of each block."""
        if not covariances:
            raise InputError("covariances: expected one matrix for each block, and at least one")
        for number, matrix in enumerate(covariances):
            shape = np.shape(matrix)
            if len(shape) != 2 or shape[0] != shape[1]:
                raise InputError(f"covariances: block {number} has to be a square matrix, got shape {shape}")
        sizes = [np.shape(matrix)[-1] for matrix in covariances]
        m = as_array(location)
        if m.shape != (sum(sizes),):
            raise InputError(f"location: blocks of sizes {sizes} need {sum(sizes)} numbers, got shape {m.shape}")
        return cls.of(list(map(Gaussian.from_moments, _split(m, sizes), covariances)))

    @classmethod
    def of(cls, blocks: Sequence[Gaussian]) -> Self:
        """Independent Gaussians, one after the other."""
        shifts = [block.precision_times_location for block in blocks]
        xp = np if all(isinstance(shift, np.ndarray) for shift in shifts) else jnp
        return cls(xp.concatenate(shifts, axis=-1), tuple(block.precision for block in blocks))

    @classmethod
    def from_leaves(cls, leaves: Sequence[np.ndarray]) -> Self:
        return cls(leaves[0], tuple(leaves[1:]))

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many coordinates each block has."""
        return tuple(matrix.shape[-1] for matrix in self.precision)

    @property
    def blocks(self) -> list[Gaussian]:
        """Each block as a Gaussian of its own."""
        return list(map(Gaussian, _split(self.precision_times_location, self.sizes), self.precision))

    def _each(self, function: Callable[..., Gaussian], *arrays: Array) -> Self:
        """From functions of blocks and of their parts of arrays."""
        pieces = zip(self.blocks, *(_split(array, self.sizes) for array in arrays), strict=True)
        return self.of([function(*piece) for piece in pieces])

    @property
    @in_own_precision
    def location(self) -> Vector:
        return _together([block.location for block in self.blocks])

    @property
    @in_own_precision
    def variance(self) -> Vector:
        return _together([block.variance for block in self.blocks])

    @property
    @in_own_precision
    def covariance(self) -> Matrix:
        return jax.scipy.linalg.block_diag(*(block.covariance for block in self.blocks))

    def around(self, location: Vector, scale: Vector) -> Self:
        return self._each(lambda block, m, s: block.around(m, s), location, scale)

    @in_own_precision
    def log_partition(self) -> Scalar:
        return sum(block.log_partition() for block in self.blocks)

    @in_own_precision
    def statistics(self, params: Vector) -> BlockGaussianMean:
        pieces = _split(params, self.sizes)
        return BlockGaussianMean(params, tuple(-0.5 * outer(piece, piece) for piece in pieces))

    @in_own_precision
    def mean(self) -> BlockGaussianMean:
        means = [block.mean() for block in self.blocks]
        return BlockGaussianMean(
            _together([mean.location for mean in means]), tuple(mean.minus_half_second_moment for mean in means)
        )

    @classmethod
    @in_own_precision
    def from_mean(cls, mean: BlockGaussianMean) -> Self:
        return cls.of([Gaussian.from_mean(block) for block in mean.blocks])

    @in_own_precision
    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Array:
        return self.mean().sample(key, shape)

    def moments_along(self, X: Inputs) -> tuple[Predictors, Predictors]:
        return _moments_along(self.blocks, X)

    def place(self, points: Points) -> Points:
        return _place(self.blocks, points)

    def quadratic(self, gradient: Vector, hessian: Matrix) -> Self:
        ends = np.cumsum(self.sizes)
        matrices = [hessian[end - size : end, end - size : end] for end, size in zip(ends, self.sizes, strict=True)]
        pieces = zip(self.blocks, _split(gradient, self.sizes), matrices, strict=True)
        return self.of([block.quadratic(g, H) for block, g, H in pieces])

    def quadratic_of_slopes(self, points: Inputs, slopes: Inputs) -> Self:
        return self._each(lambda block, *pieces: block.quadratic_of_slopes(*pieces), points, slopes)

    def matched_along(self, x: Vector, before: Moments, after: Moments) -> Self:
        """m + Vx Δm/v and V + Vx xᵀV Δv/v², of which the blocks are kept."""
        (m, v), (tilted_m, tilted_v) = before, after

        def move(block: Gaussian, x: Array) -> Gaussian:
            V = block.covariance
            along = V @ x
            spread = V + outer(along, along) * (tilted_v - v) / v**2
            return Gaussian.from_moments(block.location + along * (tilted_m - m) / v, spread)

        return self._each(move, x)

    def marginals(self, T: np.ndarray) -> Marginals:
        pieces = map(np.asarray, _split(T, self.sizes))
        found = [block.marginals(piece) for block, piece in zip(self.blocks, pieces, strict=True)]
        return Marginals.normal(
            np.sum([one.mean for one in found], axis=0), np.sqrt(np.sum([one.deviation**2 for one in found], axis=0))
        )

    def substituted(self, new: Substitution) -> tuple[Self, float]:
        """The same factor in other coordinates; coordinates of two blocks may not be mixed."""
        ends = np.cumsum(self.sizes)
        spans = [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]
        rest = np.array(new.matrix)
        for span in spans:
            rest[span, span] = 0
        if np.any(rest != 0):
            raise InputError("a density with independent blocks has no sums of coordinates of several blocks")
        pairs = [
            block.substituted(Substitution(new.matrix[span, span], new.shift[span], new.noise))
            for block, span in zip(self.blocks, spans, strict=True)
        ]
        return self.of([block for block, _ in pairs]), sum(constant for _, constant in pairs)

    def cone(self) -> Cone:
        return Cone(definite=tuple(self.precision))

    @in_own_precision
    def to_free(self) -> tuple[tuple[Array, Array, Array], ...]:
        return tuple(block.to_free() for block in self.blocks)

    @in_own_precision
    def natural_locations(self, gradient: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(block.natural_locations(one) for block, one in zip(self.blocks, gradient, strict=True))

    @in_own_precision
    def from_free(self, free: tuple[tuple[Array, Array, Array], ...]) -> Self:
        return self.of([block.from_free(one) for block, one in zip(self.blocks, free, strict=True)])

    def mean_gradient(self, function: Callable[[Any], Array]) -> tuple[Array, Self]:
        value, gradient = jax.value_and_grad(function)(self.mean())
        matrices = gradient.minus_half_second_moment
        return value, type(self)(gradient.location, tuple(0.5 * (S + S.T) for S in matrices))
