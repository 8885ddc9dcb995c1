"""Section 3.4 and Appendix A.6: mini-batches inside one free energy, and random turns of local ones.

Logistic regression with a diagonal Gaussian; the global optimum is found by fixed points on all rows.
"""

import numpy as np
import pytest

import partita as pt
from partita.engines import InProcess
from partita.expectations import GaussHermite
from partita.families import MeanField
from partita.fitting import prepare
from partita.free_energy import LocalProblem
from partita.models import LogisticRegression, prior_of
from partita.server.loop import iterate
from partita.server.rules import Falling, Fixed
from partita.server.schedules import Asynchronous, OnePass, RandomOrder, Synchronous
from partita.site.worker import load_shards
from partita.solvers import FixedPoint, RobbinsMonro, StochasticNaturalGradient

ROWS, BATCHES = 60, 6
MODEL = LogisticRegression(2, intercept=False, prior_scale=2.0, posterior="mean-field")


@pytest.fixture(autouse=True)
def in_double_precision():
    with pt.foundation.runtime.precision(np.float64):
        yield


@pytest.fixture(scope="module")
def data():
    generator = np.random.default_rng(5)
    X = generator.normal(size=(ROWS, 2)) + np.array([0.4, 0.0])
    return X, (X @ [1.0, -1.5] + generator.normal(size=ROWS) > 0).astype(float)


@pytest.fixture(scope="module")
def optimum(data):
    with pt.foundation.runtime.precision(np.float64):
        settings = {"schedule": OnePass(), "damping": 1.0}
        return pt.fit(MODEL, [data], solver=FixedPoint(step_size=0.5, steps=300), **settings).posterior


def parts(data):
    return [tuple(array[i::BATCHES] for array in data) for i in range(BATCHES)]


def inside(data, rate, epochs, seed=0):
    """First scheme, M = 1: shuffled mini-batches of one free energy."""
    solver = StochasticNaturalGradient(rate, epochs=epochs, batch_size=ROWS // BATCHES)
    return pt.fit(MODEL, [data], solver=solver, schedule=Synchronous(1), damping=1.0, seed=seed).posterior


def between(data, damping, passes, seed=0):
    """Second scheme, M = L: fixed mini-batches with factors of their own, in random order."""
    settings = {"schedule": RandomOrder(passes), "solver": FixedPoint(step_size=1.0), "damping": damping}
    return pt.fit(MODEL, parts(data), seed=seed, **settings).posterior


def test_falling_rates_have_the_fixed_point_of_random_turns_and_it_is_the_global_optimum(data, optimum):
    """ "If the first approach employs learning rates that obey the Robbins-Monro conditions, the fixed points will be
    identical to the second approach, and they will correspond to optima of the global free-energy."
    """
    rate = RobbinsMonro(0.2, delay=50.0)
    early, late = (inside(data, rate, epochs).kl(optimum) for epochs in (30, 3000))
    fixed = between(data, Fixed(0.5), 60).kl(optimum)
    falling = between(data, Falling(0.5, delay=50.0), 300).kl(optimum)
    # Nothing is random in the second scheme but who is next: it settles at a fixed rate.
    assert fixed < 1e-12
    assert falling < 1e-6
    # Variances fall as rates do, here by 60.
    assert late < 2e-5
    assert late < early / 10


def drawn(data, optimum, rate, steps):
    """KL from the optimum after so many steps of the first scheme, rows drawn with replacement; mean of six runs."""
    solver = FixedPoint(steps, rate, batch_size=ROWS // BATCHES)
    settings = {"solver": solver, "schedule": Synchronous(1), "damping": 1.0}
    return np.mean([pt.fit(MODEL, [data], seed=seed, **settings).posterior.kl(optimum) for seed in range(6)])


def test_a_fixed_rate_does_not_settle_where_rows_are_drawn(data, optimum):
    """Noise in proportion to the rate is left, however long it runs; less of it where passes are shuffled."""
    short, long = (drawn(data, optimum, 0.008, steps) for steps in (1000, 4000))
    assert short > 1e-3
    assert 0.2 < long / short < 5
    assert 2 < long / drawn(data, optimum, 0.002, 8000) < 9
    # The rows that are left out of one batch are in another one of the same pass.
    assert np.mean([inside(data, 0.008, 1000, seed).kl(optimum) for seed in range(6)]) < long / 10


def test_a_turn_adds_what_is_new_of_a_site_though_the_paper_has_a_minus(data):
    """η_q + ρ (d/dμ E_q[log p(y_m)] - η_m): with the minus of Section 3.4.2 and A.6, q would go away from it."""
    rate, shards = 0.3, parts(data)
    run, arranged = prepare(
        MODEL, shards, options={"schedule": OnePass(), "solver": FixedPoint(step_size=1.0), "damping": rate}
    )
    run.engine.open(run.job(), arranged)
    problems = load_shards(MODEL, shards)
    q = prior_of(MODEL, MODEL.hyper)
    for site, event in enumerate(iterate(run)):
        _, message = LocalProblem(MODEL, GaussHermite(), q, problems[site], MODEL.hyper).message(q, None)
        change = (message / q**0) ** rate  # η_m is zero before a site's first turn
        np.testing.assert_allclose(event.posterior.precision, (q * change).precision, rtol=1e-9)
        with np.errstate(invalid="ignore"):
            assert np.any((q / change).precision < q.precision)
        q = event.posterior


def test_the_first_scheme_removes_an_average_factor_and_the_second_its_own(data):
    """Both are η_q + ρ' (message - what is removed): η_like / L in the first, η_m in the second (Appendix A.6)."""
    rate = 0.1
    q = MeanField.from_moments(np.array([0.4, -0.6]), np.array([0.4, 0.5]))
    prior = prior_of(MODEL, MODEL.hyper)
    (shard,) = load_shards(MODEL, [parts(data)[0]])
    _, message = LocalProblem(MODEL, GaussHermite(), prior, shard, MODEL.hyper).message(q, None)
    first = q ** (1 - rate) * (prior * message**BATCHES) ** rate
    likelihood = q / prior
    removed = q * (message / likelihood ** (1 / BATCHES)) ** (BATCHES * rate)
    np.testing.assert_allclose(first.precision, removed.precision, rtol=1e-12)
    np.testing.assert_allclose(first.location, removed.location, rtol=1e-12)


def send(groups, optimum, custody, speeds, updates=300):
    """Mean KL from the optimum over the last fifty updates of workers who do not wait for each other."""
    engine, schedule = InProcess(speeds), Asynchronous(updates)
    settings = {"solver": FixedPoint(step_size=1.0), "damping": 0.2, "schedule": schedule, "engine": engine}
    posteriors = [event.posterior for event in pt.events(MODEL, groups, custody=custody, **settings)]
    return np.mean([q.kl(optimum) for q in posteriors[-50:]])


def test_an_average_factor_needs_workers_that_answer_equally_often(data, optimum):
    """Appendix A.6 on stochastic global updates at several workers: "the data must be distributed in an iid way, and
    the updates must be returned by each worker with the same regularity"; local ones need neither.
    """
    X, y = data
    order = np.lexsort((X[:, 1], y))
    groups = {
        "alike": [(X[i::3], y[i::3]) for i in range(3)],
        "unlike": [(X[part], y[part]) for part in np.array_split(order, 3)],
    }
    found = {
        (who, custody, last): send(own, optimum, custody, (1.0, last, last))
        for who, own in groups.items()
        for custody in ("open", "shared")
        for last in (1.0, 0.15)
    }
    assert all(value < 1e-4 for (_, custody, _), value in found.items() if custody == "open")
    # Unlike rows do little harm while all answer equally often.
    assert all(found[who, "shared", 1.0] < 0.02 for who in groups)
    assert all(found[who, "shared", 0.15] > 0.1 for who in groups)
    assert found["unlike", "shared", 0.15] > found["alike", "shared", 0.15]
