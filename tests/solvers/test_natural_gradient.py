"""Natural gradients against the exact mean-field optimum of linear regression; mini-batches row by row."""

from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import partita as pt
from partita.errors import InputError
from partita.expectations import GaussNewton, MonteCarlo
from partita.families import Gaussian, MeanField
from partita.free_energy import LocalProblem
from partita.models import Network
from partita.models.network import Layer
from partita.shards import padded
from partita.solvers import NaturalGradient, Outcome, SolverInfo
from partita.solvers.base import Batches

GENERATOR = np.random.default_rng(0)
NOISE = 0.5
X = (GENERATOR.normal(size=(600, 3)) * [1.0, 0.5, 2.0]).astype(np.float32)
X[:, 1] += 0.3 * X[:, 0]
Y = (X @ [1.0, -2.0, 0.5] + 0.7 + NOISE * GENERATOR.normal(size=600)).astype(np.float32)
MODEL = Network([3, 1], likelihood="gaussian", noise=NOISE)
SHARD = MODEL.shard(0, (X, Y))


def cavity() -> MeanField:
    """Any that is proper: with a mean and a precision of its own for every parameter."""
    generator = np.random.default_rng(1)
    shapes = Layer((3, 1), (1,))
    location = Layer(*(generator.normal(size=shape).astype(np.float32) for shape in shapes))
    scale = Layer(*(generator.uniform(0.02, 0.2, shape).astype(np.float32) for shape in shapes))
    return MeanField.from_moments((location,), (scale,))


def flat(layers) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(layers)]).astype(float)


def optimum(prior: MeanField) -> tuple[np.ndarray, np.ndarray]:
    """Location and precision: the normal equations, and their diagonal."""
    A = np.column_stack([X, np.ones(len(X))]).astype(float)
    P = np.diag(flat(prior.precision)) + A.T @ A / NOISE**2
    return np.linalg.solve(P, flat(prior.precision_times_location) + A.T @ Y / NOISE**2), np.diag(P)


def refined(solver, expectation=None, shard=SHARD) -> tuple[MeanField, SolverInfo]:
    prior = cavity()
    problem = LocalProblem(MODEL, expectation or GaussNewton(), prior, shard, {"noise": np.float32(NOISE)})
    start = MeanField.from_moments((Layer(np.zeros((3, 1), np.float32), np.zeros(1, np.float32)),), np.float32(0.1))
    return eqx.filter_jit(solver.refine)(problem, start, start / prior, key=jax.random.key(0))


def test_the_cavity_matters():
    """So that what follows means something: neither the likelihood alone nor the cavity alone has this optimum."""
    location, precision = optimum(cavity())
    alone = np.linalg.lstsq(np.column_stack([X, np.ones(600)]), Y, rcond=None)[0]
    assert np.sum(np.abs(location - alone) > 0.1) == 3
    assert np.sum(flat(cavity().precision) > 0.04 * precision) == 3
    assert np.all(flat(cavity().precision) < 0.2 * precision)


@pytest.mark.parametrize(
    ("settings", "expectation", "tolerance"),
    [
        ({"learning_rate": 0.2, "adaptive": False}, None, 0.03),
        ({"learning_rate": 0.02}, None, 0.03),
        ({"learning_rate": 0.02}, MonteCarlo(4), 0.2),
        ({"learning_rate": 0.2, "adaptive": False, "batch_size": 100}, None, 0.05),
    ],
    ids=["precisions", "adaptive", "Monte Carlo", "mini-batches"],
)
def test_the_mean_field_optimum_is_reached(settings, expectation, tolerance):
    solver = NaturalGradient(**{"batch_size": None, **settings}, steps=2500, precision_rate=0.004)
    q, info = refined(solver, expectation)
    location, precision = optimum(cavity())
    assert_allclose(flat(q.precision), precision, rtol=tolerance)
    assert np.all(np.abs(flat(q.location) - location) < 0.2 / np.sqrt(precision))
    assert Outcome(int(info.outcome)) is Outcome.STEPS_DONE
    assert info.steps == 2500


def test_epochs_are_counted_in_mini_batches():
    assert refined(NaturalGradient(epochs=2, batch_size=250))[1].steps == 6
    assert refined(NaturalGradient(epochs=2, batch_size=None))[1].steps == 2


def test_what_is_not_finite_is_reported_and_not_taken():
    shard = MODEL.shard(0, (X, Y))
    shard.data.X[5, 1] = 1e30
    q, info = refined(NaturalGradient(steps=4, batch_size=None), shard=shard)
    assert Outcome(int(info.outcome)) is Outcome.NOT_FINITE
    assert info.steps == 1
    assert_allclose(flat(q.precision), 100, rtol=1e-4)  # where it started
    assert_allclose(flat(q.location), 0, atol=1e-5)


def test_other_families_are_refused():
    prior = Gaussian.from_moments(np.zeros(2), np.eye(2))
    model = pt.models.LogisticRegression(features=2, intercept=False)
    problem = LocalProblem(model, MonteCarlo(), prior, model.shard(0, (np.ones((2, 2)), np.ones(2))), {})
    with pytest.raises(InputError, match="NaturalGradient: needs a mean-field Gaussian, not a Gaussian"):
        NaturalGradient().refine(problem, prior, prior**0, key=jax.random.key(0))


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate": 0.0},
        {"learning_rate": np.nan},
        {"precision_rate": 0.0},
        {"precision_rate": 1.5},
        {"momentum": -0.1},
        {"momentum": 1.0},
        {"floor": -1.0},
        {"epochs": 0},
        {"steps": 0},
        {"steps": 1.5},
        {"batch_size": 0},
    ],
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(InputError, match=f"^NaturalGradient: {next(iter(settings))}"):
        NaturalGradient(**settings)


def passes(rows: int, size: int, blocks: bool, number: int = 3, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    """The rows of every batch of some passes, and the weights that they come with."""
    model = Network([1, 1], likelihood="gaussian")
    shard = padded(model.shard(0, (np.arange(rows, dtype=float)[:, None], np.zeros(rows))), rows + 5)
    problem = LocalProblem(model, GaussNewton(), model.start, shard, {})
    batches = Batches(problem, size, jax.random.key(seed), blocks)
    take, order, seen, weights = eqx.filter_jit(batches.take), batches.start(), [], []
    for index in range(number * int(batches.per_epoch)):
        local, order = take(jnp.asarray(index), order)
        seen.append(np.asarray(local.shard.data.X)[:, 0].astype(int))
        weights.append(np.asarray(local.shard.weights))
    return seen, np.array(weights)


@pytest.mark.parametrize("blocks", [False, True])
def test_every_pass_visits_every_row_once(blocks):
    seen, weights = passes(24, 4, blocks)
    assert len(seen) == 18
    for epoch in (seen[:6], seen[6:12], seen[12:]):
        assert sorted(np.concatenate(epoch)) == list(range(24))
    assert np.all(weights == 6)
    first, second = (np.concatenate(epoch) for epoch in (seen[:6], seen[6:12]))
    assert not np.array_equal(first, second)
    again, other = passes(24, 4, blocks)[0], passes(24, 4, blocks, seed=1)[0]
    assert np.array_equal(seen, again)
    assert not np.array_equal(seen, other)


def test_blocks_keep_rows_together_and_rows_are_mixed():
    for batch in passes(24, 4, blocks=True)[0]:
        assert batch[0] % 4 == 0
        assert np.all(np.diff(batch) == 1)
    assert sum(np.all(np.diff(batch) == 1) for batch in passes(24, 4, blocks=False)[0]) < 3


def test_a_last_batch_that_is_not_full_wraps_around():
    seen, weights = passes(10, 4, blocks=False)
    assert len(seen) == 9
    for epoch in (seen[:3], seen[3:6], seen[6:]):
        visits = np.bincount(np.concatenate(epoch), minlength=10)
        assert visits.min() == 1
        assert visits.sum() == 12
        assert all(len(set(batch)) == 4 for batch in epoch)
    assert_allclose(weights, 2.5)
    assert any(not np.array_equal(a, b) for a, b in pairwise(np.reshape(seen, (3, 12))))


@pytest.mark.parametrize("blocks", [False, True])
def test_a_batch_larger_than_the_shard_has_all_its_rows(blocks):
    seen, weights = passes(3, 8, blocks)
    assert len(seen) == 3
    assert all(set(batch) == {0, 1, 2} for batch in seen)
    assert_allclose(weights.sum(axis=1), 3)
