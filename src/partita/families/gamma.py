"""Gamma: positive numbers, independent where there are several."""

from typing import Self

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, gammaln, polygamma

from partita.families.base import Family, Tree
from partita.families.cone import Cone
from partita.foundation.runtime import Array, as_array, in_own_precision
from partita.foundation.shapes import Scalar

# How far the recurrence of ψ goes before its series is good.
SHIFT = 8


def positive_digamma(x: Array) -> Array:
    """ψ(x) for x > 0, by its recurrence and its asymptotic series: few plain operations, fast to run and to compile."""
    below = sum(1 / (x + i) for i in range(SHIFT))
    x = x + SHIFT
    square = 1 / (x * x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square * (1 / 132)))))
    return jnp.log(x) - 0.5 / x - series - below


def shape_from_gap(gap: Array) -> Array:
    """The a > 0 with log a - ψ(a) = gap > 0: Newton's method on 1/a (Minka, 2002)."""
    start = (3 - gap + jnp.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)

    def step(_: Array, a: Array) -> Array:
        residual = jnp.log(a) - digamma(a) - gap
        return 1 / (1 / a + residual / (a**2 * (1 / a - polygamma(1, a))))

    return jax.lax.fori_loop(0, 12, step, start)


class GammaMean(Tree):
    """E[log x] and -E[x]."""

    expected_log: Array
    minus_expected: Array


class Gamma(Family):
    """x^(a-1) exp(-b x), for an array of independent x.

    >>> Gamma.from_shape_rate(3.0, 2.0).mean().minus_expected
    array(-1.5)
    """

    shape_minus_one: Array
    rate: Array

    Mean = GammaMean

    @classmethod
    def from_shape_rate(cls, shape: Array | float, rate: Array | float) -> Self:
        """The density with these shapes a and rates b."""
        a, b = as_array(shape), as_array(rate)
        return cls(a - 1 + 0 * b, b + 0 * a)

    @property
    def shape(self) -> Array:
        return self.shape_minus_one + 1

    @in_own_precision
    def log_partition(self) -> Scalar:
        return jnp.sum(gammaln(self.shape) - self.shape * jnp.log(self.rate))

    @in_own_precision
    def statistics(self, params: Array) -> GammaMean:
        return GammaMean(jnp.log(params), -params)

    @classmethod
    @in_own_precision
    def from_mean(cls, mean: GammaMean) -> Self:
        expected = -mean.minus_expected
        shape = shape_from_gap(jnp.log(expected) - mean.expected_log)
        return cls(shape - 1, shape / expected)

    @in_own_precision
    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Array:
        a = jnp.asarray(self.shape)
        return jax.random.gamma(key, a, (*shape, *a.shape), a.dtype) / self.rate

    def cone(self) -> Cone:
        return Cone(positive=(self.shape, self.rate))

    @in_own_precision
    def to_free(self) -> tuple[Array, Array]:
        return jnp.log(self.shape), jnp.log(self.rate)

    @in_own_precision
    def from_free(self, free: tuple[Array, Array]) -> Self:
        return type(self)(jnp.exp(free[0]) - 1, jnp.exp(free[1]))
