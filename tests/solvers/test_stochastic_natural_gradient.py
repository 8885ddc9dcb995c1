"""Stochastic natural gradients: the paper's step, what happens where it is improper, and rates that fall."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import partita as pt
from partita.errors import InputError
from partita.expectations import GaussHermite
from partita.families import MeanField
from partita.foundation.runtime import on_host, precision
from partita.free_energy import LocalProblem
from partita.models import LogisticRegression, ProbitRegression, prior_of
from partita.site.worker import load_shards
from partita.solvers import (
    FixedPoint,
    Gradient,
    NaturalGradient,
    Outcome,
    RobbinsMonro,
    StochasticNaturalGradient,
)

KEY = jax.random.key(3)
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(60, 2))
Y = (X @ [1.0, -1.5] + GENERATOR.normal(size=60) > 0).astype(float)


@pytest.fixture(autouse=True)
def in_double_precision():
    with precision(np.float64):
        yield


class Bump(ProbitRegression):
    """log p(y | f) = 20 exp(-f² / 2), which is no log-concave function of f."""

    def pointwise(self, f, y, hyper):
        return 20 * jnp.exp(-0.5 * f**2)


def problem(model=None, data=(X, Y)) -> LocalProblem:
    model = LogisticRegression(2, intercept=False, posterior="mean-field") if model is None else model
    (shard,) = load_shards(model, [data])
    return LocalProblem(model, GaussHermite(), prior_of(model, model.hyper), shard, model.hyper)


def test_a_step_is_the_papers():
    """(1 - ρ) η_q + ρ (η_0 + L d/dμ E_q[log p(y_l)]), where the message of a mini-batch is L times that of its rows."""
    local = problem()
    q = MeanField.from_moments(np.array([0.3, -0.2]), np.array([0.5, 0.7]))
    solver = StochasticNaturalGradient(0.2, steps=1, batch_size=20)
    refined, info = eqx.filter_jit(solver.refine)(local, q, q / local.cavity, key=KEY)
    # The same mini-batch by hand: the rows of the first batch of this key, without their factor of L.
    index = np.asarray(local.shard.shuffled(jax.random.fold_in(jax.random.fold_in(KEY, 0), 0)))[:20]
    rows = local.on(load_shards(local.model, [(X[index], Y[index])])[0])
    _, message = rows.message(q, KEY)
    L = 3
    for name in ("precision_times_location", "precision"):
        old, prior, rest = (getattr(density, name) for density in (q, local.cavity, message))
        assert_allclose(getattr(refined, name), 0.8 * old + 0.2 * (prior + L * rest), rtol=1e-12)
    assert Outcome(int(info.outcome)) is Outcome.STEPS_DONE


def test_coordinates_that_would_be_improper_stay_and_are_counted():
    """Of two weights one sits where the likelihood is convex; the other takes its step whole."""
    model = Bump(2, intercept=False, posterior="mean-field")
    local = problem(model, (np.eye(2), np.ones(2)))
    q = MeanField.from_moments(np.array([1.7, 0.1]), np.array([0.1, 0.1]))
    solver, rate = StochasticNaturalGradient(0.95, steps=1, batch_size=None), 0.95
    _, message = local.message(q, KEY)
    target = local.cavity * message
    whole = (1 - rate) * q.precision + rate * target.precision
    assert whole[0] < 0 < whole[1]
    end = eqx.filter_jit(solver.advance)(local, solver.begin(local, q, q / local.cavity), 1, key=KEY)
    assert int(end.held) == 1
    assert_allclose(end.posterior.precision, [q.precision[0], whole[1]], rtol=1e-12)
    assert_allclose(end.posterior.location[0], 1.7, rtol=1e-12)
    moved = (1 - rate) * q.precision_times_location + rate * target.precision_times_location
    assert_allclose(end.posterior.precision_times_location[1], moved[1], rtol=1e-12)
    _, info = eqx.filter_jit(solver.refine)(local, q, q / local.cavity, key=KEY)
    assert Outcome(int(info.outcome)) is Outcome.SHORTENED


def test_a_fixed_point_at_a_rate_says_where_it_took_less():
    model = Bump(2, intercept=False, posterior="mean-field")
    local = problem(model, (np.eye(2), np.ones(2)))
    q = MeanField.from_moments(np.array([1.7, 0.1]), np.array([0.1, 0.1]))

    def outcome(step_size):
        return Outcome(
            int(eqx.filter_jit(FixedPoint(step_size=step_size).refine)(local, q, q / local.cavity, key=KEY)[1].outcome)
        )

    assert [outcome(step) for step in (0.95, 0.2)] == [Outcome.SHORTENED, Outcome.STEPS_DONE]


def test_what_was_shortened_is_a_problem_in_the_history():
    model = Bump(1, intercept=False, posterior="mean-field", prior_scale=0.5)
    start = MeanField.from_moments(np.array([1.7]), np.array([0.05]))
    settings = {"schedule": pt.schedules.Synchronous(1), "damping": 1.0, "start": start}
    with pytest.warns(RuntimeWarning, match="less than whole steps at its rate"):
        result = pt.fit(model, [(np.ones((5, 1)), np.ones(5))], solver=FixedPoint(step_size=1.0, steps=2), **settings)
    assert "less than whole steps at its rate" in result.history[-1]["problem"]


STEPPED = {
    "gradient": Gradient("adam", 0.02, epochs=4, batch_size=20, tolerance=0.0),
    "gradient, whole shard": Gradient("lbfgs", epochs=9),
    "natural gradient": NaturalGradient(0.02, epochs=4, batch_size=20),
    "stochastic natural gradient": StochasticNaturalGradient(RobbinsMonro(0.2), epochs=4, batch_size=20),
}


@pytest.mark.parametrize("name", STEPPED)
def test_stopping_on_the_way_changes_nothing(name):
    """To the last bit: what is carried is all there is."""
    solver, local = STEPPED[name], problem()
    q = local.cavity
    whole, _ = eqx.filter_jit(solver.refine)(local, q, q**0, key=KEY)
    advance = eqx.filter_jit(solver.advance)
    carried = solver.begin(local, q, q**0)
    for end in (1, 4, 5, 100):
        carried = on_host(advance(local, carried, jnp.minimum(end, solver.limit(local)), key=KEY))
        looked_at = solver.reached(local, carried)
        assert looked_at.is_proper()
    for ours, theirs in zip(jax.tree.leaves(looked_at), jax.tree.leaves(whole), strict=True):
        assert_array_equal(ours, theirs)


@pytest.mark.parametrize("settings", [{"power": 0.5}, {"power": 1.1}, {"first": 0.0}, {"delay": -1.0}], ids=str)
def test_rates_that_do_not_average_out_are_refused(settings):
    with pytest.raises(InputError, match="RobbinsMonro"):
        RobbinsMonro(**settings)
