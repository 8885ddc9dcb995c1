"""A linear model's weights and the precision of its noise, with priors that know nothing of each other.

The log likelihood of a linear regression is linear in log τ, τ, τw and τwwᵀ, a Gaussian prior of the weights in w and
w². The prior of the noise, σ = τ^-½, is what densities are relative to: half a Student t, flat near zero and
with a heavy tail, so that it says little at any ratio of signal to noise. Such densities are closed under all that
a regression does to them, so its posterior is exact. Given τ the weights are Gaussian; τ itself is integrated over by
a trapezoidal rule in u = log τ, whose error falls exponentially because the density does at both ends.
"""

from typing import Any, NamedTuple, NoReturn, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import t as student

from partita.errors import InputError
from partita.families.abstract_gaussian import LOG_2PI
from partita.families.base import Family, Substitution, Tree, inner
from partita.families.cone import Cone
from partita.families.marginals import Marginals
from partita.families.normal_conjugate import NormalGammaParams, add_border, from_lower_free, lower_free
from partita.foundation.runtime import Array, as_array, in_own_precision, outer
from partita.foundation.shapes import Scalar

# Points of the trapezoidal rule; how often it closes in on where the density is; how far below its largest value, in
# nats, the density is left out.
POINTS, ZOOMS, DEPTH = 129, 12, 45.0
# Points between which quantiles are interpolated.
FINE = 20_001
# Degrees of freedom of the noise's prior: the fewest with a finite variance.
DEGREES = 3
# Noise far below its prior scale, as a share of it, is as good as none: without a floor E[τ] would be infinite before
# the first row. Rows whose residuals are rounding errors get a floor of their own, lower still.
FLOOR, LOWEST = 1e-5, 1e-7
# Rounding may leave matrices that are as good as singular (fewer rows than weights) with eigenvalues this far below
# zero, in rows; they count as zero.
SLACK = 1e-3


class WeightsAndNoiseMean(Tree):
    """E[log τ], -½E[τ], E[w], -½E[w²], E[τw] and -½E[τwwᵀ]."""

    expected_log: Array
    minus_half_precision: Array
    location: Array
    minus_half_square: Array
    weighted_location: Array
    minus_half_second_moment: Array


class _Whitened(NamedTuple):
    """Weights as z = Uᵀ D^½ w, independent given τ: precision 1 + τλ, location (own + τλ fitted) / (1 + τλ)."""

    basis: Array  # D^-½ U
    eigenvalues: Array  # λ
    own: Array
    fitted: Array
    residual: Array

    def precision(self, tau: Array) -> Array:
        return 1 + tau[:, None] * self.eigenvalues

    def location(self, tau: Array) -> Array:
        return (self.own + tau[:, None] * self.eigenvalues * self.fitted) / self.precision(tau)


class WeightsAndNoise(Family):
    """exp(a log τ - ½bτ + wᵀg - ½wᵀDw + τwᵀh - ½τwᵀPw) with D diagonal, relative to σ ~ half-t(3, noise_scale).

    >>> q = WeightsAndNoise.before_data(np.ones(2), noise_scale=1.0)
    >>> q.location, np.diag(q.covariance).round(6)
    (array([0., 0.]), array([1., 1.]))
    >>> q.noise_quantile(0.5).round(3)  # of the absolute value of a Student t
    np.float64(0.765)
    """

    log_coefficient: Array
    scatter: Array
    own_location: Array
    own_precision: Array
    precision_times_location: Array
    precision: Array
    noise_scale: float

    fixed = ("noise_scale",)
    Mean = WeightsAndNoiseMean

    @classmethod
    def before_data(cls, weight_precision: Array, noise_scale: float) -> Self:
        """w ~ N(0, 1 / precision) and σ ~ half-t, cut smoothly at FLOOR of its scale."""
        D = as_array(weight_precision)
        zeros = 0 * D
        none = zeros.sum()
        floor = none + (FLOOR * noise_scale) ** 2
        return cls(none, floor, zeros, D, zeros, zeros[:, None] * zeros[None, :], float(noise_scale))

    def _whiten(self) -> _Whitened:
        half = 1 / jnp.sqrt(self.own_precision)
        eigenvalues, U = jnp.linalg.eigh(half[:, None] * self.precision * half[None, :])  # D^-½ P D^-½ = U λ Uᵀ
        basis = half[:, None] * U
        eps = 8 * jnp.finfo(eigenvalues.dtype).eps
        seen = eigenvalues > eps * len(half) * jnp.max(jnp.abs(eigenvalues))
        eigenvalues = jnp.where(seen, eigenvalues, 0)
        fitted = jnp.where(seen, basis.T @ self.precision_times_location / jnp.where(seen, eigenvalues, 1), 0)
        # What weights cannot explain: b - hᵀP⁻¹h, no less than rounding, and no less than what is as good as none.
        residual = self.scatter - jnp.sum(eigenvalues * fitted**2)
        least = jnp.maximum(eps * jnp.abs(self.scatter), (LOWEST * self.noise_scale) ** 2)
        return _Whitened(basis, eigenvalues, basis.T @ self.own_location, fitted, jnp.maximum(residual, least))

    def _log_density(self, u: Array, white: _Whitened) -> Array:
        """log ∫ exp(⟨η, T⟩) dw at log τ = u; from residuals, so that nothing large is subtracted."""
        tau = jnp.exp(u)
        precision, own, fitted = white.precision(tau), white.own, white.fitted
        gain = tau[:, None] * white.eigenvalues
        square = (own**2 + gain * fitted * (2 * own - fitted)) / precision
        gaussian = 0.5 * jnp.sum(square - jnp.log(precision), axis=1)
        return self.log_coefficient * u - 0.5 * white.residual * tau + gaussian + _log_prior(u, self.noise_scale)

    def _points(self, white: _Whitened) -> tuple[Array, Array, Array]:
        """Where the rule looks, log τ; the share of each place; the logarithm of the integral."""
        d = len(self.own_precision)
        room = 2 * (jnp.abs(self.log_coefficient) + d + 60)
        # Beyond these, the tail of the prior or the residuals have cut the density off.
        slope = jnp.minimum(self.log_coefficient + 0.5 * DEGREES, 0.5 * DEGREES)
        low = -2 * jnp.log(self.noise_scale) - (DEPTH + 10) / slope
        high = jnp.maximum(jnp.log(room) - jnp.log(white.residual), low + 1)

        def values(low: Array, high: Array) -> tuple[Array, Array]:
            u = jnp.linspace(low, high, POINTS)
            return u, self._log_density(u, white)

        def closer(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            u, logs = values(*ends)
            kept = logs > jnp.max(logs) - DEPTH
            step = u[1] - u[0]
            return jnp.min(jnp.where(kept, u, jnp.inf)) - step, jnp.max(jnp.where(kept, u, -jnp.inf)) + step

        u, logs = values(*jax.lax.fori_loop(0, ZOOMS, closer, (low, high)))
        largest = jnp.max(logs)
        weights = jnp.exp(logs - largest)
        total = jnp.sum(weights)
        return u, weights / total, largest + jnp.log(total * (u[1] - u[0]))

    @in_own_precision
    def log_partition(self) -> Scalar:
        return _log_partition(self)

    @in_own_precision
    def mean(self) -> WeightsAndNoiseMean:
        white = self._whiten()
        u, share, _ = self._points(white)
        tau = jnp.exp(u)
        w = white.location(tau) @ white.basis.T
        variance = 1 / white.precision(tau)
        B = white.basis
        second = (B * (share * tau @ variance)) @ B.T + (w.T * (share * tau)) @ w  # E[τ(V + wwᵀ)]
        return WeightsAndNoiseMean(
            share @ u,
            -0.5 * (share @ tau),
            share @ w,
            -0.5 * (B**2 @ (share @ variance) + share @ w**2),
            (share * tau) @ w,
            -0.5 * second,
        )

    @in_own_precision
    def statistics(self, params: Any) -> WeightsAndNoiseMean:
        w, tau = params
        return WeightsAndNoiseMean(jnp.log(tau), -0.5 * tau, w, -0.5 * w**2, tau * w, -0.5 * tau * outer(w, w))

    @classmethod
    def from_mean(cls, mean: WeightsAndNoiseMean) -> NoReturn:
        """Has no use: a regression's factors are exact without matching moments."""
        raise InputError(
            "solver: moments of weights and an unknown noise are not matched, because their factors are exact as they "
            "are: use FixedPoint, or give the noise"
        )

    @property
    @in_own_precision
    def location(self) -> Array:
        """Means of the weights."""
        return self.mean().location

    @property
    @in_own_precision
    def covariance(self) -> Array:
        """The covariance of the weights: that given τ, averaged, and that of the means given τ."""
        white = self._whiten()
        u, share, _ = self._points(white)
        w = white.location(jnp.exp(u)) @ white.basis.T
        apart = w - share @ w
        B = white.basis
        return (B * (share @ (1 / white.precision(jnp.exp(u))))) @ B.T + (apart.T * share) @ apart

    @property
    @in_own_precision
    def noise_variance(self) -> Array:
        """E[σ²]."""
        u, share, _ = self._points(self._whiten())
        return share @ jnp.exp(-u)

    @in_own_precision
    def log_carrier(self, params: Any) -> Array:
        """log p(τ) = log p(u) - u."""
        u = jnp.log(params[1])
        return _log_prior(u, self.noise_scale) - u

    @in_own_precision
    def expected_log_carrier(self) -> Array:
        u, share, _ = self._points(self._whiten())
        return share @ (_log_prior(u, self.noise_scale) - u)

    def marginals(self, T: np.ndarray) -> Marginals:
        """Marginals of T w, row by row of T: normal given τ."""
        share, means, variances = self._moments_of_rows(np.asarray(T, self.dtype))
        return Marginals(share, means, np.sqrt(variances))

    @in_own_precision
    def _moments_of_rows(self, T: Array) -> tuple[Array, Array, Array]:
        white = self._whiten()
        u, share, _ = self._points(white)
        TB = T @ white.basis
        tau = jnp.exp(u)
        return share, white.location(tau) @ TB.T, 1 / white.precision(tau) @ (TB**2).T

    def noise_quantile(self, probability: Any) -> np.ndarray:
        """Quantiles of σ."""
        return np.exp(self.log_noise_quantile(probability))

    def log_noise_quantile(self, probability: Any) -> np.ndarray:
        """Quantiles of log σ, from the integral of a spline through the density of log τ."""
        from scipy.interpolate import CubicSpline

        u, share = self._noise()
        fine = np.linspace(u[0], u[-1], FINE)
        below = CubicSpline(u, share).antiderivative()(fine)
        return -0.5 * np.interp(1 - np.asarray(probability), below / below[-1], fine)

    @in_own_precision
    def _noise(self) -> tuple[Array, Array]:
        return self._points(self._whiten())[:2]

    @in_own_precision
    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> NormalGammaParams:
        """log τ by the rule's cumulative shares, evenly within a step; the weights are normal, given τ."""
        first, second, third = jax.random.split(key, 3)
        white = self._whiten()
        u, share, _ = self._points(white)
        number = int(np.prod(shape))
        place = jax.random.choice(first, len(u), (number,), p=share)
        jitter = jax.random.uniform(second, (number,), u.dtype, -0.5, 0.5)
        tau = jnp.exp(u[place] + (u[1] - u[0]) * jitter)
        noise = jax.random.normal(third, (number, len(self.own_precision)), u.dtype)
        w = (white.location(tau) + noise / jnp.sqrt(white.precision(tau))) @ white.basis.T
        return NormalGammaParams(w.reshape(*shape, -1), tau.reshape(shape))

    def substituted(self, new: Substitution) -> tuple[Self, float]:
        """The same factor in other coordinates, and the logarithm of what it is larger by than the one returned.

        A linear regression's likelihood keeps its form. What is independent of the noise, as the weights' prior is, has
        to stay diagonal.
        """
        T, shift, P, D = new.matrix, new.shift, self.precision, np.diag(self.own_precision)
        own = T.T @ D @ T
        if np.any(own != np.diag(np.diag(own))):
            raise InputError("a factor with a part that does not depend on the noise has no sums of its coordinates")
        h, g = self.precision_times_location, self.own_location
        moved, own_moved = h - P @ shift, g - D @ shift
        matrix = T.T @ P @ T / new.noise**2
        changed = type(self)(
            self.log_coefficient,
            (self.scatter - shift @ (h + moved)) / new.noise**2,
            T.T @ own_moved,
            np.diag(own),
            T.T @ moved / new.noise**2,
            0.5 * (matrix + matrix.T),
            self.noise_scale,
        )
        constant = shift @ (g + own_moved) / 2 - 2 * self.log_coefficient * np.log(new.noise)
        return changed, float(constant)

    def cone(self) -> Cone:
        matrix = add_border(self.precision, self.precision_times_location, self.scatter)
        return Cone(
            (self.own_precision, self.log_coefficient + 0.5 * DEGREES),
            (matrix + SLACK * np.eye(matrix.shape[-1], dtype=matrix.dtype),),
        )

    @in_own_precision
    def to_free(self) -> Any:
        return (
            jnp.log(self.log_coefficient + 0.5 * DEGREES),
            self.own_location,
            jnp.log(self.own_precision),
            lower_free(self.cone().definite[0]),
        )

    @in_own_precision
    def from_free(self, free: Any) -> Self:
        log_excess, location, log_precision, lower = free
        matrix = from_lower_free(*lower)
        matrix = matrix - SLACK * jnp.eye(len(matrix), dtype=matrix.dtype)
        return type(self)(
            jnp.exp(log_excess) - 0.5 * DEGREES,
            matrix[-1, -1],
            location,
            jnp.exp(log_precision),
            matrix[:-1, -1],
            matrix[:-1, :-1],
            self.noise_scale,
        )


def _log_prior(u: Array, scale: float) -> Array:
    """log p(u) for u = -2 log σ, where σ is the absolute value of a Student t: 2 p_t(σ) dσ/du, and dσ = ½ σ du."""
    return student.logpdf(jnp.exp(-0.5 * u), DEGREES, 0, scale) - 0.5 * u


@jax.custom_jvp
def _log_partition(q: WeightsAndNoise) -> Array:
    white = q._whiten()
    d = len(q.own_precision)
    return q._points(white)[2] + 0.5 * (d * LOG_2PI - jnp.sum(jnp.log(q.own_precision)))


@_log_partition.defjvp
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    """dA = ⟨dη, μ⟩: what is differentiated need not be what computes A, whose eigenvectors have no derivative."""
    return _log_partition(primals[0]), inner(tangents[0], primals[0].mean())
