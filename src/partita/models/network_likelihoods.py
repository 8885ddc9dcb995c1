"""Likelihoods of networks: what the outputs of one mean for the targets."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from partita.errors import InputError, ShardError
from partita.families.abstract_gaussian import LOG_2PI
from partita.foundation.checks import check_one_of
from partita.foundation.runtime import Array
from partita.foundation.shapes import Scalar
from partita.metrics import classification, regression
from partita.models.base import Hyper, check_labels


@dataclass(frozen=True)
class NetworkLikelihood(ABC):
    """p(y | f), with f the outputs of a network for one row; `heads` are groups of classes, where there are any."""

    heads: int = 1

    classifies: ClassVar[bool] = True

    def hyper(self, noise: float) -> Hyper:
        """Starting values of hyperparameters."""
        return {}

    def count_outputs(self, y: np.ndarray) -> int:
        """How many outputs a network for such targets has."""
        return 1

    def check_targets(self, site: int, y: np.ndarray, outputs: int) -> np.ndarray:
        """The targets of one site as `log_prob` takes them: one label per row."""
        if y.ndim != 1:
            raise ShardError(site, "y", f"expected one label per row, got shape {y.shape}")
        if outputs % self.heads:
            raise InputError(f"heads: {outputs} outputs cannot be shared by {self.heads} heads")
        return check_labels(site, y, self.count_classes(outputs)).astype(np.int32)

    def count_classes(self, outputs: int) -> int:
        """How many classes so many outputs tell apart."""
        return outputs

    @abstractmethod
    def log_prob(self, f: Array, y: Array, hyper: Hyper) -> Scalar:
        """log p(y | f) of one row."""

    @abstractmethod
    def sample(self, f: Array, hyper: Hyper, key: Array, like: Array) -> Array:
        """y ~ p(y | f) for each row; `like` are observed ones, which say the head."""

    @abstractmethod
    def response(self, f: Array) -> Array:
        """What is predicted at f: probabilities of all classes, or means."""

    def decide(self, response: np.ndarray) -> np.ndarray:
        """The most probable class, or the mean."""
        return response.argmax(axis=-1)

    def score(self, response: np.ndarray, y: np.ndarray) -> dict[str, float]:
        """How good expected responses are, against observed targets."""
        return classification(response, y)


class Softmax(NetworkLikelihood):
    """Labels 0, 1, …, of which those within a row's head are compared."""

    def count_outputs(self, y: np.ndarray) -> int:
        return int(np.max(y)) + 1

    def log_prob(self, f: Array, y: Array, hyper: Hyper) -> Scalar:
        # Comparisons with all labels, because indexing row by row becomes a slow gather.
        mine = jnp.arange(f.shape[0]) == y
        if self.heads == 1:
            return jnp.sum(jnp.where(mine, f, 0)) - jax.nn.logsumexp(f)
        classes = f.shape[0] // self.heads
        head = jnp.arange(f.shape[0]) // classes == y // classes
        return jnp.sum(jnp.where(mine, f, 0)) - jax.nn.logsumexp(jnp.where(head, f, -jnp.inf))

    def sample(self, f: Array, hyper: Hyper, key: Array, like: Array) -> Array:
        if self.heads > 1:
            classes = f.shape[1] // self.heads
            f = jnp.where(jnp.arange(f.shape[1]) // classes == like[:, None] // classes, f, -jnp.inf)
        return jax.random.categorical(key, f).astype(like.dtype)

    def response(self, f: Array) -> Array:
        heads = f.reshape(*f.shape[:-1], self.heads, f.shape[-1] // self.heads)
        return jax.nn.softmax(heads, axis=-1).reshape(f.shape)

    def score(self, response: np.ndarray, y: np.ndarray) -> dict[str, float]:
        """With several heads, the head of each row's label is given."""
        if self.heads == 1:
            return classification(response, y)
        y = np.asarray(y, int)
        heads = response.reshape(len(y), self.heads, -1)
        classes = heads.shape[2]
        return classification(heads[np.arange(len(y)), y // classes], y % classes)


class Bernoulli(NetworkLikelihood):
    """Labels 0 and 1, and one output."""

    def count_classes(self, outputs: int) -> int:
        if outputs != 1:
            raise InputError(f"layers: a Bernoulli likelihood needs one output, got {outputs}")
        return 2

    def log_prob(self, f: Array, y: Array, hyper: Hyper) -> Scalar:
        return y * f[0] - jax.nn.softplus(f[0])

    def sample(self, f: Array, hyper: Hyper, key: Array, like: Array) -> Array:
        return jax.random.bernoulli(key, jax.nn.sigmoid(f[:, 0])).astype(like.dtype)

    def response(self, f: Array) -> Array:
        return jnp.concatenate([jax.nn.sigmoid(-f), jax.nn.sigmoid(f)], axis=-1)


class Normal(NetworkLikelihood):
    """Numbers around the outputs, with a deviation `noise`."""

    classifies = False

    def hyper(self, noise: float) -> Hyper:
        return {"noise": float(noise)}

    def check_targets(self, site: int, y: np.ndarray, outputs: int) -> np.ndarray:
        target = y[:, None] if y.ndim == 1 else y
        if target.shape[1:] != (outputs,):
            raise ShardError(site, "y", f"expected {outputs} targets per row, got shape {y.shape}")
        return target

    def log_prob(self, f: Array, y: Array, hyper: Hyper) -> Scalar:
        return jnp.sum(-0.5 * ((y - f) / hyper["noise"]) ** 2 - jnp.log(hyper["noise"]) - 0.5 * LOG_2PI)

    def sample(self, f: Array, hyper: Hyper, key: Array, like: Array) -> Array:
        return f + hyper["noise"] * jax.random.normal(key, f.shape, f.dtype)

    def response(self, f: Array) -> Array:
        return f[..., 0] if f.shape[-1] == 1 else f

    def decide(self, response: np.ndarray) -> np.ndarray:
        return response

    def score(self, response: np.ndarray, y: np.ndarray) -> dict[str, float]:
        return regression(response, y)


LIKELIHOODS: dict[str, type[NetworkLikelihood]] = {"softmax": Softmax, "gaussian": Normal, "bernoulli": Bernoulli}


def make_likelihood(name: str, heads: int = 1) -> NetworkLikelihood:
    """The likelihood of a name."""
    check_one_of("", LIKELIHOODS, likelihood=name)
    return LIKELIHOODS[name](heads)
