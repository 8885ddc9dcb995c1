"""Networks of any architecture: rows on the last axis against `jax.vmap`, messages against autodiff, and learning."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.datasets import load_digits

import partita as pt
from partita.errors import InputError
from partita.expectations import DrawnFisher, GaussNewton
from partita.families import MeanField
from partita.models import Network
from partita.models.rows_last import apply_to_rows, map_over_rows
from partita.predictive import expected_response
from partita.shards import padded

KEYS = jax.random.split(jax.random.key(5), 12)
GENERATOR = np.random.default_rng(4)


class Sequence(eqx.Module):
    """Layers and functions, one after the other, on an image of 8 × 8."""

    layers: list

    def __init__(self, *layers):
        self.layers = list(layers)

    def __call__(self, row):
        x = row.reshape(1, 8, 8)
        for layer in self.layers:
            x = layer(x)
        return x


class Residual(eqx.Module):
    """x + layer(x)."""

    layer: eqx.Module

    def __call__(self, x):
        return x + jax.nn.gelu(self.layer(x))


class Attention(eqx.Module):
    """Rows of the image attend to each other."""

    embed: eqx.nn.Linear
    attention: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm
    last: eqx.nn.Linear

    def __init__(self):
        self.embed = eqx.nn.Linear(8, 8, key=KEYS[0])
        self.attention = eqx.nn.MultiheadAttention(2, 8, key=KEYS[1])
        self.norm = eqx.nn.LayerNorm(8)
        self.last = eqx.nn.Linear(64, 10, key=KEYS[2])

    def __call__(self, row):
        x = jax.vmap(self.embed)(row.reshape(8, 8))
        x = jax.vmap(self.norm)(x + self.attention(x, x, x))
        return self.last(x.ravel())


class Recurrent(eqx.Module):
    """Reads the image line by line."""

    cell: eqx.nn.GRUCell
    last: eqx.nn.Linear

    def __init__(self):
        self.cell, self.last = eqx.nn.GRUCell(8, 20, key=KEYS[0]), eqx.nn.Linear(160, 10, key=KEYS[1])

    def __call__(self, row):
        def read(state, line):
            state = self.cell(line, state)
            return state, state

        _, states = jax.lax.scan(read, jnp.zeros(20), row.reshape(8, 8))
        return self.last(jnp.ravel(states))


class Shuffled(eqx.Module):
    """Arrays of whole numbers, functions and settings are no parameters."""

    order: jax.Array
    mask: jax.Array
    last: eqx.nn.Linear
    scale: float = 2.0

    def __call__(self, row):
        return self.last(self.scale * jnp.where(self.mask, row[self.order], 0))


def conv(*sizes, number=0, dimensions=2, **settings):
    return eqx.nn.Conv(dimensions, *sizes, key=KEYS[number], **settings)


def linear(inputs):
    return eqx.nn.Linear(inputs, 10, key=KEYS[11])


LEARNERS = {
    "convolution": Sequence(
        conv(1, 6, 3), jax.nn.relu, eqx.nn.MaxPool2d(2, 2), conv(6, 12, 2, number=1), jax.nn.relu, jnp.ravel, linear(48)
    ),
    "normalisation": Sequence(
        conv(1, 6, 3, stride=2),
        eqx.nn.GroupNorm(2, 6),
        jax.nn.relu,
        jnp.ravel,
        eqx.nn.LayerNorm(54),
        linear(54),
    ),
    "residual": Sequence(conv(1, 6, 3, stride=2), Residual(conv(6, 6, 3, number=1, padding=1)), jnp.ravel, linear(54)),
    "attention": Attention(),
    "recurrent": Recurrent(),
}
MODULES = {
    **LEARNERS,
    "padded, with strides and dilation": Sequence(
        conv(1, 4, 3, padding=((2, 0), (1, 3)), stride=(2, 1), dilation=(1, 2)), jax.nn.tanh, jnp.ravel
    ),
    "groups": Sequence(conv(1, 4, 3), conv(4, 6, (2, 3), number=1, groups=2, padding="SAME"), jnp.ravel),
    "transposed": Sequence(
        conv(1, 4, 3, stride=2), eqx.nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, key=KEYS[1]), jnp.ravel
    ),
    "one dimension": Sequence(lambda x: x[0], conv(8, 5, 3, dimensions=1), eqx.nn.AvgPool1d(2, 1), jnp.ravel),
    "three dimensions": Sequence(lambda x: x.reshape(1, 4, 4, 4), conv(1, 2, 2, dimensions=3), jnp.ravel),
    "pooling": Sequence(
        eqx.nn.MaxPool2d(3, 2, padding=1), eqx.nn.AvgPool2d(2, 1), conv(1, 2, 1), eqx.nn.AdaptiveAvgPool2d(2), jnp.ravel
    ),
    "whole numbers": Shuffled(np.arange(64)[::-1].copy(), np.arange(64) % 3 > 0, linear(64)),
    "the same for all rows": Sequence(lambda x: jnp.arange(3.0) + 0 * KEYS.shape[0], jax.nn.relu),
}
ROWS = GENERATOR.normal(size=(6, 64)).astype(np.float32)


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_one_row_are_those_of_many(name):
    learnt, rest = eqx.partition(MODULES[name], eqx.is_inexact_array)

    def one(params, row):
        return eqx.combine(params, rest)(row)

    def total(run):
        return jax.jit(jax.value_and_grad(lambda params: jnp.sum(jnp.sin(run(params)))))(learnt)

    expected, actual = jax.vmap(one, (None, 0))(learnt, ROWS), map_over_rows(one, learnt, ROWS)
    assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    wanted, found = total(lambda p: jax.vmap(one, (None, 0))(p, ROWS)), total(lambda p: map_over_rows(one, p, ROWS))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_functions_of_many_rows_keep_their_layout():
    def apply(params, X):
        x = X.reshape(-1, 8, 8, 1)
        x = jax.lax.conv_general_dilated(x, params, (1, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID").reshape(len(X), -1)

    params = GENERATOR.normal(size=(3, 3, 1, 5)).astype(np.float32)
    assert_allclose(apply_to_rows(apply, params, ROWS), apply(params, ROWS), rtol=1e-4, atol=1e-5)
    slopes = [jax.grad(lambda p, r=run: jnp.sum(r(p) ** 2))(params) for run in (
        lambda p: apply(p, ROWS), lambda p: apply_to_rows(apply, p, ROWS))]  # fmt: skip
    assert_allclose(*slopes, rtol=1e-3, atol=1e-3)


def test_many_rows_go_through_a_network_in_parts():
    model = Network(LEARNERS["recurrent"])
    X = GENERATOR.normal(size=(1203, 64)).astype(np.float32)
    params = model.start.location
    assert_allclose(model.predictors(params, X), jax.vmap(LEARNERS["recurrent"])(X), rtol=1e-4, atol=1e-5)


def with_dropout(p, inference=False):
    return Sequence(jnp.ravel, eqx.nn.Dropout(p, inference=inference), linear(64))


def test_layers_that_look_beyond_a_row_are_refused():
    with pytest.raises(InputError, match=r"^layers: .* as BatchNorm does, .* use LayerNorm or GroupNorm"):
        Network(Sequence(conv(1, 4, 3), eqx.nn.BatchNorm(4, "batch", mode="batch")))
    with pytest.raises(InputError, match=r"^layers: Dropout draws at random .*inference_mode"):
        Network(with_dropout(0.5))
    with pytest.raises(InputError, match="^layers: there is nothing to learn"):
        Network(Sequence(jnp.ravel))
    with pytest.raises(InputError, match="^layers: there is nothing to learn"):
        Network(lambda params, X: X @ params, params=np.ones((3, 2), int))


def test_more_than_one_array_of_outputs_is_refused():
    model = Network(Sequence(jnp.ravel, linear(64), lambda x: (x, x)))
    with pytest.raises(InputError, match="^layers: expected one array of outputs, got 2"):
        model.shard(0, (ROWS, np.arange(6)))


@pytest.mark.parametrize("module", [with_dropout(0.0), with_dropout(0.5, inference=True)])
def test_dropout_that_drops_nothing_is_taken(module):
    assert Network(module).predictors(Network(module).start.location, ROWS).shape == (6, 10)


def test_whole_numbers_among_parameters_stay():
    def apply(params, X):
        return X[:, params["columns"]] @ params["weights"]

    model = Network(apply, params={"weights": np.ones((2, 3)), "columns": np.array([1, 0])})
    assert [leaf.shape for leaf in jax.tree.leaves(model.start.location)] == [(2, 3)]
    assert_allclose(
        model.predictors(model.start.location, ROWS[:, :2]), np.tile(ROWS[:, :2].sum(1)[:, None], 3), rtol=1e-5
    )


TARGETS = {
    "softmax": (np.arange(80) % 3, {}),
    "bernoulli": (np.arange(80) % 2, {}),
    "gaussian": (GENERATOR.normal(size=(80, 2)), {"noise": 0.7}),
}


def problem(likelihood, hidden=4):
    """A dense network with a function's face, a density over its weights and weighted, padded rows."""
    y, settings = TARGETS[likelihood]
    dense = Network(
        [3, hidden, {"softmax": 3, "bernoulli": 1, "gaussian": 2}[likelihood]], likelihood=likelihood, **settings
    )
    generator = np.random.default_rng(1)
    location = jax.tree.map(lambda a: generator.normal(0, 0.7, a.shape).astype(np.float32), dense.start.location)
    scale = jax.tree.map(lambda a: generator.uniform(0.02, 0.2, a.shape).astype(np.float32), location)
    X, weights = generator.normal(size=(80, 3)), generator.choice([0.0, 0.5, 1.0, 2.0], 80)
    shard = padded(dense.shard(0, (X, y, weights)), 96)
    model = Network(
        lambda params, rows: dense.network(params, rows), params=location, likelihood=likelihood, **settings
    )
    return dense, model, MeanField.from_moments(location, scale), shard


def average(expectation, model, q, shard, draws):
    """Means and standard errors of values, gradients and precisions of many messages, each as one vector."""

    def one(key):
        value, found = expectation.message(model, q, shard, model.hyper, key)
        slope = jax.tree.map(lambda h, p, m: h - p * m, found.precision_times_location, found.precision, q.location)
        return value, *(
            jnp.concatenate([a.ravel() for a in jax.tree.leaves(tree)]) for tree in (slope, found.precision)
        )

    found = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(jax.random.key(3), draws))
    return [(np.mean(a, axis=0), np.std(np.asarray(a), axis=0, ddof=1) / np.sqrt(draws)) for a in found]


@pytest.mark.parametrize("likelihood", TARGETS)
def test_messages_are_those_of_a_dense_network_on_average(likelihood):
    """However rows are divided; precisions only where weights hardly vary, because noise of layers has less of it."""
    dense, model, q, shard = problem(likelihood)
    narrow = MeanField.from_moments(q.location, np.float32(1e-3))
    for density, compared, rows in ((q, 2, 2), (narrow, 3, 50)):
        reference = average(GaussNewton(), dense, density, shard, 1000)
        found = average(DrawnFisher(rows_at_once=rows), model, density, shard, 1000)
        for (a, error_a), (b, error_b) in list(zip(found, reference, strict=True))[:compared]:
            assert np.all(np.abs(a - b) < 5 * np.hypot(error_a, error_b) + 1e-3 * np.abs(b))


def test_a_message_is_the_average_gradient_and_the_exact_fisher_information():
    """At weights that hardly vary, by autodiff of every row, summed over all labels; parts hold five rows."""
    _, model, q, shard = problem("softmax")
    q = MeanField.from_moments(q.location, np.float32(1e-4))
    X, weights = shard.data.X, shard.weights

    def log_probs(params):
        return jax.nn.log_softmax(model.predictors(params, X))

    each = jax.jacrev(log_probs)(q.location)
    p = np.exp(log_probs(q.location))
    fisher = [np.einsum("n,nk,nk...->...", weights, p, np.asarray(leaf) ** 2) for leaf in jax.tree.leaves(each)]
    slope = jax.grad(lambda params: weights @ model.log_prob(params, shard.data, {}))(q.location)
    (value, _), (gradient, _), (precision, error) = average(DrawnFisher(), model, q, shard, 4000)
    assert_allclose(value, weights @ model.log_prob(q.location, shard.data, {}), rtol=1e-3)
    assert_allclose(gradient, np.concatenate([np.ravel(a) for a in jax.tree.leaves(slope)]), rtol=0.01, atol=0.01)
    assert np.all(np.abs(precision - np.concatenate([np.ravel(a) for a in fisher])) < 5 * error + 1e-4)


def test_fewer_parts_for_precisions_change_their_noise_and_nothing_else():
    _, model, q, shard = problem("softmax")
    every, fewer = (average(DrawnFisher(rows_at_once=1, fewer=n), model, q, shard, 2000) for n in (1, 4))
    for (a, error_a), (b, error_b) in zip(every, fewer, strict=True):
        assert np.all(np.abs(a - b) < 5 * np.hypot(error_a, error_b) + 1e-6)
    assert np.median(fewer[2][1] / every[2][1]) > 1.2


def test_what_is_expected_of_rows_is_in_their_order():
    _, model, q, shard = problem("gaussian")
    q = MeanField.from_moments(q.location, np.float32(1e-5))
    for rows in (1, 15, 83):
        data = jax.tree.map(lambda a, n=rows: a[:n], shard.data)
        values = DrawnFisher(rows_at_once=4)(model, q, data, {"noise": 0.7}, jax.random.key(0))
        assert_allclose(values, model.log_prob(q.location, data, {"noise": 0.7}), rtol=1e-2, atol=1e-2)


def balanced():
    """Sixty images of each of five digits, sorted by digit, and the others."""
    digits = load_digits(n_class=5)
    X, y = (digits.data / 16).astype(np.float32), digits.target
    first = np.concatenate([np.flatnonzero(y == label)[:60] for label in range(5)])
    return (X[first], y[first]), (np.delete(X, first, axis=0), np.delete(y, first))


@pytest.mark.parametrize("name", LEARNERS)
def test_one_class_per_site_is_learnt_as_well_as_shuffled_rows(name):
    (X, y), (held_out, labels) = balanced()
    model, errors = Network(LEARNERS[name]), []
    for order in (np.arange(300), np.random.default_rng(0).permutation(300)):
        sites = [(X[part], y[part]) for part in np.split(order, 5)]
        *_, last = pt.events(model, sites, schedule=pt.schedules.Synchronous(40))
        response = expected_response(model, last.posterior, held_out, 16)
        errors.append(np.mean(response.argmax(axis=1) != labels))
    assert max(errors) < 0.25
    assert abs(errors[0] - errors[1]) < 0.1
