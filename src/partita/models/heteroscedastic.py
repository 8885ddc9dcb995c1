"""Linear regression whose noise depends on the inputs too."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from partita.errors import InputError
from partita.families import Family, Gaussian
from partita.families.abstract_gaussian import LOG_2PI
from partita.foundation.algebra import numbers_of
from partita.foundation.checks import check_positive
from partita.foundation.runtime import Array
from partita.foundation.shapes import Inputs, PerRow
from partita.models.base import Hyper, Rows
from partita.models.linear import LinearPredictor


class HeteroscedasticRegression(LinearPredictor):
    """y = xᵀβ + noise of variance exp(xᵀγ): means and log variances are both linear.

    The posterior is a full Gaussian over θ = (β, γ), each with its intercept last. E[log p(y | θ)] is known in closed
    form, because exp(-xᵀγ) tilts a Gaussian into another. Predictions are of the mean; their deviations include noise.

    Args:
        spread_scale: standard deviation of the prior of γ; that of β is `prior_scale`.
    """

    spread_scale: float = 1.0

    closed_form: ClassVar[bool] = True
    projected: ClassVar[bool] = False
    steep: ClassVar[bool] = True
    blocks: ClassVar[tuple[str, ...]] = ("", "log_variance_")

    def __check_init__(self) -> None:
        check_positive(spread_scale=self.spread_scale)
        if self.posterior != "full":
            raise InputError('posterior: means and variances depend on each other: only "full" is there')

    @property
    def hyper(self) -> Hyper:
        return {"prior_scale": float(self.prior_scale), "spread_scale": float(self.spread_scale)}

    def natural_prior(self, hyper: Hyper) -> Family:
        both = [self.prior_precision({"prior_scale": hyper[name]}) for name in ("prior_scale", "spread_scale")]
        xp = numbers_of(hyper)
        precision = xp.concatenate(both)
        return Gaussian(xp.zeros_like(precision), xp.diag(precision))

    def predictors(self, params: Array, X: Array) -> Array:
        """xᵀβ."""
        return X @ params[: self.columns]

    def draws(self, q: Any, X: Array) -> Callable[[Array], Array]:
        """E[xᵀβ], whatever is drawn: nothing else of it is predicted."""
        return lambda key: self.predictors(q.location, X)

    def predictive_variance(self, q: Any, X: Inputs, hyper: Hyper) -> PerRow:
        """The variance of new observations: that of xᵀβ, and E[exp(xᵀγ)]."""
        nothing = jnp.zeros_like(X)
        _, v = q.moments_along(jnp.concatenate([X, nothing], axis=1))
        log_variance, spread = q.moments_along(jnp.concatenate([nothing, X], axis=1))
        return v + jnp.exp(log_variance + 0.5 * spread)

    def replicated(self, params: Array, data: Rows, hyper: Hyper, key: Array) -> dict[str, Array]:
        deviation = jnp.exp(0.5 * (data.X @ params[self.columns :]))
        return {"y": self.predictors(params, data.X) + deviation * jax.random.normal(key, data.y.shape, data.y.dtype)}

    def log_prob(self, params: Array, data: Rows, hyper: Hyper) -> PerRow:
        log_variance = data.X @ params[self.columns :]
        gap = data.y - self.predictors(params, data.X)
        return -0.5 * (LOG_2PI + log_variance + gap**2 * jnp.exp(-log_variance))

    def expected_log_prob(self, mean: Any, data: Rows, hyper: Hyper) -> PerRow:
        nothing = jnp.zeros_like(data.X)
        m, v = mean.moments_along(jnp.concatenate([data.X, nothing], axis=1))
        log_variance, spread = mean.moments_along(jnp.concatenate([nothing, data.X], axis=1))
        _, both = mean.moments_along(jnp.concatenate([data.X, data.X], axis=1))
        covariance = 0.5 * (both - v - spread)
        square = (data.y - m + covariance) ** 2 + v
        return -0.5 * (LOG_2PI + log_variance + square * jnp.exp(0.5 * spread - log_variance))

    def response(self, f: Array) -> Array:
        return f
