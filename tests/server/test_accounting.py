"""The history's free energy against direct evaluation, and the bound that it claims."""

import numpy as np
import pytest

import partita as pt
from partita.server.schedules import Asynchronous, Sequential, Synchronous

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(120, 3))
X[:, 1] += 0.8 * X[:, 0]
TARGETS = {
    "linear": X @ [1.0, -1.0, 0.5] + 0.3 * GENERATOR.normal(size=120),
    "logistic": (GENERATOR.random(120) < 1 / (1 + np.exp(-2 * X[:, 0] + X[:, 2]))).astype(float),
    "poisson": GENERATOR.poisson(np.exp(0.5 * X[:, 0] - 0.3 * X[:, 1])).astype(float),
}
MODELS = {
    "linear": pt.models.LinearRegression(features=3, noise=0.5),
    "linear, mean-field": pt.models.LinearRegression(features=3, noise=0.5, posterior="mean-field"),
    "logistic": pt.models.LogisticRegression(features=3),
    "logistic, mean-field": pt.models.LogisticRegression(features=3, posterior="mean-field"),
    "poisson": pt.models.PoissonRegression(features=3),
}
SCHEDULES = {
    "sequential, 0.1": (Sequential(passes=6), 0.1),
    "sequential, 0.3": (Sequential(passes=6), 0.3),
    "sequential, auto": (Sequential(passes=6), "auto"),
    "asynchronous": (Asynchronous(updates=36), 0.3),
    "some at a time": (Synchronous(rounds=12, participation=0.5), 0.3),
}


def sorted_shards(name):
    """Six sites that differ as much as they can."""
    y = TARGETS[name.split(",")[0]]
    order = np.argsort(y, kind="stable")
    return [(X[part], y[part]) for part in np.array_split(order, 6)]


def compared(name, schedule, damping):
    """What the history says, by how much it may be off, and the free energy of that posterior."""
    model, shards, before = MODELS[name], sorted_shards(name), None
    engine = pt.engines.InProcess(speeds=[1, 2, 3, 1.5, 1.2, 5])
    for event in pt.events(model, shards, schedule=schedule, damping=damping, engine=engine):
        if before is not None and event.free_energy is not None:
            yield event.free_energy, event.free_energy_error, pt.evidence(model, shards, before)
        before = event.posterior


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", MODELS)
def test_the_free_energy_is_within_what_it_says_of_direct_evaluation(name, schedule):
    rows = np.array(list(compared(name, *SCHEDULES[schedule])))
    estimates, errors, exact = rows.T
    assert len(rows) >= 8
    assert np.all(np.abs(estimates - exact) <= errors + 1e-11 * np.abs(exact))
    # Late in a run it is known well, beside how far the free energy has come.
    late = len(rows) // 2
    assert np.median(np.abs(estimates - exact)[late:]) <= 0.07 * (exact.max() - exact.min())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_free_energy_of_a_conjugate_model_is_exact_whatever_was_damped(schedule):
    for estimate, _, exact in compared("linear", *SCHEDULES[schedule]):
        assert estimate == pytest.approx(exact, rel=1e-10)


def test_synchronous_rounds_say_that_they_are_exact():
    for estimate, error, exact in compared("logistic", Synchronous(rounds=5), 0.2):
        assert error == 0
        assert estimate == pytest.approx(exact, rel=1e-10)


def test_the_first_order_is_right_for_a_damped_step():
    """Half the damping, a quarter of the error: what is left out is of second order."""
    errors = []
    for damping in (0.02, 0.01, 0.005):
        model, shards = MODELS["logistic"], sorted_shards("logistic")
        settled = pt.fit(model, shards, schedule=Synchronous(rounds=5))
        run = pt.events(model, shards, schedule=Sequential(passes=2), damping=damping, factors=settled.factors)
        last = [next(run) for _ in range(7)]
        errors.append(abs(last[6].free_energy - pt.evidence(model, shards, last[5].posterior)))
    assert errors[1] <= 0.3 * errors[0]
    assert errors[2] <= 0.3 * errors[1]


def test_the_free_energy_follows_hyperparameters_that_are_learnt():
    """Sites that reported under other hyperparameters are followed there, to first order."""
    model, shards = pt.models.LinearRegression(features=3, noise=1.0), sorted_shards("linear")
    before, seen = None, []
    learn = pt.LearnHyper("noise", first_step=0.02, largest_step=0.02)
    for event in pt.events(model, shards, schedule=Sequential(passes=4), hyper=learn):
        if before is not None and event.free_energy is not None:
            exact = pt.evidence(model, shards, before.posterior, hyper=before.hyper)
            seen.append((event.free_energy - exact, event.free_energy_error, exact))
        before = event
    off, errors, exact = np.array(seen).T
    assert np.all(np.abs(off) <= errors + 1e-9 * np.abs(exact))


def test_a_tally_adds_up_what_every_fold_took():
    model, shards = MODELS["linear"], sorted_shards("linear")
    events = list(pt.events(model, shards, schedule=Asynchronous(updates=18), engine=pt.engines.InProcess()))
    work = [one for event in events for one in event.work]
    assert len(work) == 18
    assert events[-1].seconds == pytest.approx(sum(one.seconds for one in work))
    row = events[-1].row()
    assert row["bytes_up"] == sum(one.bytes_up for one in work)
    # Every update answers a task; tasks that nobody has answered yet were sent as well.
    assert row["bytes_down"] >= sum(one.bytes_down for one in work)
    assert row["messages"] >= 2 * len(work)
    assert row["bytes"] == row["bytes_up"] + row["bytes_down"]
    assert all(one.staleness >= 0 for one in work)
    assert max(one.staleness for one in work) > 0
