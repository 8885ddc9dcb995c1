"""Joint densities over a Gaussian's mean and its precision: normal-gamma and normal-Wishart.

In both, the natural parameters that must be definite form one bordered matrix, [[Λ, Λm], [mᵀΛ, s]].
"""

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jax.scipy.special import digamma, gammaln, multigammaln, polygamma

from partita.families.abstract_gaussian import LOG_2PI
from partita.families.base import Family, Tree
from partita.families.cone import Cone
from partita.families.gamma import shape_from_gap
from partita.foundation.runtime import Array, as_array, in_own_precision, is_traced, outer
from partita.foundation.shapes import Scalar


def add_border(matrix: Array, border: Array, corner: Array) -> Array:
    """[[matrix, border], [borderᵀ, corner]], for one or a stack of them."""
    xp = jnp if is_traced((matrix, border, corner)) else np
    top = xp.concatenate([matrix, border[..., None]], axis=-1)
    bottom = xp.concatenate([border, xp.asarray(corner)[..., None]], axis=-1)
    return xp.concatenate([top, bottom[..., None, :]], axis=-2)


def _log_det(cholesky: Array) -> Array:
    return 2 * jnp.sum(jnp.log(jnp.diag(cholesky)))


def lower_free(matrix: Array) -> tuple[Array, Array]:
    L = jnp.linalg.cholesky(matrix)
    return jnp.log(jnp.diag(L)), jnp.tril(L, -1)


def from_lower_free(log_diagonal: Array, lower: Array) -> Array:
    L = jnp.tril(lower, -1) + jnp.diag(jnp.exp(log_diagonal))
    return L @ L.T


class NormalGammaMean(Tree):
    """E[log τ], -½E[τ], E[τw] and -½E[τwwᵀ]."""

    expected_log: Array
    minus_half_precision: Array
    weighted_location: Array
    minus_half_second_moment: Array


class NormalGammaParams(NamedTuple):
    location: Array
    precision: Array


class NormalGamma(Family):
    """w | τ ~ N(m, (τΛ)⁻¹), τ ~ Gamma(a, b): a vector and one unknown noise precision.

    log density: (a - 1 + d/2) log τ - ½τ(2b + mᵀΛm) + τwᵀΛm - ½τwᵀΛw.
    """

    log_coefficient: Array
    scatter: Array
    precision_times_location: Array
    precision: Array

    Mean = NormalGammaMean

    @classmethod
    def from_parameters(cls, location: Array, precision: Array, shape: Array | float, rate: Array | float) -> Self:
        """From m, Λ, a and b."""
        m, P = as_array(location), as_array(precision)
        h = P @ m
        return cls(as_array(shape) - 1 + m.size / 2, 2 * as_array(rate) + m @ h, h, P)

    @property
    def shape(self) -> Array:
        return self.log_coefficient + 1 - self.precision_times_location.shape[-1] / 2

    @property
    @in_own_precision
    def rate(self) -> Array:
        half = solve_triangular(self._cholesky(), self.precision_times_location, lower=True)
        return 0.5 * (self.scatter - half @ half)

    @property
    @in_own_precision
    def location(self) -> Array:
        return cho_solve((self._cholesky(), True), self.precision_times_location)

    @property
    @in_own_precision
    def covariance(self) -> Array:
        """The marginal covariance of w, a multivariate t: finite where the shape exceeds one."""
        L = self._cholesky()
        scale = self.rate / jnp.where(self.shape > 1, self.shape - 1, jnp.nan)
        return scale * cho_solve((L, True), jnp.eye(len(L), dtype=L.dtype))

    def _cholesky(self) -> Array:
        return jnp.linalg.cholesky(self.precision)

    @in_own_precision
    def log_partition(self) -> Scalar:
        a = self.shape
        d = self.precision_times_location.size
        return 0.5 * (d * LOG_2PI - _log_det(self._cholesky())) + gammaln(a) - a * jnp.log(self.rate)

    @in_own_precision
    def mean(self) -> NormalGammaMean:
        a, b, m = self.shape, self.rate, self.location
        L = self._cholesky()
        V = cho_solve((L, True), jnp.eye(len(L), dtype=L.dtype))
        tau = a / b
        return NormalGammaMean(digamma(a) - jnp.log(b), -0.5 * tau, tau * m, -0.5 * (V + tau * outer(m, m)))

    @in_own_precision
    def statistics(self, params: Any) -> NormalGammaMean:
        w, tau = params
        return NormalGammaMean(jnp.log(tau), -0.5 * tau, tau * w, -0.5 * tau * outer(w, w))

    @classmethod
    @in_own_precision
    def from_mean(cls, mean: NormalGammaMean) -> Self:
        tau = -2 * mean.minus_half_precision
        m = mean.weighted_location / tau
        V = -2 * mean.minus_half_second_moment - tau * outer(m, m)
        L = jnp.linalg.cholesky(V)
        P = cho_solve((L, True), jnp.eye(len(L), dtype=L.dtype))
        a = shape_from_gap(jnp.log(tau) - mean.expected_log)
        return cls.from_parameters(m, P, a, a / tau)

    @in_own_precision
    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> NormalGammaParams:
        first, second = jax.random.split(key)
        m = self.location
        tau = jax.random.gamma(first, jnp.asarray(self.shape), shape, m.dtype) / self.rate
        noise = jax.random.normal(second, (*shape, m.size), m.dtype)
        spread = solve_triangular(self._cholesky(), noise.reshape(-1, m.size).T, lower=True, trans=1).T
        return NormalGammaParams(m + spread.reshape(noise.shape) / jnp.sqrt(tau)[..., None], tau)

    def cone(self) -> Cone:
        matrix = add_border(self.precision, self.precision_times_location, self.scatter)
        return Cone(positive=(self.shape,), definite=(matrix,))

    @in_own_precision
    def to_free(self) -> Any:
        return jnp.log(self.shape), jnp.log(self.rate), self.location, lower_free(self.precision)

    @in_own_precision
    def natural_locations(self, gradient: Any) -> Any:
        by_log_shape, by_log_rate, by_location, by_precision = gradient
        natural = cho_solve((self._cholesky(), True), by_location) * self.rate / self.shape  # (E[τ] Λ)⁻¹
        return by_log_shape, by_log_rate, natural, by_precision

    @in_own_precision
    def from_free(self, free: Any) -> Self:
        log_shape, log_rate, location, lower = free
        return self.from_parameters(location, from_lower_free(*lower), jnp.exp(log_shape), jnp.exp(log_rate))


class NormalWishartMean(Tree):
    """E[log |Λ|], -½E[Λ], E[Λμ] and -½E[μᵀΛμ]."""

    expected_log_det: Array
    minus_half_precision: Array
    weighted_location: Array
    minus_half_energy: Array


class NormalWishartParams(NamedTuple):
    location: Array
    precision: Array


def _degrees_from_gap(gap: Array, d: int) -> Array:
    """The ν > d - 1 with Σᵢ ψ((ν + 1 - i)/2) + d log 2 - d log ν = -gap, by Newton's method on log(ν - d + 1)."""
    shifts = jnp.arange(d)

    def residual(x: Any) -> Any:
        nu = jnp.exp(x) + d - 1
        value = jnp.sum(digamma((nu - shifts) / 2)) + d * jnp.log(2 / nu) + gap
        slope = 0.5 * jnp.sum(polygamma(1, (nu - shifts) / 2)) - d / nu
        return value / (slope * jnp.exp(x))

    def step(_: Any, x: Any) -> Any:
        return x - jnp.clip(residual(x), -1.0, 1.0)

    start = jnp.log(jnp.maximum(d * (d + 1) / (2 * gap), 0.1))
    return jnp.exp(jax.lax.fori_loop(0, 60, step, start)) + d - 1


class NormalWishart(Family):
    """μ | Λ ~ N(m, (βΛ)⁻¹), Λ ~ Wishart(V, ν): an unknown mean and an unknown precision matrix.

    log density: ½(ν - d) log|Λ| - ½tr(Λ(V⁻¹ + βmmᵀ)) + βmᵀΛμ - ½βμᵀΛμ.
    """

    log_det_coefficient: Array
    scatter: Array
    strength_times_location: Array
    strength: Array

    Mean = NormalWishartMean

    @classmethod
    def from_parameters(
        cls, location: Array, strength: Array | float, inverse_scale: Array, degrees: Array | float
    ) -> Self:
        """From m, β, V⁻¹ and ν."""
        m, beta = as_array(location), as_array(strength)
        scatter = as_array(inverse_scale) + beta * m[:, None] * m[None, :]
        return cls((as_array(degrees) - m.size) / 2, scatter, beta * m, beta)

    @property
    def degrees(self) -> Array:
        return 2 * self.log_det_coefficient + self.strength_times_location.size

    @property
    def location(self) -> Array:
        return self.strength_times_location / self.strength

    @property
    def inverse_scale(self) -> Array:
        m = self.location
        return self.scatter - self.strength * m[:, None] * m[None, :]

    @in_own_precision
    def log_partition(self) -> Scalar:
        d, nu = self.strength_times_location.size, self.degrees
        log_det = _log_det(jnp.linalg.cholesky(self.inverse_scale))
        normal = 0.5 * d * (LOG_2PI - jnp.log(self.strength))
        return normal + 0.5 * nu * (d * jnp.log(2.0) - log_det) + multigammaln(0.5 * nu, d)

    @in_own_precision
    def mean(self) -> NormalWishartMean:
        d, m, nu = self.strength_times_location.size, self.location, self.degrees
        L = jnp.linalg.cholesky(self.inverse_scale)
        P = nu * cho_solve((L, True), jnp.eye(d, dtype=L.dtype))
        log_det = jnp.sum(digamma((nu - jnp.arange(d)) / 2)) + d * jnp.log(2.0) - _log_det(L)
        return NormalWishartMean(log_det, -0.5 * P, P @ m, -0.5 * (d / self.strength + m @ P @ m))

    @in_own_precision
    def statistics(self, params: Any) -> NormalWishartMean:
        mu, P = params
        log_det = _log_det(jnp.linalg.cholesky(P))
        return NormalWishartMean(log_det, -0.5 * P, P @ mu, -0.5 * mu @ P @ mu)

    @classmethod
    @in_own_precision
    def from_mean(cls, mean: NormalWishartMean) -> Self:
        P = -2 * mean.minus_half_precision
        L = jnp.linalg.cholesky(P)
        m = cho_solve((L, True), mean.weighted_location)
        d = m.size
        beta = d / (-2 * mean.minus_half_energy - m @ P @ m)
        nu = _degrees_from_gap(_log_det(L) - mean.expected_log_det, d)
        inverse_scale = nu * cho_solve((L, True), jnp.eye(d, dtype=L.dtype))
        return cls.from_parameters(m, beta, inverse_scale, nu)

    @in_own_precision
    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> NormalWishartParams:
        """Bartlett's decomposition: Λ = C A Aᵀ Cᵀ with V = C Cᵀ."""
        d, m = self.strength_times_location.size, self.location
        dtype = jnp.asarray(m).dtype
        first, second, third = jax.random.split(key, 3)
        L = jnp.linalg.cholesky(self.inverse_scale)
        C = solve_triangular(L, jnp.eye(d, dtype=dtype), lower=True, trans=1)  # V = L⁻ᵀ L⁻¹
        squares = 2 * jax.random.gamma(first, (self.degrees - jnp.arange(d)) / 2, (*shape, d), dtype)
        A = jnp.tril(jax.random.normal(second, (*shape, d, d), dtype), -1)
        CA = C @ (A + jnp.sqrt(squares)[..., None] * jnp.eye(d, dtype=dtype))
        noise = jax.random.normal(third, (*shape, d), dtype)
        spread = jnp.linalg.solve(jnp.swapaxes(CA, -1, -2), noise[..., None])[..., 0]
        return NormalWishartParams(m + spread / jnp.sqrt(self.strength), CA @ jnp.swapaxes(CA, -1, -2))

    def cone(self) -> Cone:
        matrix = add_border(self.scatter, self.strength_times_location, self.strength)
        return Cone(positive=(2 * self.log_det_coefficient + 1,), definite=(matrix,))

    @in_own_precision
    def to_free(self) -> Any:
        log_excess = jnp.log(2 * self.log_det_coefficient + 1)
        return self.location, jnp.log(self.strength), lower_free(self.inverse_scale), log_excess

    @in_own_precision
    def natural_locations(self, gradient: Any) -> Any:
        by_location, *others = gradient
        return self.inverse_scale @ by_location / (self.degrees * self.strength), *others  # (β E[Λ])⁻¹

    @in_own_precision
    def from_free(self, free: Any) -> Self:
        location, log_strength, lower, log_excess = free
        degrees = jnp.exp(log_excess) + location.size - 1
        return self.from_parameters(location, jnp.exp(log_strength), from_lower_free(*lower), degrees)
