"""Factor analysis: the factors of a row are found at its site."""

from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from partita.errors import InputError
from partita.families import Family, Independent, NormalGamma
from partita.families.abstract_gaussian import LOG_2PI
from partita.foundation.checks import check_count, check_positive, check_seed
from partita.foundation.runtime import Array, on_host, precision
from partita.foundation.shapes import PerRow
from partita.models.base import AbstractModel, Hyper, check_numbers, shard_of_rows
from partita.shards import Shard

# How many rows a loading counts for where refinements of the prior start.
START_ROWS = 10.0


class FactorAnalysis(AbstractModel):
    """x = W z + c + noise, z ~ N(0, I): a few hidden factors for each row, and a noise of its own for each feature.

    For every feature its loadings, its level c and its noise have a normal-gamma posterior, `Independent` of the other
    features'. A row's factors have a Gaussian posterior that never leaves its site. The prior does not tell factors
    apart, so a run starts elsewhere: at loadings drawn at random, for which nobody's rows are needed, and which suit
    rows of mean 0 and variance 1; or at principal components, `fit(model, shards, start=model.begin(rows))`.

    Args:
        features, factors: how many.
        prior_scale: standard deviation of loadings, relative to the feature's noise.
        level_scale: that of c.
        noise_shape, noise_rate: of the gamma prior of a feature's noise precision.
        init_seed: of the loadings to start from.
    """

    features: int
    factors: int
    prior_scale: float = 3.0
    level_scale: float = 10.0
    noise_shape: float = 1.0
    noise_rate: float = 0.1
    init_seed: int = 0

    takes_target: ClassVar[bool] = False
    suggested: ClassVar = {"factors": (2, "how many there are at most")}
    closed_form: ClassVar[bool] = True
    conjugate: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_count("FactorAnalysis: ", features=self.features, factors=self.factors)
        scales = {name: getattr(self, name) for name in ("prior_scale", "level_scale", "noise_shape", "noise_rate")}
        check_positive("FactorAnalysis: ", **scales)
        check_seed("FactorAnalysis: ", init_seed=self.init_seed)

    def natural_prior(self, hyper: Hyper) -> Family:
        scales = np.array([self.prior_scale] * self.factors + [self.level_scale])
        one = NormalGamma.from_parameters(
            np.zeros(self.factors + 1), np.diag(scales**-2.0), self.noise_shape, self.noise_rate
        )
        return Independent.of([one] * self.features)

    @classmethod
    def for_data(cls, X: np.ndarray, y: Any, **settings: Any) -> Self:
        model = cls(features=X.shape[1], **settings)
        size = model.factors + 1
        check_numbers(model.features * (size * size + size + 2), "factors")
        return model

    @property
    def start(self) -> Family | None:
        """Half of each feature's variance from the factors, with loadings drawn at random, and half from noise."""
        if self.given_prior is not None:
            return None
        drawn = np.random.default_rng(self.init_seed).normal(size=(self.features, self.factors))
        loadings = np.column_stack([drawn * np.sqrt(0.5 / self.factors), np.zeros(self.features)])
        precision = START_ROWS * np.eye(self.factors + 1)
        shape = START_ROWS / 2
        return Independent.of([NormalGamma.from_parameters(m, precision, shape, 0.5 * shape) for m in loadings])

    def shard(self, site: int, raw: Any) -> Shard:
        """Check an array of rows, or `Weighted` ones."""
        return shard_of_rows(self, site, raw, self.features)

    def codes(self, mean: Any, X: Array) -> tuple[Array, Array]:
        """Means of the factors of every row, and their covariance, which all rows share."""
        K = self.factors
        weighed = -2 * jnp.sum(mean.each.minus_half_second_moment, axis=0)
        S = jnp.linalg.inv(jnp.eye(K, dtype=X.dtype) + weighed[:K, :K])
        return (X @ mean.each.weighted_location[:, :K] - weighed[:K, K]) @ S, S

    def expected_log_prob(self, mean: Any, data: Array, hyper: Hyper) -> PerRow:
        """A bound for each row, with the best posterior of its factors; gradients pass by how that was found."""
        m, S = jax.lax.stop_gradient(self.codes(mean, data))
        divergence = 0.5 * (jnp.trace(S) + jnp.sum(m**2, axis=1) - self.factors - jnp.linalg.slogdet(S)[1])
        return self._given(mean, data, m, S) - divergence

    def _given(self, mean: Any, X: Array, m: Array, S: Array) -> Array:
        """E[log p(x | W, c, noise, z)], z ~ N(m, S)."""
        each, K = mean.each, self.factors
        with_level = jnp.concatenate([m, jnp.ones_like(m[:, :1])], axis=1)
        matrix = jnp.sum(each.minus_half_second_moment, axis=0)
        quadratic = jnp.sum((with_level @ matrix) * with_level, axis=1) + jnp.sum(matrix[:K, :K] * S)
        linear = jnp.sum((X @ each.weighted_location) * with_level, axis=1)
        constant = 0.5 * (jnp.sum(each.expected_log) - self.features * LOG_2PI)
        return constant + X**2 @ each.minus_half_precision + linear + quadratic

    def log_prob(self, params: Any, data: Array, hyper: Hyper) -> PerRow:
        """log p(y_n | θ), with the factors integrated out."""
        (W, level), noise = (params[0][:, : self.factors], params[0][:, self.factors]), 1 / params[1]
        return jnp.asarray(jax.scipy.stats.multivariate_normal.logpdf(data, level, W @ W.T + jnp.diag(noise)))

    def begin(self, X: Any) -> Family:
        """A place to start from: the posterior if factors were the principal components of some rows."""
        rows = np.asarray(self.shard(0, X).data)
        if len(rows) <= self.factors:
            raise InputError(f"begin: needs more than {self.factors} rows, got {len(rows)}")
        left, _, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
        with precision(self.dtype):
            return on_host(_from_codes(self, rows, np.sqrt(len(rows)) * left[:, : self.factors]))

    def covariance(self, posterior: Any) -> np.ndarray:
        """The covariance of rows at the posterior's means: W Wᵀ + noise."""
        each = posterior.each
        location = np.linalg.solve(each.precision, each.precision_times_location[..., None])[..., 0]
        rate = 0.5 * (each.scatter - np.sum(location * each.precision_times_location, axis=1))
        W = location[:, : self.factors]
        return W @ W.T + np.diag(rate / each.shape)


@eqx.filter_jit
def _from_codes(model: FactorAnalysis, X: Array, codes: Array) -> Family:
    """prior × p(X | codes)."""
    prior = model.natural_prior({})
    known = jnp.zeros((model.factors, model.factors), X.dtype)
    return prior * prior.from_gradient(
        jax.grad(lambda mean: jnp.sum(model._given(mean, X, codes, known)))(prior.mean())
    )
