"""Memories and replay (Sections 2.1, 5 and 7.1): sites like any other, one refined again, one whose rows are drawn."""

import numpy as np
import pytest
from scipy.special import expit

import partita as pt
from partita.datasets import hold_out, random_rows
from partita.expectations import GaussHermite
from partita.free_energy import LocalProblem
from partita.models import LinearRegression, LogisticRegression, prior_of
from partita.predictive import Replay
from partita.server.schedules import OnePass, Rehearsal, Sequential
from partita.site.worker import load_shards
from partita.solvers import FixedPoint

TASKS = 4


@pytest.fixture(scope="module")
def tasks():
    """Rows sorted by an input, so that tasks differ."""
    generator = np.random.default_rng(2)
    X = generator.normal(size=(160, 3)) @ np.array([[1.0, 0.8, 0.3], [0.0, 0.6, 0.5], [0.0, 0.0, 0.7]])
    y = (expit(X @ [1.5, -2.0, 1.0]) > generator.uniform(size=160)).astype(float)
    order = np.argsort(X[:, 0])
    return [(X[rows], y[rows]) for rows in np.array_split(order, TASKS)]


def test_memories_are_refined_again_until_what_they_say_is_what_their_rows_say_now(tasks):
    """A factor is right where it is its site's message at the posterior: a memory's is, that of a task is not."""
    model = LogisticRegression(3, intercept=False, prior_scale=3.0)
    settings = {"solver": FixedPoint(steps=30), "damping": 1.0}
    generator = np.random.default_rng(0)
    parts = [hold_out(task, random_rows(task[0], 16, generator)) for task in tasks]
    sites = [*(rest for _, rest in parts), *(memory for memory, _ in parts)]
    again = pt.fit(model, sites, schedule=Rehearsal(tasks=TASKS, passes=3), **settings)
    once = pt.fit(model, sites, schedule=OnePass(), **settings)
    assert [row["site"] for row in again.history][:9] == [0, 4, 4, 4, 1, 4, 5, 4, 5]
    shards = load_shards(model, sites)

    def off(result, site):
        """How far a factor is from its message."""
        problem = LocalProblem(model, GaussHermite(), result.posterior, shards[site], model.hyper)
        _, message = problem.message(result.posterior, None)
        return np.abs(np.asarray(message.precision - result.factors[site].precision)).max()

    with pt.foundation.runtime.precision(np.float64):
        assert off(again, 4) < 0.02 * off(once, 4)
        assert off(again, 0) > 10 * off(again, 4)


def test_replayed_rows_are_those_of_the_predictive_density():
    model = LinearRegression(2, noise=0.5, intercept=False)
    posterior = pt.families.Gaussian.from_moments(np.array([1.0, -2.0]), np.array([[0.3, 0.1], [0.1, 0.2]]))
    X = np.random.default_rng(0).normal(size=(3, 2))
    drawn = np.array([Replay(model, posterior, X, np.zeros(1), seed)()[1] for seed in range(600)])
    deviation = np.sqrt(np.einsum("na,ab,nb->n", X, posterior.covariance, X) + 0.25)
    np.testing.assert_allclose(drawn.mean(axis=0), X @ posterior.location, atol=0.17 * deviation.max())
    np.testing.assert_allclose(drawn.std(axis=0), deviation, rtol=0.12)
    assert np.array_equal(drawn[3], Replay(model, posterior, X, np.zeros(1), 3)()[1])


def test_a_replayed_site_leaves_what_was_known_on_average():
    """Its factor is refined on drawn rows: of a conjugate model it keeps its precision, and moves without a bias."""
    generator = np.random.default_rng(1)
    X = generator.normal(size=(40, 2))
    y = X @ [1.0, -1.0] + 0.5 * generator.normal(size=40)
    model = LinearRegression(2, noise=0.5, intercept=False, prior_scale=100.0)
    old = pt.fit(model, [(X, y)], schedule=OnePass())
    prior = prior_of(model, model.hyper)

    def replayed(seed):
        shard = Replay(model, old.posterior, X, y, seed)
        settings = {"solver": FixedPoint(step_size=1.0), "schedule": Sequential(1), "damping": 1.0}
        return pt.fit(model, [shard], factors=[old.posterior / prior], **settings).posterior

    found = [replayed(seed) for seed in range(40)]
    np.testing.assert_allclose(found[0].precision, old.posterior.precision, rtol=1e-6)
    moves = np.array([q.location - old.posterior.location for q in found])
    # Twice the posterior's variance: of the weights that were drawn, and of their noise.
    assert np.all(np.abs(moves.mean(axis=0)) < 4 * np.sqrt(2 * np.diag(old.posterior.covariance) / 40))
    assert np.all(moves.std(axis=0) > 0.5 * old.posterior.scale)


def test_classes_are_replayed_as_they_are_predicted(tasks):
    X, y = tasks[0]
    model = LogisticRegression(3, intercept=False)
    result = pt.fit(model, [tasks[0]])
    drawn = np.array([Replay(model, result.posterior, X, y, seed)()[1] for seed in range(200)])
    assert set(np.unique(drawn)) == {0.0, 1.0}
    np.testing.assert_allclose(drawn.mean(axis=0), result.predict_proba(X)[:, 1], atol=0.15)
