"""Bayesian neural networks: a mean-field Gaussian over the weights of any network."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from partita.errors import InputError, ShardError
from partita.families import Family, MeanField
from partita.foundation.checks import check_count, check_one_of, check_positive, is_whole
from partita.foundation.runtime import Array
from partita.foundation.shapes import Inputs, Predictors, Scalar
from partita.foundation.text import clean
from partita.models.base import Hyper, Predictor, Rows
from partita.models.network_likelihoods import NetworkLikelihood, make_likelihood
from partita.models.rows_last import apply_to_rows, map_over_rows
from partita.shards import Shard, as_numbers

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
}
Likelihood = Literal["softmax", "gaussian", "bernoulli"]

# The most dense layers, which take minutes to compile, and the most units of one, which fit into no memory.
MOST_LAYERS, WIDEST = 100, 10**9
# How many rows go through a network that is not dense together: what its layers give takes memory.
ROWS_AT_ONCE = 500
# Draws of the parameters that the variance of a prediction is taken over.
DRAWS = 256


class Layer(NamedTuple):
    """inputs @ weights + bias; or only the shapes of both."""

    weights: Any
    bias: Any


def _gaussian(key: Array, mean: Array, variance: Array) -> Array:
    return mean + jnp.sqrt(variance) * jax.random.normal(key, mean.shape, mean.dtype)


class Dense(eqx.Module):
    """Fully connected layers. What one gives is Gaussian, given its inputs: it can be drawn in place of the weights."""

    sizes: tuple[int, ...] = eqx.field(static=True)
    activation: str = eqx.field(static=True)

    def __call__(self, params: Sequence[Layer], X: Array) -> Array:
        *hidden, last = params
        for weights, bias in hidden:
            X = ACTIVATIONS[self.activation](X @ weights + bias)
        return X @ last.weights + last.bias

    @property
    def shapes(self) -> tuple[Layer, ...]:
        """The shapes of the parameters, of which there may be more than there is memory for."""
        return tuple(
            Layer(jax.ShapeDtypeStruct((inputs, outputs), np.float32), jax.ShapeDtypeStruct((outputs,), np.float32))
            for inputs, outputs in zip(self.sizes, self.sizes[1:], strict=False)
        )

    def start(self, seed: int) -> tuple[Layer, ...]:
        """Glorot and Bengio's (2010) weights, and no bias."""
        generator = np.random.default_rng(seed)
        pairs = zip(self.sizes, self.sizes[1:], strict=False)
        return tuple(
            Layer(
                generator.normal(0, math.sqrt(2 / (inputs + outputs)), (inputs, outputs)).astype(np.float32),
                np.zeros(outputs, np.float32),
            )
            for inputs, outputs in pairs
        )

    def moments_along(self, q: Any, X: Inputs, layer: int = 0) -> tuple[Predictors, Predictors]:
        """Mean and variance of what a layer gives, for independent weights."""
        mean, variance = q.location[layer], q.variance[layer]
        return X @ mean.weights + mean.bias, X**2 @ variance.weights + variance.bias

    def draw(self, q: Any, first: tuple[Array, Array], key: Array) -> Array:
        """Outputs, drawn layer by layer with noise of each row's own (Kingma et al., 2015).

        `first` is the projection of the first layer, which every draw shares.
        """
        zeros = [jnp.zeros((), first[0].dtype)] * (len(self.sizes) - 1)
        return self.shifted_draw(q, first, key, zeros)[0]

    def shifted_draw(
        self, q: Any, first: tuple[Array, Array], key: Array, shifts: Sequence[Array]
    ) -> tuple[Array, list[Array]]:
        """The same with a shift added to every layer, whose derivatives are those by the layers; and hidden inputs."""
        keys = jax.random.split(key, len(shifts))
        hidden: list[Array] = []
        f = _gaussian(keys[0], *first) + shifts[0]
        for layer in range(1, len(shifts)):
            hidden.append(ACTIVATIONS[self.activation](f))
            f = _gaussian(keys[layer], *self.moments_along(q, hidden[-1], layer)) + shifts[layer]
        return f, hidden


class Apply(eqx.Module):
    """Any function of parameters and rows. Of what it is given, arrays of floating-point numbers are learnt.

    With `by_row` it is a function of one row, and what it is given is a module, whose numbers are settings.
    """

    function: Callable[[Any, Array], Array]
    given: Any
    by_row: bool = eqx.field(static=True)

    @property
    def _parts(self) -> tuple[Any, Any]:
        return eqx.partition(self.given, eqx.is_inexact_array if self.by_row else eqx.is_inexact_array_like)

    def __call__(self, params: Any, X: Array) -> Array:
        rest = self._parts[1]
        run = map_over_rows if self.by_row else apply_to_rows
        f = run(lambda learnt, rows: self.function(eqx.combine(learnt, rest), rows), params, X)
        # Constants of a module may be doubles, where JAX's flag says so.
        return f.astype(X.dtype)

    @property
    def shapes(self) -> Any:
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), np.float32), self._parts[0])

    def start(self, seed: int) -> Any:
        return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), self._parts[0])


def _sizes(given: Sequence[Any]) -> tuple[Any, ...]:
    """Whole numbers as Python's own, which can be part of a compiled program's name."""
    return tuple(int(size) if is_whole(size) else size for size in given)


def _call(module: Any, row: Array) -> Array:
    found: Array = module(row)
    return found


def _check_module(module: eqx.Module) -> None:
    """Refuse layers that see more than one row, or draw at random."""
    for layer in jax.tree.leaves(module, is_leaf=lambda node: isinstance(node, eqx.nn.StateIndex | eqx.nn.Dropout)):
        if isinstance(layer, eqx.nn.StateIndex):
            raise InputError(
                "layers: a layer keeps a state, as BatchNorm does, of rows that other sites do not have: use LayerNorm "
                "or GroupNorm, which look at one row"
            )
        if isinstance(layer, eqx.nn.Dropout) and not layer.inference and layer.p != 0:
            raise InputError(
                "layers: Dropout draws at random where the posterior already does: leave it out, or give "
                "eqx.nn.inference_mode(module)"
            )


class Network(Predictor):
    """A Bayesian neural network with a N(0, prior_scale²) prior and a mean-field Gaussian posterior, in float32.

    Args:
        layers: sizes of dense layers, inputs first and outputs last; or an Equinox module that takes one row; or a
            function `apply(params, X)` of many rows, with the `params` to start from.
        activation: between dense layers.
        likelihood: "softmax" over labels 0, 1, …; "gaussian" with a standard deviation `noise`; "bernoulli" for
            labels 0 and 1 and one output.
        params: where to start, for `apply`.
        prior_scale: standard deviation of the prior of every weight.
        noise: of the Gaussian likelihood.
        start_scale: standard deviation of every weight where refinements of the prior start.
        heads: groups of classes, for tasks with labels of their own: head h has labels h·c … h·c + c - 1, and rows
            only compare classes within the head of their label.
        init_seed: of the weights to start from.

    >>> model = Network([4, 3, 2])
    >>> [layer.weights.shape for layer in model.start.location]
    [(4, 3), (3, 2)]
    """

    drawn: ClassVar[bool] = True

    layers: Any = eqx.field(converter=lambda given: _sizes(given) if isinstance(given, list | tuple) else given)
    activation: str = "relu"
    likelihood: Likelihood = "softmax"
    params: Any = None
    prior_scale: float = 1.0
    noise: float = 1.0
    start_scale: float = 0.03
    heads: int = 1
    init_seed: int = 0

    def __check_init__(self) -> None:
        check_positive(prior_scale=self.prior_scale, noise=self.noise, start_scale=self.start_scale)
        check_count(heads=self.heads)
        make_likelihood(self.likelihood)
        check_one_of("", ACTIVATIONS, activation=self.activation)
        if isinstance(self.layers, tuple):
            if len(self.layers) < 2 or not all(is_whole(size) and size >= 1 for size in self.layers):
                shown = clean(self.layers)
                raise InputError(f"layers: expected at least two sizes, such as [784, 200, 10], got {shown}")
            if len(self.layers) > MOST_LAYERS or max(self.layers) > WIDEST:
                raise InputError(f"layers: expected at most {MOST_LAYERS} of them, and none wider than {WIDEST:,}")
            if self.layers[-1] % self.heads:
                raise InputError(f"heads: {self.layers[-1]} outputs cannot be shared by {self.heads} heads")
        elif not callable(self.layers):
            raise InputError("layers: expected sizes, an Equinox module or a function apply(params, X)")
        elif isinstance(self.layers, eqx.Module):
            _check_module(self.layers)
        elif self.params is None:
            raise InputError("params: a function apply(params, X) needs parameters to start from")
        if not jax.tree.leaves(self.network.shapes):
            raise InputError("layers: there is nothing to learn: parameters are arrays of floating-point numbers")

    @classmethod
    def for_data(cls, X: np.ndarray, y: np.ndarray, *, hidden: Sequence[int] = (50,), **settings: Any) -> Self:
        """A network with these hidden layers, an input for every column, and one output, or one per class."""
        likelihood = make_likelihood(settings.get("likelihood", "softmax"))
        return cls([X.shape[1], *hidden, likelihood.count_outputs(y)], **settings)

    @property
    def network(self) -> Dense | Apply:
        if isinstance(self.layers, tuple):
            return Dense(self.layers, self.activation)
        if isinstance(self.layers, eqx.Module):
            return Apply(_call, self.layers, by_row=True)
        return Apply(self.layers, self.params, by_row=False)

    @property
    def likelihood_of_targets(self) -> NetworkLikelihood:
        """p(y | f), with f the outputs for a row."""
        return make_likelihood(self.likelihood, self.heads)

    @property
    def layered(self) -> bool:  # type: ignore[override]
        return isinstance(self.layers, tuple)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float32)

    @property
    def hyper(self) -> Hyper:
        return {"prior_scale": float(self.prior_scale), **self.likelihood_of_targets.hyper(self.noise)}

    def natural_prior(self, hyper: Hyper) -> Family:
        precision = 1 / jnp.asarray(hyper["prior_scale"], self.dtype) ** 2
        shapes = self.network.shapes
        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, self.dtype), shapes)
        return MeanField(zeros, jax.tree.map(lambda a: jnp.broadcast_to(precision, a.shape), shapes))

    @property
    def start(self) -> Family | None:
        if self.given_prior is not None:
            return None
        return MeanField.from_moments(self.network.start(self.init_seed), np.float32(self.start_scale))

    def design(self, site: int | None, X: Any) -> np.ndarray:
        array = as_numbers(site, "X", X, self.dtype)
        if isinstance(self.layers, tuple) and (array.ndim != 2 or array.shape[1] != self.layers[0]):
            raise ShardError(site, "X", f"expected {self.layers[0]} features per row, got shape {array.shape}")
        if array.ndim < 2:
            raise ShardError(site, "X", f"expected rows, got shape {array.shape}")
        return array

    def shard(self, site: int, raw: Any) -> Shard:
        shard = Predictor.shard(self, site, raw)
        X, y = shard.data
        f = jax.eval_shape(self.network, self.network.shapes, X[:1])
        if f.ndim != 2:
            raise InputError(f"layers: expected outputs of shape [rows, outputs], got {f.shape}")
        targets = self.likelihood_of_targets.check_targets(site, y, f.shape[1])
        return eqx.tree_at(lambda s: s.data, shard, Rows(X, targets))

    def targets(self, site: int, y: np.ndarray) -> np.ndarray:
        return y

    def predictors(self, params: Any, X: Array) -> Array:
        network, rows = self.network, len(X)
        if self.layered or rows <= ROWS_AT_ONCE:
            return network(params, X)
        parts = -(-rows // ROWS_AT_ONCE)
        padded = jnp.concatenate([X, X[: parts * ROWS_AT_ONCE - rows]]).reshape(parts, ROWS_AT_ONCE, *X.shape[1:])
        f = jax.lax.map(lambda part: network(params, part), padded)
        return f.reshape(-1, *f.shape[2:])[:rows]

    def draws(self, q: Any, X: Array) -> Callable[[Array], Array]:
        network = self.network
        if not isinstance(network, Dense):
            return super().draws(q, X)
        first = network.moments_along(q, X)
        return lambda key: network.draw(q, first, key)

    def pointwise(self, f: Array, y: Array, hyper: Hyper) -> Scalar:
        return self.likelihood_of_targets.log_prob(f, y, hyper)

    def sample_targets(self, f: Array, hyper: Hyper, key: Array, like: Array) -> Array:
        return self.likelihood_of_targets.sample(f, hyper, key, like)

    def response(self, f: Array) -> Array:
        return self.likelihood_of_targets.response(f)

    def classifies(self, response: np.ndarray) -> bool:
        return self.likelihood_of_targets.classifies

    def predictive_variance(self, q: Any, X: Array, hyper: Hyper) -> Array:
        if self.likelihood_of_targets.classifies:
            return super().predictive_variance(q, X, hyper)
        return _spread(self, q, X) + hyper["noise"] ** 2

    def predict(self, response: np.ndarray) -> np.ndarray:
        return self.likelihood_of_targets.decide(response)

    def score(self, response: np.ndarray, y: np.ndarray) -> dict[str, float]:
        return self.likelihood_of_targets.score(response, y)


@eqx.filter_jit
def _spread(model: Network, q: Any, X: Array) -> Array:
    """The variance of what is predicted, over draws of the parameters."""
    draw = model.draws(q, X)
    return jnp.var(
        jax.lax.map(lambda key: model.response(draw(key)), jax.random.split(jax.random.key(1), DRAWS)), axis=0
    )
