"""Several independent densities of one family, along a leading axis."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp

from partita.families.base import Family, Tree
from partita.families.cone import Cone
from partita.families.product import FAMILY_OF, combine
from partita.foundation.runtime import Array, in_own_precision
from partita.foundation.shapes import Scalar


class IndependentMean(Tree):
    """The mean parameters of each, with the same leading axis."""

    each: Any


class Independent(Family):
    """∏_k q(θ_k): a draw has the leading axis too.

    >>> import numpy as np
    >>> from partita.families import NormalGamma
    >>> one = NormalGamma.from_parameters(np.zeros(2), np.eye(2), 2.0, 1.0)
    >>> Independent.of([one, one]).each.precision.shape
    (2, 2, 2)
    """

    each: Any

    Mean = IndependentMean

    @classmethod
    def of(cls, densities: Sequence[Family]) -> Self:
        return cls(Family.stack(densities))

    def __len__(self) -> int:
        return len(jax.tree.leaves(self.each)[0])

    # One after the other: batched factorisations are slow, and can deadlock, on few cores.
    @in_own_precision
    def log_partition(self) -> Scalar:
        return jnp.sum(jax.lax.map(lambda density: density.log_partition(), self.each))

    @in_own_precision
    def statistics(self, params: Any) -> IndependentMean:
        return IndependentMean(jax.lax.map(lambda pair: pair[0].statistics(pair[1]), (self.each, params)))

    @in_own_precision
    def mean(self) -> IndependentMean:
        return IndependentMean(jax.lax.map(lambda density: density.mean(), self.each))

    @classmethod
    @in_own_precision
    def from_mean(cls, mean: IndependentMean) -> Self:
        return cls(jax.lax.map(FAMILY_OF[type(mean.each)].from_mean, mean.each))

    @in_own_precision
    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Any:
        keys = jax.random.split(key, len(self))
        drawn = jax.lax.map(lambda pair: pair[0].sample(pair[1], shape), (self.each, keys))
        return jax.tree.map(lambda a: jnp.moveaxis(a, 0, len(shape)), drawn)

    def project(self) -> Self:
        return type(self)(self.each.project())

    def cone(self) -> Cone:
        cone = self.each.cone()
        # The axis of the densities comes last but for the matrices' own two; a stack of sites has another before it.
        matrices = [matrix[..., k, :, :] for matrix in cone.definite for k in range(matrix.shape[-3])]
        return Cone(cone.positive, tuple(matrices))

    @in_own_precision
    def to_free(self) -> Any:
        return jax.lax.map(lambda density: density.to_free(), self.each)

    @in_own_precision
    def from_free(self, free: Any) -> Self:
        return type(self)(jax.lax.map(lambda pair: pair[0].from_free(pair[1]), (self.each, free)))

    @in_own_precision
    def natural_locations(self, gradient: Any) -> Any:
        return jax.lax.map(lambda pair: pair[0].natural_locations(pair[1]), (self.each, gradient))

    @property
    def values(self) -> int | None:
        return None if self.each.values is None else self.each.values ** len(self)

    def support(self) -> Any:
        one = self.each.support()
        places = combine([self.each.values] * len(self))
        return jax.tree.map(lambda values: values[places], one)

    def mean_gradient(self, function: Callable[[Any], Array]) -> tuple[Array, Self]:
        """The chain rule applies, because the Fisher matrix of independent densities has blocks."""
        value, gradient = jax.value_and_grad(lambda each: function(type(self)(each)))(self.each)
        solved = jax.lax.map(lambda pair: pair[0].fisher_solve(pair[1]), (self.each, gradient))
        return value, type(self)(solved)
