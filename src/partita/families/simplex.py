"""Beta, Dirichlet and categorical: probabilities, and what they are probabilities of."""

from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, gammaln, polygamma

from partita.families.base import Family, Tree
from partita.families.cone import Cone
from partita.foundation.runtime import Array, as_array, in_own_precision
from partita.foundation.shapes import Scalar


def concentration_from_mean(expected_log: Array) -> Array:
    """The α with ψ(α_k) - ψ(Σα) = E[log p_k]: Newton's method, with its diagonal plus rank-one Hessian."""
    slack = -expected_log
    start = 0.5 / jnp.maximum(slack - jnp.min(slack, axis=-1, keepdims=True) + 0.1, 0.1)

    def step(_: Array, alpha: Array) -> Array:
        total = jnp.sum(alpha, axis=-1, keepdims=True)
        gradient = digamma(total) - digamma(alpha) + expected_log
        diagonal, corner = -polygamma(1, alpha), polygamma(1, total)
        sums = [jnp.sum(a, axis=-1, keepdims=True) for a in (gradient / diagonal, 1 / diagonal)]
        offset = sums[0] / (1 / corner + sums[1])
        candidate = alpha - (gradient - offset) / diagonal
        return jnp.where(candidate > 0.1 * alpha, candidate, 0.1 * alpha)

    return jax.lax.fori_loop(0, 200, step, start)


class DirichletMean(Tree):
    """E[log p]."""

    expected_log: Array


class Dirichlet(Family):
    """∏ p_k^(α_k - 1) over a vector of probabilities, or over independent ones: the rows of an array."""

    concentration_minus_one: Array

    Mean = DirichletMean

    @classmethod
    def from_concentration(cls, concentration: Array) -> Self:
        """The density with these concentrations α."""
        return cls(as_array(concentration) - 1)

    @property
    def concentration(self) -> Array:
        return self.concentration_minus_one + 1

    @in_own_precision
    def log_partition(self) -> Scalar:
        return jnp.sum(gammaln(self.concentration)) - jnp.sum(gammaln(jnp.sum(self.concentration, axis=-1)))

    @in_own_precision
    def mean(self) -> DirichletMean:
        total = jnp.sum(self.concentration, axis=-1, keepdims=True)
        return DirichletMean(digamma(self.concentration) - digamma(total))

    @in_own_precision
    def statistics(self, params: Array) -> DirichletMean:
        return DirichletMean(jnp.log(params))

    @classmethod
    @in_own_precision
    def from_mean(cls, mean: DirichletMean) -> Self:
        return cls(concentration_from_mean(mean.expected_log) - 1)

    @in_own_precision
    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Array:
        alpha = jnp.asarray(self.concentration)
        return jax.random.dirichlet(key, alpha, (*shape, *alpha.shape[:-1]), alpha.dtype)

    def cone(self) -> Cone:
        return Cone(positive=(self.concentration,))

    @in_own_precision
    def to_free(self) -> Array:
        return jnp.log(self.concentration)

    @in_own_precision
    def from_free(self, free: Array) -> Self:
        return type(self)(jnp.exp(free) - 1)


class BetaMean(Tree):
    """E[log p] and E[log(1 - p)]."""

    expected_log: Array
    expected_log_complement: Array


class Beta(Family):
    """p^(α-1) (1-p)^(β-1) over one probability."""

    alpha_minus_one: Array
    beta_minus_one: Array

    Mean = BetaMean

    @classmethod
    def from_concentrations(cls, alpha: Array | float, beta: Array | float) -> Self:
        """The density p^(α-1) (1-p)^(β-1)."""
        return cls(as_array(alpha) - 1, as_array(beta) - 1)

    @property
    def alpha(self) -> Array:
        return self.alpha_minus_one + 1

    @property
    def beta(self) -> Array:
        return self.beta_minus_one + 1

    @in_own_precision
    def log_partition(self) -> Scalar:
        return gammaln(self.alpha) + gammaln(self.beta) - gammaln(self.alpha + self.beta)

    @in_own_precision
    def statistics(self, params: Array) -> BetaMean:
        return BetaMean(jnp.log(params), jnp.log1p(-params))

    @classmethod
    @in_own_precision
    def from_mean(cls, mean: BetaMean) -> Self:
        alpha, beta = concentration_from_mean(jnp.stack([mean.expected_log, mean.expected_log_complement]))
        return cls(alpha - 1, beta - 1)

    @in_own_precision
    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Array:
        alpha = jnp.asarray(self.alpha)
        return jax.random.beta(key, alpha, self.beta, shape, alpha.dtype)

    def cone(self) -> Cone:
        return Cone(positive=(self.alpha, self.beta))

    @in_own_precision
    def to_free(self) -> tuple[Array, Array]:
        return jnp.log(self.alpha), jnp.log(self.beta)

    @in_own_precision
    def from_free(self, free: tuple[Array, Array]) -> Self:
        return type(self)(jnp.exp(free[0]) - 1, jnp.exp(free[1]) - 1)


class CategoricalMean(Tree):
    """The probabilities."""

    probabilities: Array


class Categorical(Family):
    """exp(logit of the class), up to scale; a draw is a class index. Always proper when finite."""

    logits: Array

    Mean = CategoricalMean

    @classmethod
    def from_probabilities(cls, probabilities: Array) -> Self:
        """The density with these probabilities."""
        return cls(np.log(as_array(probabilities)))

    @in_own_precision
    def log_partition(self) -> Scalar:
        return jax.nn.logsumexp(jnp.asarray(self.logits))

    @in_own_precision
    def statistics(self, params: Array) -> CategoricalMean:
        return CategoricalMean(jax.nn.one_hot(params, self.logits.shape[-1], dtype=self.logits.dtype))

    @classmethod
    @in_own_precision
    def from_mean(cls, mean: CategoricalMean) -> Self:
        return cls(jnp.log(mean.probabilities))

    @in_own_precision
    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Array:
        return jax.random.categorical(key, jnp.asarray(self.logits), shape=shape)

    def cone(self) -> Cone:
        return Cone()

    @in_own_precision
    def to_free(self) -> Array:
        return jnp.asarray(self.logits)

    @in_own_precision
    def from_free(self, free: Array) -> Self:
        return type(self)(free)

    @property
    def values(self) -> int:
        return int(np.shape(self.logits)[-1])

    def support(self) -> np.ndarray:
        return np.arange(self.values)
