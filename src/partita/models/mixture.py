"""Mixtures of Gaussians: which component a row comes from is summed out at its site."""

import math
from typing import Any, ClassVar, Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from partita.errors import InputError
from partita.families import Dirichlet, Family, Independent, NormalGamma, NormalWishart, Product
from partita.families.abstract_gaussian import LOG_2PI
from partita.foundation.checks import check_count, check_one_of, check_positive, check_seed
from partita.foundation.points import normal_points
from partita.foundation.runtime import Array, on_host, precision
from partita.foundation.shapes import PerRow
from partita.models.base import AbstractModel, Hyper, check_numbers, shard_of_rows
from partita.shards import Shard

COVARIANCES = ("full", "diagonal", "spherical")
# Where refinements of the prior start: how many rows a component counts for, and its covariance beside that of rows.
START_ROWS, START_COVARIANCE = 10.0, 0.3


class GaussianMixture(AbstractModel):
    """p(x) = Σ_k π_k N(x; μ_k, Λ_k⁻¹), with conjugate priors of weights, means and precisions.

    E_q[log p(x)] is bounded from below by the best responsibilities, in closed form; its gradient in the mean
    parameters is then the message of variational Bayes (Attias, 2000). All components have the same prior, so a run
    starts elsewhere: at components spread about `location`, for which nobody's rows are needed, and which suit rows of
    about the size of `scale` (standardise them); or at clusters of rows, `fit(model, shards, start=model.begin(rows))`.

    Args:
        components, features: how many.
        covariance: "full" matrices, "diagonal" ones, or "spherical": one variance per component.
        concentration: of the Dirichlet prior, per component.
        location, strength: the prior mean of a component, and how many rows it counts for.
        degrees: how many rows the prior of its precision counts for; at least `features` where covariances are full.
        scale: the prior's inverse precision, times `degrees`.
        init_seed: of the components to start from. A mixture has many optima: more components than there should be, of
            which some end with no rows, find good ones more often.
    """

    components: int
    features: int
    covariance: Literal["full", "diagonal", "spherical"] = "full"
    concentration: float = 1.0
    location: float = 0.0
    strength: float = 1.0
    degrees: float | None = None
    scale: float = 1.0
    init_seed: int = 0

    takes_target: ClassVar[bool] = False
    suggested: ClassVar = {"components": (3, "how many there are at most")}
    closed_form: ClassVar[bool] = True
    conjugate: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_count("GaussianMixture: ", components=self.components, features=self.features)
        check_seed("GaussianMixture: ", init_seed=self.init_seed)
        check_positive(
            "GaussianMixture: ",
            concentration=self.concentration,
            strength=self.strength,
            scale=self.scale,
            degrees=self._degrees,
        )
        check_one_of("", COVARIANCES, covariance=self.covariance)
        if self.covariance == "full" and self._degrees <= self.features - 1:
            raise InputError(f"degrees: must be larger than {self.features - 1}, got {self._degrees}")

    @property
    def _degrees(self) -> float:
        return float(self.features) if self.degrees is None else self.degrees

    def natural_prior(self, hyper: Hyper) -> Family:
        K, d = self.components, self.features
        centre = np.full(d, self.location)
        if self.covariance == "full":
            one: Family = NormalWishart.from_parameters(centre, self.strength, self.scale * np.eye(d), self._degrees)
        elif self.covariance == "spherical":
            one = NormalGamma.from_parameters(centre, self.strength * np.eye(d), self._degrees / 2, self.scale / 2)
        else:
            K = K * d
            one = NormalGamma.from_parameters(centre[:1], self.strength * np.eye(1), self._degrees / 2, self.scale / 2)
        weights = Dirichlet.from_concentration(np.full(self.components, self.concentration))
        return Product({"components": Independent.of([one] * K), "weights": weights})

    @classmethod
    def for_data(cls, X: np.ndarray, y: Any, **settings: Any) -> Self:
        model = cls(features=X.shape[1], **settings)
        d = model.features
        check_numbers(model.components * (d * d + d + 3 if model.covariance == "full" else 4 * d + 1), "components")
        return model

    @property
    def start(self) -> Family | None:
        """Components spread about `location` as rows of covariance `scale` would be."""
        if self.given_prior is not None:
            return None
        K, d, rows, covariance = self.components, self.features, START_ROWS, START_COVARIANCE * self.scale
        centres = self.location + math.sqrt(self.scale) * normal_points(2 * K, d, self.init_seed)[:K]
        if self.covariance == "full":
            spread = (rows + d) * covariance * np.eye(d)
            each: list[Family] = [NormalWishart.from_parameters(m, rows, spread, rows + d) for m in centres]
        else:
            parts = centres if self.covariance == "spherical" else centres.reshape(-1, 1)
            precision = rows * np.eye(parts.shape[1])
            each = [NormalGamma.from_parameters(m, precision, rows / 2, rows * covariance / 2) for m in parts]
        weights = Dirichlet.from_concentration(np.full(K, rows))
        return Product({"components": Independent.of(each), "weights": weights})

    def shard(self, site: int, raw: Any) -> Shard:
        """Check an array of rows, or `Weighted` ones."""
        return shard_of_rows(self, site, raw, self.features)

    def expected_log_joint(self, mean: Any, X: Array) -> Array:
        """E_q[log π_k + log N(x; μ_k, Λ_k⁻¹)] for each row and component."""
        K, d = self.components, self.features
        each, constant = mean.parts["components"].each, mean.parts["weights"].expected_log - 0.5 * d * LOG_2PI
        if self.covariance == "full":
            squares = (X[:, :, None] * X[:, None, :]).reshape(len(X), d * d)
            quadratic = squares @ each.minus_half_precision.reshape(K, d * d).T
            constant += 0.5 * each.expected_log_det + each.minus_half_energy
            return constant + quadratic + X @ each.weighted_location.T
        energy = jnp.trace(each.minus_half_second_moment, axis1=1, axis2=2)
        if self.covariance == "spherical":
            constant += 0.5 * d * each.expected_log + energy
            return constant + jnp.sum(X**2, axis=1)[:, None] * each.minus_half_precision + X @ each.weighted_location.T
        constant += jnp.sum((0.5 * each.expected_log + energy).reshape(K, d), axis=1)
        quadratic = X**2 @ each.minus_half_precision.reshape(K, d).T
        return constant + quadratic + X @ each.weighted_location.reshape(K, d).T

    def expected_log_prob(self, mean: Any, data: Array, hyper: Hyper) -> PerRow:
        return jax.nn.logsumexp(self.expected_log_joint(mean, data), axis=1)

    def log_prob(self, params: Any, data: Array, hyper: Hyper) -> PerRow:
        return jax.nn.logsumexp(self.expected_log_joint(self.natural_prior({}).statistics(params), data), axis=1)

    def responsibilities(self, posterior: Family, X: Any) -> np.ndarray:
        """How probably each row comes from each component."""
        with precision(self.dtype):
            return on_host(_responsibilities(self, posterior, self.shard(0, X).data))

    def begin(self, X: Any, seed: int = 0) -> Family:
        """A place to start from: components at the clusters that k-means finds in some rows."""
        from sklearn.cluster import KMeans

        rows = np.asarray(self.shard(0, X).data)
        if len(rows) < self.components:
            raise InputError(f"begin: needs at least {self.components} rows, one per component, got {len(rows)}")
        labels = KMeans(self.components, n_init=1, random_state=seed).fit(rows).labels_
        with precision(self.dtype):
            return on_host(_from_labels(self, rows, np.eye(self.components)[labels]))


@eqx.filter_jit
def _responsibilities(model: GaussianMixture, posterior: Family, X: Array) -> Array:
    return jax.nn.softmax(model.expected_log_joint(posterior.mean(), X), axis=1)


@eqx.filter_jit
def _from_labels(model: GaussianMixture, X: Array, responsibilities: Array) -> Family:
    """prior × exp(Σ r_nk log joint): the posterior given which row comes from where."""
    prior = model.natural_prior({})

    def total(mean: Any) -> Array:
        return jnp.sum(responsibilities * model.expected_log_joint(mean, X))

    return prior * prior.from_gradient(jax.grad(total)(prior.mean()))
