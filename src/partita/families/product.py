"""Independent families side by side, as one family."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import numpy as np

from partita.families.base import Family, Tree
from partita.families.cone import Cone
from partita.foundation.runtime import Array, in_own_precision
from partita.foundation.shapes import Scalar


class ProductMean(Tree):
    """The mean parameters of each part."""

    parts: dict[str, Any]


class Product(Family):
    """∏ q_k(θ_k): a draw is a dictionary of draws.

    >>> from partita.families import Beta, Gamma
    >>> q = Product({"rate": Gamma.from_shape_rate(2.0, 1.0), "chance": Beta.from_concentrations(1.0, 1.0)})
    >>> sorted(q.parts)
    ['chance', 'rate']
    """

    parts: dict[str, Any]

    Mean = ProductMean

    @in_own_precision
    def log_partition(self) -> Scalar:
        return sum(part.log_partition() for part in self.parts.values())

    @in_own_precision
    def statistics(self, params: dict[str, Any]) -> ProductMean:
        return ProductMean({name: part.statistics(params[name]) for name, part in self.parts.items()})

    @in_own_precision
    def mean(self) -> ProductMean:
        return ProductMean({name: part.mean() for name, part in self.parts.items()})

    @classmethod
    @in_own_precision
    def from_mean(cls, mean: ProductMean) -> Self:
        """Each part is inverted by the family whose mean parameters it holds."""
        return cls({name: FAMILY_OF[type(part)].from_mean(part) for name, part in mean.parts.items()})

    @in_own_precision
    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> dict[str, Any]:
        keys = jax.random.split(key, len(self.parts))
        pairs = zip(sorted(self.parts), keys, strict=True)
        return {name: self.parts[name].sample(k, shape) for name, k in pairs}

    def project(self) -> Self:
        return type(self)({name: part.project() for name, part in self.parts.items()})

    def cone(self) -> Cone:
        cones = [self.parts[name].cone() for name in sorted(self.parts)]
        return Cone(
            tuple(values for cone in cones for values in cone.positive),
            tuple(matrix for cone in cones for matrix in cone.definite),
        )

    @in_own_precision
    def to_free(self) -> dict[str, Any]:
        return {name: part.to_free() for name, part in self.parts.items()}

    @in_own_precision
    def from_free(self, free: dict[str, Any]) -> Self:
        return type(self)({name: part.from_free(free[name]) for name, part in self.parts.items()})

    @in_own_precision
    def natural_locations(self, gradient: dict[str, Any]) -> dict[str, Any]:
        return {name: part.natural_locations(gradient[name]) for name, part in self.parts.items()}

    @property
    def values(self) -> int | None:
        numbers = [part.values for part in self.parts.values()]
        return None if None in numbers else math.prod(numbers)

    def support(self) -> dict[str, Any]:
        supports = {name: part.support() for name, part in self.parts.items()}
        places = combine([self.parts[name].values for name in supports])
        pairs = zip(supports.items(), places.T, strict=True)
        return {name: jax.tree.map(lambda values, which=which: values[which], one) for (name, one), which in pairs}

    def mean_gradient(self, function: Callable[[Any], Array]) -> tuple[Array, Self]:
        gradients = {}
        for name, part in self.parts.items():
            value, gradients[name] = part.mean_gradient(
                lambda view, name=name: function(type(self)({**self.parts, name: view}))
            )
        return value, type(self)(gradients)


def combine(numbers: Sequence[int]) -> np.ndarray:
    """All ways to choose one place in each of several rows of so many places: one way per row."""
    return np.indices(numbers).reshape(len(numbers), -1).T


FAMILY_OF: dict[type, type[Family]] = {}
