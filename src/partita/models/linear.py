"""Generalised linear models: the likelihood sees the parameters only through f = Xθ."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jax.scipy.stats import t as student

from partita.errors import InputError, ShardError
from partita.families import GAUSSIANS, Family, WeightsAndNoise
from partita.families.abstract_gaussian import LOG_2PI
from partita.foundation.algebra import numbers_of
from partita.foundation.checks import check_count, check_one_of, check_positive
from partita.foundation.runtime import Array
from partita.foundation.shapes import Inputs, PerRow, Scalar
from partita.models.base import Hyper, Predictor, Rows
from partita.models.coefficients import Coefficients
from partita.shards import as_numbers

Posterior = Literal["full", "mean-field"]
# Standard deviations of the prior: whoever is further from zero is held back by it.
FAR = 5.0
# Noise of so many times its prior scale has a chance of 1 in 500 under the prior.
LOUD = 10.0


class LinearPredictor(Predictor):
    """Shared by all models with a design matrix (a column of ones last, if there is an intercept)."""

    features: int
    prior_scale: float = 1.0
    intercept: bool = True
    intercept_scale: float = 10.0
    posterior: Posterior = "full"

    projected: ClassVar[bool] = True
    prior_on_host: ClassVar[bool] = True
    # What weights are of, one block of columns after the other: prefixes of their names.
    blocks: ClassVar[tuple[str, ...]] = ("",)

    def __check_init__(self) -> None:
        # An intercept may be all there is.
        if not isinstance(self.intercept, bool | np.bool_):
            raise InputError(f"intercept: expected true or false, got {self.intercept!r}")
        check_count(features=self.features if self.features or not self.intercept else 1)
        check_positive(prior_scale=self.prior_scale, intercept_scale=self.intercept_scale)
        check_one_of("", GAUSSIANS, posterior=self.posterior)

    @classmethod
    def for_data(cls, X: np.ndarray, y: np.ndarray, **settings: Any) -> Self:
        return cls(features=X.shape[1], **settings)

    @property
    def hyper(self) -> Hyper:
        return {"prior_scale": float(self.prior_scale)}

    @property
    def columns(self) -> int:
        return self.features + self.intercept

    def prior_precision(self, hyper: Hyper) -> Array:
        """1/s² for weights, the intercept's own last."""
        xp = numbers_of(hyper)
        weights = xp.broadcast_to(1 / xp.asarray(hyper["prior_scale"], self.dtype) ** 2, (self.features,))
        rest = xp.full(int(self.intercept), 1 / self.intercept_scale**2, self.dtype)
        precision: Array = xp.concatenate([weights, rest])
        return precision

    def natural_prior(self, hyper: Hyper) -> Family:
        precision = self.prior_precision(hyper)
        return GAUSSIANS[self.posterior].independent(numbers_of(precision).zeros_like(precision), precision)

    @property
    def family(self) -> type[Family]:
        """The family of prior, factors and posterior."""
        return GAUSSIANS[self.posterior] if self.given_prior is None else type(self.given_prior)

    def targets(self, site: int, y: np.ndarray) -> np.ndarray:
        if y.ndim != 1:
            raise ShardError(site, "y", f"expected one target per row, got shape {y.shape}")
        return y

    def design(self, site: int | None, X: Any) -> np.ndarray:
        """X with the right number of columns, and ones for the intercept."""
        array = as_numbers(site, "X", X, self.dtype)
        if array.ndim != 2 or array.shape[1] != self.features:
            raise ShardError(site, "X", f"expected {self.features} features per row, got shape {array.shape}")
        return np.column_stack([array, np.ones(len(array), self.dtype)]) if self.intercept else array

    def predictors(self, params: Array, X: Array) -> Array:
        """f = Xθ."""
        return X @ params

    def variables(self, draws: Any) -> dict[str, np.ndarray]:
        """Coefficients and intercepts, block by block."""
        weights, found = self._split(draws)
        weights = weights.reshape(len(weights), *((self.outputs,) if self.outputs > 1 else ()), -1)
        for prefix, block in zip(self.blocks, np.split(weights, len(self.blocks), axis=-1), strict=True):
            found[f"{prefix}coef"] = block[..., : self.features]
            if self.intercept:
                found[f"{prefix}intercept"] = block[..., -1]
        return found

    def _split(self, draws: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return np.asarray(draws).reshape(len(draws), -1), {}

    def coefficients(self, posterior: Family) -> Coefficients:
        """Weights, and the intercept after them, one output after the other; in the units of the model's inputs."""
        number = max(self.outputs, len(self.blocks)) * self.columns
        return Coefficients([self._coefficient_name(place) for place in range(number)], posterior, self._split)

    def _coefficient_name(self, place: int, features: Sequence[str] = ()) -> str:
        block, column = divmod(place, self.columns)
        known = len(features) == self.features
        name = "intercept" if column >= self.features else features[column] if known else f"weight {column}"
        return f"class {block}, {name}" if self.outputs > 1 else f"{self.blocks[block]}{name}"

    def parameter_name(self, tree: Any, place: int, features: Sequence[str] = ()) -> str:
        if place < self.outputs * self.columns:
            return self._coefficient_name(place, features)
        return super().parameter_name(tree, place, features)

    def doubts(self, posterior: Any) -> list[str]:
        """Weights far out in the tail of their prior: in units of such size, it is not weak."""
        if self.given_prior is not None:
            return []
        scale = np.asarray(self.prior_precision(self.hyper)) ** -0.5
        # The largest of all outputs.
        off = np.max(np.abs(np.reshape(posterior.location, (-1, len(scale)))), axis=0) / scale
        worst = int(np.argmax(off))
        if off[worst] <= FAR:
            return []
        setting = "intercept_scale" if worst >= self.features else "prior_scale"
        name = "the intercept" if worst >= self.features else f"weight {worst}"
        return [
            f"{name} is {off[worst]:.0f} standard deviations of its prior from zero: either that holds it back "
            f"(standardise inputs and targets, or raise {setting} ({getattr(self, setting):g})), or the run diverged "
            "(lower damping)"
        ]


class PoissonRegression(LinearPredictor):
    """Counts with rate exp(xᵀθ)."""

    closed_form: ClassVar[bool] = True
    steep: ClassVar[bool] = True

    def targets(self, site: int, y: np.ndarray) -> np.ndarray:
        y = LinearPredictor.targets(self, site, y)
        if np.any(y < 0) or np.any(y != np.floor(y)):
            raise ShardError(site, "y", "counts must be whole numbers of at least 0")
        return y

    def pointwise(self, f: Array, y: Array, hyper: Hyper) -> Scalar:
        return y * f - jnp.exp(f) - gammaln(y + 1)

    def expected_log_prob(self, mean: Any, data: Rows, hyper: Hyper) -> PerRow:
        """E[exp f] = exp(m + v/2) for a Gaussian predictor."""
        m, v = mean.moments_along(data.X)
        return data.y * m - jnp.exp(m + 0.5 * v) - gammaln(data.y + 1)

    def sample_targets(self, f: Array, hyper: Hyper, key: Array, like: Array) -> Array:
        return jax.random.poisson(key, jnp.exp(f)).astype(like.dtype)

    def response(self, f: Array) -> Array:
        return jnp.exp(f)


class LinearRegression(LinearPredictor):
    """y = xᵀθ + Gaussian noise.

    The weights are N(0, prior_scale²), the intercept is N(0, intercept_scale²). With a known noise (standard deviation)
    the posterior is Gaussian. With `noise=None` the noise is a parameter too, whatever the weights are: σ is the
    absolute value of a Student t with three degrees of freedom and scale `noise_scale`, flat near zero and with a heavy
    tail (below 1e-5 of the scale it is cut, smoothly). Both posteriors are exact, and so is the log evidence.

    All scales are in the units of the data: use inputs and targets of about one, or scales to match.
    """

    noise: float | None = None
    noise_scale: float = 1.0

    @classmethod
    def for_data(cls, X: np.ndarray, y: np.ndarray, **settings: Any) -> Self:
        """A model whose scales are in the units of the targets, where neither they nor the noise are given."""
        if settings.get("noise") is not None:
            return cls(features=X.shape[1], **settings)
        size = float(np.sqrt(np.mean(np.square(y, dtype=float)))) or 1.0
        unit = float(np.std(y)) or size
        scales = {"prior_scale": unit, "noise_scale": unit, "intercept_scale": 10 * size}
        return cls(features=X.shape[1], **{**scales, **settings})

    closed_form: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_positive(noise_scale=self.noise_scale)
        if self.noise is not None:
            check_positive(noise=self.noise)
        elif self.posterior != "full":
            raise InputError('posterior: an unknown noise (noise=None) needs posterior="full"')

    @property
    def conjugate(self) -> bool:  # type: ignore[override]
        """A mean-field message is not where it leads to: coefficients move together."""
        return self.noise is None or self.family.is_full

    @property
    def exact(self) -> bool:
        return self.conjugate

    @property
    def hyper(self) -> Hyper:
        known = {} if self.noise is None else {"noise": float(self.noise)}
        return {"prior_scale": float(self.prior_scale), **known}

    def natural_prior(self, hyper: Hyper) -> Family:
        if self.noise is not None:
            return LinearPredictor.natural_prior(self, hyper)
        return WeightsAndNoise.before_data(self.prior_precision(hyper), float(self.noise_scale))

    def doubts(self, posterior: Any) -> list[str]:
        """Doubts about weights, and about noise far above its scale, for which weights may have been held back too."""
        found = LinearPredictor.doubts(self, posterior)
        if self.noise is not None or self.given_prior is not None:
            return found
        ratio = float(posterior.noise_quantile(0.5)) / self.noise_scale
        if ratio <= LOUD:
            return found
        return [
            *found,
            f"the noise is {ratio:.0f} times its prior scale: targets have other units than the prior, which may hold "
            f"weights back; standardise targets, or raise noise_scale ({self.noise_scale:g}) and prior_scale with it",
        ]

    def pointwise(self, f: Array, y: Array, hyper: Hyper) -> Scalar:
        return _log_normal(y, f, hyper["noise"])

    def log_prob(self, params: Any, data: Rows, hyper: Hyper) -> PerRow:
        if self.noise is not None:
            return Predictor.log_prob(self, params, data, hyper)
        w, tau = params
        return 0.5 * (jnp.log(tau) - LOG_2PI - tau * (data.y - data.X @ w) ** 2)

    def expected_log_prob(self, mean: Any, data: Rows, hyper: Hyper) -> PerRow:
        if self.noise is not None:
            m, v = mean.moments_along(data.X)
            return _log_normal(data.y, m, hyper["noise"]) - 0.5 * v / hyper["noise"] ** 2
        X, y = data
        square = jnp.sum((X @ mean.minus_half_second_moment) * X, axis=1)  # -½ E[τ f²]
        fit = y**2 * mean.minus_half_precision + y * (X @ mean.weighted_location) + square
        return 0.5 * (mean.expected_log - LOG_2PI) + fit

    def replicated(self, params: Any, data: Rows, hyper: Hyper, key: Array) -> dict[str, Array]:
        w, noise = (params, hyper["noise"]) if self.noise is not None else (params[0], 1 / jnp.sqrt(params[1]))
        return {"y": data.X @ w + noise * jax.random.normal(key, data.y.shape, data.y.dtype)}

    def expected_response(self, q: Any, X: Array) -> Array | None:
        return X @ q.location if self.noise is None else None

    def _split(self, draws: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        if self.noise is not None:
            return LinearPredictor._split(self, draws)
        weights, precision = draws
        return np.asarray(weights), {"noise": 1 / np.sqrt(np.asarray(precision))}

    def coefficients(self, posterior: Any) -> Coefficients:
        found = LinearPredictor.coefficients(self, posterior)
        return (
            found if self.noise is not None else replace(found, log_quantiles={"noise": posterior.log_noise_quantile})
        )

    def predictive_variance(self, q: Any, X: Inputs, hyper: Hyper) -> PerRow:
        if self.noise is not None:
            return q.moments_along(X)[1] + hyper["noise"] ** 2
        return jnp.sum((X @ q.covariance) * X, axis=1) + q.noise_variance

    def response(self, f: Array) -> Array:
        return f


def _log_normal(y: Array, mean: Array, deviation: Array) -> Array:
    return -0.5 * ((y - mean) / deviation) ** 2 - jnp.log(deviation) - 0.5 * LOG_2PI


class RobustRegression(LinearPredictor):
    """y = xᵀθ + noise of Student's t: rows far off count for little, the less the fewer `degrees` of freedom."""

    noise: float = 1.0
    degrees: float = 4.0

    def __check_init__(self) -> None:
        check_positive(noise=self.noise, degrees=self.degrees)

    @property
    def hyper(self) -> Hyper:
        return {"prior_scale": float(self.prior_scale), "noise": float(self.noise)}

    def pointwise(self, f: Array, y: Array, hyper: Hyper) -> Scalar:
        return student.logpdf(y, self.degrees, f, hyper["noise"])

    def sample_targets(self, f: Array, hyper: Hyper, key: Array, like: Array) -> Array:
        return f + hyper["noise"] * jax.random.t(key, self.degrees, f.shape, f.dtype)

    def predictive_variance(self, q: Any, X: Inputs, hyper: Hyper) -> PerRow:
        own = self.degrees / (self.degrees - 2) * hyper["noise"] ** 2 if self.degrees > 2 else jnp.inf
        return q.moments_along(X)[1] + own

    def response(self, f: Array) -> Array:
        return f


def to_units_of_data(centre: np.ndarray, unit: np.ndarray, intercept: bool = True) -> np.ndarray:
    """T, such that T w are the coefficients, the intercept last, of columns that were (x - centre) / unit."""
    T = np.diag(np.append(1 / unit, 1.0)) if intercept else np.diag(1 / unit)
    if intercept:
        T[-1, :-1] = -centre / unit
    return T


__all__ = [
    "LinearRegression",
    "PoissonRegression",
    "RobustRegression",
    "to_units_of_data",
]
