"""The paper's objectives: the local problem that a site solves, and what adds up to the evidence."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from partita.errors import InputError
from partita.expectations import Expectation
from partita.expectations.base import TINY
from partita.families import Family, inner
from partita.foundation.points import hermite
from partita.foundation.runtime import Array
from partita.foundation.shapes import Scalar
from partita.models import AbstractModel, Hyper
from partita.shards import Shard

# Points of a quadrature over one predictor.
POINTS = 64


class LocalProblem(eqx.Module):
    """max over q of F(q) = E_q[log p(y_m | θ)] - KL(q ‖ cavity): a site's whole view of the world.

    `anchor` is an earlier posterior that solvers of double loops look at.
    """

    model: AbstractModel
    expectation: Expectation
    cavity: Family
    shard: Shard
    hyper: Hyper
    anchor: Family | None = None

    def expected_log_prob(self, q: Any, key: Array) -> Scalar:
        """E_q[log p(y_m | θ)], summed over the shard."""
        return self._summed(self.expectation(self.model, q, self.shard.data, self.hyper, key))

    def log_prob(self, params: Any) -> Scalar:
        """log p(y_m | θ), summed over the shard."""
        return self._summed(self.model.log_prob(params, self.shard.data, self.hyper))

    def _summed(self, rows: Array) -> Array:
        if jnp.shape(rows) != self.shard.weights.shape:
            raise InputError(
                f"log_prob: expected one number per row, {self.shard.weights.shape}, got {jnp.shape(rows)}"
            )
        return self.shard.total(rows)

    def free_energy(self, q: Any, key: Array) -> Scalar:
        """The local free energy (Eq. 2 of the paper), up to the cavity's scale."""
        view = q.mean() if self.expectation.of_mean else q
        return self.expected_log_prob(view, key) - q.kl(self.cavity)

    def renyi_bound(self, q: Family, power: float, draws: int, key: Array) -> Scalar:
        """log ∫ q^(1-α) (cavity p(y_m | θ))^α dθ / α: the local free energy where α tends to zero.

        Its maximum over q is the closest q in α-divergence to the tilted distribution. By quadrature over the predictor
        where the shard is one row of a model with one, else from draws of q.
        """
        if self.has_one_predictor and q.is_gaussian:
            between = (self.cavity**power * q ** (1 - power)).as_gaussian("renyi_bound")
            overlap = between.log_partition() - power * self.cavity.log_partition() - (1 - power) * q.log_partition()
            m, v = between.moments_along(self.shard.data.X)
            nodes, weights = (jnp.asarray(a, m.dtype) for a in hermite(POINTS))
            logs = power * self.row_log_prob(0)(m[0] + jnp.sqrt(jnp.maximum(v[0], TINY)) * nodes)
            return (overlap + jax.nn.logsumexp(logs, b=weights)) / power
        params = q.sample(key, (draws,))

        def log_ratio(params: Any) -> Array:
            statistics = q.statistics(params)
            log_q = inner(q, statistics) - q.log_partition()
            return self.log_prob(params) + inner(self.cavity, statistics) - self.cavity.log_partition() - log_q

        logs = power * jax.vmap(log_ratio)(params)
        return (jax.nn.logsumexp(logs) - jnp.log(draws)) / power

    @property
    def has_one_predictor(self) -> bool:
        """Whether the likelihood is a function of one number xᵀθ."""
        return self.model.projected and self.model.outputs == 1 and self.shard.capacity == 1

    def row_log_prob(self, row: int | Array) -> Callable[[Array], Array]:
        """log p(y | f) of one row, at values of its predictor."""
        y, weight = self.shard.data.y[row], self.shard.weights[row]
        return jax.vmap(lambda f: weight * self.model.pointwise(f, y, self.hyper))

    def message(self, q: Family, key: Array) -> tuple[Scalar, Family]:
        """E_q[log p(y_m | θ)] and its gradient in the mean parameters of q (Property 4), or what stands for it.

        The gradient is the factor that solves the fixed-point equation, given q.
        """
        if self.expectation.has_message:
            return self.expectation.message(self.model, q, self.shard, self.hyper, key)
        if self.expectation.of_mean:
            value, gradient = jax.value_and_grad(self.expected_log_prob)(q.mean(), key)
            return value, q.from_gradient(gradient)
        return q.mean_gradient(lambda view: self.expected_log_prob(view, key))

    def hyper_gradient(self, q: Family, key: Array) -> Hyper:
        """This site's share of dF/dε: E_q[d log p(y_m | θ, ε) / dε] (Section 2.2)."""
        view = q.mean() if self.expectation.of_mean else q

        def value(hyper: Hyper) -> Array:
            return eqx.tree_at(lambda p: p.hyper, self, hyper).expected_log_prob(view, key)

        return jax.grad(value)(self.hyper)

    def batch(self, key: Array, size: int | None) -> "LocalProblem":
        """The same problem with the likelihood estimated from a random mini-batch."""
        return self if size is None else self.on(self.shard.batch(key, size))

    def on(self, shard: Shard) -> "LocalProblem":
        return LocalProblem(self.model, self.expectation, self.cavity, shard, self.hyper, self.anchor)
