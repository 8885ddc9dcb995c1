"""The paper's objectives: the local problem that a site solves, and what adds up to the evidence."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from partita.errors import InputError
from partita.expectations import Expectation
from partita.families import Family
from partita.models import AbstractModel, Hyper
from partita.runtime import Array
from partita.shards import Shard


class LocalProblem(eqx.Module):
    """max over q of F(q) = E_q[log p(y_m | θ)] - KL(q ‖ cavity): a site's whole view of the world."""

    model: AbstractModel
    expectation: Expectation
    cavity: Family
    shard: Shard
    hyper: Hyper

    def expected_log_prob(self, q: Any, key: Array) -> Array:
        """E_q[log p(y_m | θ)], summed over the shard."""
        return self._summed(self.expectation(self.model, q, self.shard.data, self.hyper, key))

    def log_prob(self, params: Any) -> Array:
        """log p(y_m | θ), summed over the shard."""
        return self._summed(self.model.log_prob(params, self.shard.data, self.hyper))

    def _summed(self, rows: Array) -> Array:
        if jnp.shape(rows) != self.shard.weights.shape:
            raise InputError(
                f"log_prob: expected one number per row, {self.shard.weights.shape}, got {jnp.shape(rows)}"
            )
        return jnp.sum(jnp.where(self.shard.weights > 0, self.shard.weights * rows, 0))

    def free_energy(self, q: Any, key: Array) -> Array:
        """The local free energy (Eq. 2 of the paper), up to the cavity's scale."""
        view = q.mean() if self.expectation.of_mean else q
        return self.expected_log_prob(view, key) - q.kl(self.cavity)

    def message(self, q: Family, key: Array) -> tuple[Array, Family]:
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
        return LocalProblem(self.model, self.expectation, self.cavity, shard, self.hyper)
