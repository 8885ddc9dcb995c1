"""Classes from linear predictors: logistic, probit and softmax regression."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr, ndtr

from partita.errors import InputError
from partita.families import GAUSSIANS, Family
from partita.foundation.algebra import numbers_of
from partita.foundation.checks import check_count
from partita.foundation.runtime import Array
from partita.foundation.shapes import Scalar
from partita.models.base import Hyper, check_labels
from partita.models.linear import LinearPredictor, Posterior


class Classifier(LinearPredictor):
    """Two classes, labelled 0 and 1."""

    def targets(self, site: int, y: np.ndarray) -> np.ndarray:
        return check_labels(site, LinearPredictor.targets(self, site, y), 2)

    def sample_targets(self, f: Array, hyper: Hyper, key: Array, like: Array) -> Array:
        return jax.random.bernoulli(key, self.response(f)[..., 1]).astype(like.dtype)

    def predict(self, response: np.ndarray) -> np.ndarray:
        return (response[:, 1] > 0.5).astype(int)


class LogisticRegression(Classifier):
    """P(y = 1) = σ(xᵀθ)."""

    def pointwise(self, f: Array, y: Array, hyper: Hyper) -> Scalar:
        return y * f - jax.nn.softplus(f)

    def response(self, f: Array) -> Array:
        return jnp.stack([jax.nn.sigmoid(-f), jax.nn.sigmoid(f)], axis=-1)


class ProbitRegression(Classifier):
    """P(y = 1) = Φ(xᵀθ)."""

    def pointwise(self, f: Array, y: Array, hyper: Hyper) -> Scalar:
        return log_ndtr((2 * y - 1) * f)

    def response(self, f: Array) -> Array:
        return jnp.stack([ndtr(-f), ndtr(f)], axis=-1)


class SoftmaxRegression(LinearPredictor):
    """P(y = c) ∝ exp(xᵀθ_c), for labels 0 … classes - 1.

    A mean-field posterior is over an array of shape (classes, columns), a full one over that array, flat.
    """

    classes: int = 2
    posterior: Posterior = "mean-field"

    def __check_init__(self) -> None:
        check_count(classes=self.classes)
        if self.classes < 2:
            raise InputError("classes: expected at least 2")

    @classmethod
    def for_data(cls, X: np.ndarray, y: np.ndarray, **settings: Any) -> Self:
        return cls(features=X.shape[1], classes=int(np.max(y)) + 1, **settings)

    @property
    def projected(self) -> bool:  # type: ignore[override]
        """Several correlated predictors per row have no cheap projection."""
        return self.family.is_mean_field

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return self.classes

    def natural_prior(self, hyper: Hyper) -> Family:
        xp = numbers_of(hyper)
        precision = xp.tile(self.prior_precision(hyper), (self.classes, 1))
        precision = precision if self.posterior == "mean-field" else precision.ravel()
        return GAUSSIANS[self.posterior].independent(xp.zeros_like(precision), precision)

    def targets(self, site: int, y: np.ndarray) -> np.ndarray:
        return check_labels(site, LinearPredictor.targets(self, site, y), self.classes).astype(np.int32)

    def predictors(self, params: Array, X: Array) -> Array:
        return X @ params.reshape(self.classes, self.columns).T

    def pointwise(self, f: Array, y: Array, hyper: Hyper) -> Scalar:
        return f[y] - jax.nn.logsumexp(f)

    def sample_targets(self, f: Array, hyper: Hyper, key: Array, like: Array) -> Array:
        return jax.random.categorical(key, f).astype(like.dtype)

    def response(self, f: Array) -> Array:
        return jax.nn.softmax(f, axis=-1)

    def predict(self, response: np.ndarray) -> np.ndarray:
        return response.argmax(axis=-1)
