"""Expectations over the parameters themselves: draws, all values, and derivatives at fixed points."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from partita.expectations.base import Expectation
from partita.families import AbstractGaussian, Family, GaussianView, inner
from partita.foundation.checks import check_count
from partita.foundation.points import white_points
from partita.foundation.runtime import Array, ravel
from partita.foundation.shapes import PerRow, Points, Scalar
from partita.models import AbstractModel, Hyper
from partita.shards import Shard

# How many copies of the data are looked at together, in numbers.
NUMBERS_AT_ONCE = 200_000


class MonteCarlo(Expectation):
    """Draws of the parameters, differentiated through (Rezende et al., 2014); for any model."""

    samples: int = 32

    def __check_init__(self) -> None:
        check_count("MonteCarlo: ", samples=self.samples)

    @property
    def stochastic(self) -> bool:
        return True

    def __call__(self, model: AbstractModel, q: Any, data: Any, hyper: Hyper, key: Array) -> PerRow:
        if self.samples == 1:
            return model.log_prob(q.sample(key), data, hyper)
        params = q.sample(key, (self.samples,))
        return jnp.mean(jax.vmap(lambda theta: model.log_prob(theta, data, hyper))(params), axis=0)


class Enumeration(Expectation):
    """A sum over all values of the parameters, where these are finitely many: a graph of a few discrete variables."""

    def __call__(self, model: AbstractModel, q: Any, data: Any, hyper: Hyper, key: Array) -> PerRow:
        values = q.support()
        log_shares = jax.vmap(lambda theta: inner(q, q.statistics(theta)))(values) - q.log_partition()
        return jnp.exp(log_shares) @ _mapped(lambda theta: model.log_prob(theta, data, hyper), values, data)


class ExpectedHessian(Expectation):
    """Gradients and Hessians of log p at fixed points around the mean, for any smooth model of a few hundred numbers.

    Under a Gaussian, the message is made of E_q[∇ log p] and E_q[∇∇ᵀ log p] (Bonnet, 1964; Price, 1958). Where the
    likelihood does not look at a parameter, both are zero to the last digit, so that a site says nothing about it; and
    where log p is quadratic they are exact. There are at least as many points as keep them so.
    """

    points: int = 64

    has_message: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_count("ExpectedHessian: ", points=self.points)

    def __call__(self, model: AbstractModel, q: Any, data: Any, hyper: Hyper, key: Array) -> PerRow:
        values = _mapped(lambda theta: model.log_prob(theta, data, hyper), _placed(q, self.points), data)
        return jnp.mean(values, axis=0)

    def message(
        self, model: AbstractModel, q: AbstractGaussian, shard: Shard, hyper: Hyper, key: Array
    ) -> tuple[Scalar, Family]:
        def value(theta: Array) -> Array:
            return shard.total(model.log_prob(theta, shard.data, hyper))

        def slope(theta: Array) -> tuple[Array, tuple[Array, Array]]:
            found, gradient = jax.value_and_grad(value)(theta)
            return gradient, (found, gradient)

        everywhere = _mapped(jax.jacfwd(slope, has_aux=True), _placed(q, self.points), shard.data)
        H, (found, gradient) = jax.tree.map(lambda a: jnp.mean(a, axis=0), everywhere)
        return found, q.quadratic(gradient, H)


class ExpectedSlope(Expectation):
    """Gradients of log p at fixed points around the mean, for any model of a few hundred numbers, with kinks or not.

    As `ExpectedHessian`, but with E_q[∇∇ᵀ log p] = E_q[∇ log p (θ - m)ᵀ] V⁻¹ (Stein, 1981), which holds where log p has
    kinks too: |x|, a hinge, rectified units. It takes more points. Where log p is quadratic, both are exact.
    """

    points: int = 512

    has_message: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_count("ExpectedSlope: ", points=self.points)

    def __call__(self, model: AbstractModel, q: Any, data: Any, hyper: Hyper, key: Array) -> PerRow:
        whole = ravel(q.location)[1]
        values = _mapped(lambda theta: model.log_prob(whole(theta), data, hyper), _placed(q, self.points), data)
        return jnp.mean(values, axis=0)

    def message(self, model: AbstractModel, q: Any, shard: Shard, hyper: Hyper, key: Array) -> tuple[Scalar, Any]:
        whole = ravel(q.location)[1]

        def value(theta: Array) -> Array:
            return shard.total(model.log_prob(whole(theta), shard.data, hyper))

        placed = _placed(q, self.points)
        values, slopes = _mapped(jax.value_and_grad(value), placed, shard.data)
        return jnp.mean(values), q.quadratic_of_slopes(placed, slopes)


def _placed(q: GaussianView, number: int) -> Points:
    """Points with the mean and the covariance of q, each as one vector."""
    m = ravel(q.location)[0]
    return q.place(jnp.asarray(white_points(number, m.shape[0]), m.dtype))


def _mapped(function: Callable[[Array], Any], points: Any, data: Any) -> Any:
    """At all points: many at once where data are small, and few where they are large."""
    size = max(1, sum(leaf.size for leaf in jax.tree.leaves(data)))
    return jax.lax.map(
        function, points, batch_size=int(np.clip(NUMBERS_AT_ONCE // size, 1, len(jax.tree.leaves(points)[0])))
    )
