"""Expectations over linear predictors: a model's own formula, quadrature, and draws of predictors or layers."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from partita.expectations.base import TINY, Expectation
from partita.foundation.checks import check_count
from partita.foundation.points import hermite, normal_points
from partita.foundation.runtime import Array
from partita.foundation.shapes import PerRow
from partita.models import AbstractModel, Hyper


class ClosedForm(Expectation):
    """The model's own formula."""

    of_mean: ClassVar[bool] = True

    def __call__(self, model: AbstractModel, q: Any, data: Any, hyper: Hyper, key: Array) -> PerRow:
        return model.expected_log_prob(q, data, hyper)


class GaussHermite(Expectation):
    """Quadrature over the one predictor f = xᵀθ ~ N(m, v) of each row."""

    points: int = 40

    def __check_init__(self) -> None:
        check_count("GaussHermite: ", points=self.points)

    def __call__(self, model: AbstractModel, q: Any, data: Any, hyper: Hyper, key: Array) -> PerRow:
        m, v = q.moments_along(data.X)
        nodes, weights = (jnp.asarray(a, m.dtype) for a in hermite(self.points))
        f = m[:, None] + jnp.sqrt(jnp.maximum(v, TINY))[:, None] * nodes
        values = jax.vmap(jax.vmap(model.pointwise, (0, None, None)), (0, 0, None))(f, data.y, hyper)
        return values @ weights


class LocalReparameterisation(Expectation):
    """Draws of the predictors f = Xθ, rather than of θ; of every layer's, for a network (Kingma et al., 2015).

    With `fixed=True` the draws are one low-discrepancy set, the same at every call: the free energy is then a
    deterministic function, and every schedule has the same optimum. Networks always draw afresh.
    """

    samples: int = 32
    fixed: bool = True

    def __check_init__(self) -> None:
        check_count("LocalReparameterisation: ", samples=self.samples)

    @property
    def stochastic(self) -> bool:
        return not self.fixed

    def __call__(self, model: AbstractModel, q: Any, data: Any, hyper: Hyper, key: Array) -> PerRow:
        if model.layered:
            return self._of_layers(model, q, data, hyper, key)
        m, v = q.moments_along(data.X)
        if self.fixed:
            noise = jnp.asarray(normal_points(self.samples, m.shape[-1]), m.dtype)[:, None, :]
        else:
            noise = jax.random.normal(key, (self.samples, *m.shape), m.dtype)
        f = m + jnp.sqrt(jnp.maximum(v, TINY)) * noise
        values = jax.vmap(jax.vmap(model.pointwise, (0, 0, None)), (0, None, None))(f, data.y, hyper)
        return jnp.mean(values, axis=0)

    def _of_layers(self, model: Any, q: Any, data: Any, hyper: Hyper, key: Array) -> Array:
        draw = model.draws(q, data.X)

        def one(key: Array) -> Array:
            return jax.vmap(model.pointwise, (0, 0, None))(draw(key), data.y, hyper)

        if self.samples == 1:
            return one(key)
        return jnp.mean(jax.lax.map(one, jax.random.split(key, self.samples)), axis=0)
