"""What code outside needs of a Gaussian, whatever the structure of its covariance."""

from abc import abstractmethod
from typing import Any, ClassVar, Protocol, Self

import jax
import numpy as np

from partita.families.base import Family, Substitution
from partita.families.marginals import Marginals
from partita.foundation.algebra import numbers_of
from partita.foundation.runtime import Array, on_both_sides, same_structure
from partita.foundation.shapes import Inputs, Matrix, Moments, PerRow, Points, Predictors, Vector

LOG_2PI = float(np.log(2 * np.pi))


class GaussianView(Protocol):
    """A Gaussian as it is differentiated: a density, its mean parameters, or its means and log scales."""

    @property
    def location(self) -> Any: ...

    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Any: ...

    def moments_along(self, X: Inputs) -> tuple[Predictors, Predictors]: ...

    def place(self, points: Points) -> Points: ...


class AbstractGaussian(Family):
    """A Gaussian over an array or a tree of arrays; all coordinates in order are called θ below, as one vector.

    A structure says which entries of the covariance may differ from zero. Whatever leaves the structure (a product with
    a function of xᵀθ, a quadratic log likelihood) is brought back by keeping moments, or mean-parameter gradients.
    """

    is_gaussian: ClassVar[bool] = True

    precision_times_location: Any
    precision: Any

    def as_gaussian(self, asked_by: str) -> "AbstractGaussian":
        return self

    @property
    @abstractmethod
    def location(self) -> Any:
        """Means."""

    @property
    @abstractmethod
    def variance(self) -> Any:
        """Variances of single coordinates."""

    @property
    @on_both_sides
    def scale(self) -> Any:
        """Standard deviations of single coordinates."""
        return jax.tree.map(numbers_of(self).sqrt, self.variance)

    @property
    @abstractmethod
    def covariance(self) -> Matrix:
        """The dense matrix, over all coordinates in order."""

    @property
    def size(self) -> int:
        """How many coordinates there are."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.precision_times_location))

    @property
    def is_vector(self) -> bool:
        """Whether the coordinates are those of one vector."""
        leaves = jax.tree.leaves(self.precision_times_location)
        return len(leaves) == 1 and leaves[0].ndim == 1

    def is_over_same(self, other: Family) -> bool:
        """Whether this and another Gaussian have the same coordinates, whatever their structures are."""
        own, theirs = self.precision_times_location, other.as_gaussian("is_over_same").precision_times_location
        if not same_structure(own, theirs):
            return False
        return [np.shape(a) for a in jax.tree.leaves(own)] == [np.shape(a) for a in jax.tree.leaves(theirs)]

    @abstractmethod
    def around(self, location: Any, scale: Any) -> Self:
        """A Gaussian of this structure with these means and standard deviations, its coordinates independent."""

    @abstractmethod
    def moments_along(self, X: Inputs) -> tuple[Predictors, Predictors]:
        """Mean and variance of the linear predictors Xθ, row by row of X."""

    @abstractmethod
    def place(self, points: Points) -> Points:
        """Move points with mean zero and covariance one, [n, size], to points with the moments of this density."""

    @abstractmethod
    def quadratic(self, gradient: Vector, hessian: Matrix) -> Self:
        """The factor that a log likelihood with these expected gradients and Hessians stands for.

        It is the gradient of E[log p] in the mean parameters (Bonnet, 1964; Price, 1958): precision -H, and precision
        times location g - H m, as far as the structure has entries for them.
        """

    @abstractmethod
    def quadratic_of_slopes(self, points: Inputs, slopes: Inputs) -> Self:
        """The same from gradients at placed points: E[H] = E[∇ log p (θ - m)ᵀ] V⁻¹ (Stein, 1981)."""

    def quadratic_along(self, X: Inputs, slope: PerRow, curvature: PerRow) -> Self:
        """The factor exp(Σ_n g_n f_n - ½ h_n f_n²) of the linear predictors f = Xθ; where `is_full`."""
        what = "a Gaussian with a full covariance"
        raise self._lacks("quadratic_along", what, lambda family: family.is_full)

    @abstractmethod
    def matched_along(self, x: Vector, before: Moments, after: Moments) -> Self:
        """The nearest density to this one times a function of xᵀθ, by moments.

        Args:
            x: the direction.
            before: mean and variance of xᵀθ without the function.
            after: the same with it.
        """

    @abstractmethod
    def marginals(self, T: np.ndarray) -> Marginals: ...

    @abstractmethod
    def substituted(self, new: Substitution) -> tuple[Self, float]: ...


def standard_noise(key: Array, shape: tuple[int, ...], location: Any) -> Any:
    """Standard normal draws of the shapes of a tree, with leading axes."""
    leaves, structure = jax.tree.flatten(location)
    keys = jax.random.split(key, len(leaves))
    draws = [jax.random.normal(k, (*shape, *a.shape), a.dtype) for k, a in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, draws)
