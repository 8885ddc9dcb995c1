"""Poisson factorisation of counts: the weights of a row are found at its site."""

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from partita.errors import ShardError
from partita.families import Family, Gamma
from partita.families.gamma import positive_digamma
from partita.foundation.checks import check_count, check_positive, check_seed
from partita.foundation.runtime import Array
from partita.foundation.shapes import PerRow
from partita.models.base import AbstractModel, Hyper, check_numbers, shard_of_rows
from partita.shards import Shard

# Below this, a rate counts as this.
LEAST = 1e-30


class PoissonFactorisation(AbstractModel):
    """x_nw ~ Poisson(Σ_k θ_nk β_kw), all weights gamma: counts as sums of a few non-negative patterns (Cemgil, 2009).

    The patterns β are what is learnt, a posterior `Gamma` of shape (patterns, features). A row's weights θ have a gamma
    posterior that never leaves its site; it is found by coordinate ascent in every evaluation. All patterns have the
    same prior, so a run starts at patterns that differ at random.

    Args:
        features, patterns: how many.
        shape, rate: of the prior of patterns.
        row_shape, row_rate: of the prior of a row's weights.
        iterations, tolerance: of a row's coordinate ascent, which ends where weights change by less, relatively.
        init_seed: of the patterns to start from.
    """

    features: int
    patterns: int
    shape: float = 0.5
    rate: float = 0.5
    row_shape: float = 0.5
    row_rate: float = 0.1
    iterations: int = 200
    tolerance: float = 1e-6
    init_seed: int = 0

    takes_target: ClassVar[bool] = False
    suggested: ClassVar = {"patterns": (5, "how many there are")}
    closed_form: ClassVar[bool] = True
    conjugate: ClassVar[bool] = True

    def __check_init__(self) -> None:
        words = "PoissonFactorisation: "
        check_count(words, features=self.features, patterns=self.patterns, iterations=self.iterations)
        check_seed(words, init_seed=self.init_seed)
        names = ("shape", "rate", "row_shape", "row_rate", "tolerance")
        check_positive(words, **{name: getattr(self, name) for name in names})

    def natural_prior(self, hyper: Hyper) -> Family:
        size = (self.patterns, self.features)
        return Gamma.from_shape_rate(np.full(size, self.shape), np.full(size, self.rate))

    @classmethod
    def for_data(cls, X: np.ndarray, y: Any, **settings: Any) -> Self:
        model = cls(features=X.shape[1], **settings)
        check_numbers(2 * model.patterns * model.features, "patterns")
        return model

    @property
    def start(self) -> Family | None:
        return self.begin(self.init_seed) if self.given_prior is None else None

    def begin(self, seed: int = 0) -> Family:
        """A place to start from: patterns that differ at random."""
        drawn = np.random.default_rng(seed).gamma(10.0, 0.1, (self.patterns, self.features))
        return Gamma.from_shape_rate(10.0 * drawn, np.full_like(drawn, 10.0))

    def shard(self, site: int, raw: Any) -> Shard:
        """Check an array of counts, or `Weighted` ones."""
        shard = shard_of_rows(self, site, raw, self.features, "counts")
        if np.any(shard.data < 0) or np.any(np.floor(shard.data) != shard.data):
            raise ShardError(site, "data", "counts must be whole numbers of at least 0")
        return shard

    def weights(self, mean: Any, X: Array) -> tuple[Array, Array]:
        """Shapes and rates of the posteriors of weights, for every row."""
        likely = jnp.exp(mean.expected_log)
        rate = self.row_rate - jnp.sum(mean.minus_expected, axis=1)

        def step(carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
            number, shape, _ = carry
            size = jnp.exp(positive_digamma(shape) - jnp.log(rate))
            new = self.row_shape + size * ((X / jnp.maximum(size @ likely, LEAST)) @ likely.T)
            return number + 1, new, jnp.max(jnp.abs(new - shape) / (shape + new))

        def again(carry: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            return (carry[0] < self.iterations) & (carry[2] > self.tolerance)

        even = self.row_shape + jnp.sum(X, axis=1, keepdims=True) / self.patterns
        start = jnp.broadcast_to(even, (len(X), self.patterns))
        first = (jnp.zeros((), jnp.int32), start, jnp.asarray(jnp.inf, X.dtype))
        return jax.lax.while_loop(again, step, first)[1], rate

    def expected_log_prob(self, mean: Any, data: Array, hyper: Hyper) -> PerRow:
        """A bound for each row, with the best weights; gradients pass by how these were found."""
        shape, rate = jax.lax.stop_gradient(self.weights(mean, data))
        expected, expected_log = shape / rate, positive_digamma(shape) - jnp.log(rate)
        rates = jnp.maximum(jnp.exp(expected_log) @ jnp.exp(mean.expected_log), LEAST)
        seen = jnp.sum(data * jnp.log(rates) - gammaln(data + 1), axis=1) + expected @ jnp.sum(
            mean.minus_expected, axis=1
        )
        a, b = self.row_shape, self.row_rate
        gained = (a - shape) * expected_log + (rate - b) * expected + gammaln(shape) - shape * jnp.log(rate)
        constant = a * np.log(b) - gammaln(jnp.asarray(a, data.dtype))
        return seen + jnp.sum(gained + constant, axis=1)

    def log_prob(self, params: Any, data: Array, hyper: Hyper) -> PerRow:
        """The same bound for patterns that are known."""
        return self.expected_log_prob(Gamma.Mean(jnp.log(params), -params), data, hyper)
