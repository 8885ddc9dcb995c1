"""Models with learnt curvature, against dense algebra and SciPy's optimum of the same bound."""

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss
from scipy.optimize import minimize
from sklearn.datasets import load_iris

import partita as pt
from partita.errors import InputError, MissingCapability
from partita.families import Family, Gaussian, MeanField
from partita.server.ledger import Ledger
from partita.server.rules.base import Setup
from partita.server.rules.charts import Diagonal, Whole
from partita.server.rules.quadratics import Model, highest
from partita.server.rules.secants import Secants
from partita.wire.tasks import Update

FEATURES = 6
NODES, WEIGHTS = hermegauss(40)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def correlated(seed=0, rows=300):
    """Features that are nearly sums of each other, which a diagonal curvature knows nothing of."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 2)) @ rng.normal(size=(2, FEATURES)) + 0.2 * rng.normal(size=(rows, FEATURES))
    y = (rng.uniform(size=rows) < 1 / (1 + np.exp(-X @ rng.normal(size=FEATURES)))).astype(float)
    return X, y


def bound(X, y, free):
    """The negative free energy of a mean-field logistic regression, and its gradient, without Partita."""
    X = np.column_stack([X, np.ones(len(X))])
    prior = np.array([1.0] * FEATURES + [0.01])
    m, r = np.split(free, 2)
    v = np.exp(-r)
    mean, deviation = X @ m, np.sqrt(X**2 @ v)
    f = mean[:, None] + deviation[:, None] * NODES
    sign = 2 * y[:, None] - 1
    values = -np.logaddexp(0, -sign * f) @ WEIGHTS
    p = 1 / (1 + np.exp(-f))
    slopes, curvatures = (y[:, None] - p) @ WEIGHTS, (p * (1 - p)) @ WEIGHTS
    kl = 0.5 * np.sum(prior * v + prior * m**2 - 1 + r - np.log(prior))
    by_v = -0.5 * (X**2).T @ curvatures - 0.5 * (prior - np.exp(r))
    return kl - values.sum(), -np.concatenate([X.T @ slopes - prior * m, -v * by_v])


@pytest.fixture(scope="module")
def best():
    X, y = correlated()
    found = minimize(lambda free: bound(X, y, free), np.zeros(2 * FEATURES + 2), jac=True, options={"gtol": 1e-8})
    return -found.fun


@pytest.fixture(scope="module")
def by_label():
    return pt.datasets.split(correlated(), sites=4, how="by-label")


def fit(shards, schedule, **settings):
    model = pt.models.LogisticRegression(features=FEATURES, posterior="mean-field")
    return pt.fit(model, shards, schedule=schedule, damping="secants", **settings)


SCHEDULES = {
    "synchronous": pt.schedules.Synchronous(rounds=20),
    "sequential": pt.schedules.Sequential(passes=20),
    "random": pt.schedules.RandomOrder(passes=25),
    "asynchronous": pt.schedules.Asynchronous(updates=120),
}


@pytest.fixture(scope="module", params=SCHEDULES)
def result(request, by_label):
    return fit(by_label, SCHEDULES[request.param])


def test_every_schedule_reaches_the_optimum(result, best):
    assert result.log_evidence == pytest.approx(best, abs=0.01)


def test_damping_by_shares_is_further_away_after_as_many_rounds(by_label, best):
    model = pt.models.LogisticRegression(features=FEATURES, posterior="mean-field")
    other = pt.fit(model, by_label, schedule=SCHEDULES["synchronous"], damping=pt.rules.Auto())
    assert best - other.log_evidence > 0.1


def test_factors_are_what_sites_say_in_the_end(result, by_label):
    """Whoever is divided out takes along what its own data say, whatever the schedule was."""
    rounds = fit(by_label, pt.schedules.Synchronous(rounds=60))
    for mine, other in zip(result.factors, rounds.factors, strict=True):
        assert np.allclose(mine.precision, other.precision, rtol=0.02, atol=1e-3 * np.max(rounds.posterior.precision))
        gap = mine.precision_times_location - other.precision_times_location
        assert np.max(np.abs(gap) / np.sqrt(rounds.posterior.precision)) < 0.05


def test_free_energies_rise_but_for_steps_that_are_taken_back(by_label):
    history = fit(by_label, SCHEDULES["synchronous"]).history
    kept = [row["free_energy"] for row in history if row["free_energy"] is not None]
    highest_yet = np.maximum.accumulate(kept)
    falls = np.flatnonzero(np.array(kept[1:]) < highest_yet[:-1] - 1e-5)
    assert all(history[-len(kept) + 1 + place]["taken_back"] for place in falls)


def test_a_run_that_is_resumed_ends_as_one_that_was_not_stopped(by_label, tmp_path):
    whole = fit(by_label, pt.schedules.Asynchronous(updates=60))
    fit(by_label, pt.schedules.Asynchronous(updates=30), run_dir=tmp_path / "run")
    rest = fit(by_label, pt.schedules.Asynchronous(updates=60), run_dir=tmp_path / "run", resume=True)
    assert np.array_equal(rest.posterior.precision_times_location, whole.posterior.precision_times_location)


@pytest.mark.parametrize("scaled", [False, True])
def test_models_curve_as_bfgs_updates_say(scaled):
    rng = np.random.default_rng(1)
    A = rng.normal(size=(6, 6))
    H = A @ A.T + np.eye(6)
    place, curvature = np.zeros(6), rng.uniform(1, 2, 6)
    model = Model(3, place, 0.0, np.zeros(6), curvature, scaled=scaled)
    for _ in range(4):
        place = place + rng.normal(size=6)
        model = model.moved(place, 0.0, -H @ place, curvature)
    dense = np.diag(model.diagonal)
    for s, y in zip(model.ways, model.falls, strict=True):
        dense = dense - np.outer(dense @ s, dense @ s) / (s @ dense @ s) + np.outer(y, y) / (s @ y)
    way = rng.normal(size=6)
    assert len(model.ways) == 3
    assert np.allclose(model.curved(way), dense @ way)
    assert np.allclose(model.curved(model.ways[-1]), model.falls[-1])


def test_models_together_are_highest_where_dense_algebra_says():
    rng = np.random.default_rng(2)
    H = [np.diag(rng.uniform(1, 2, 4)) + 0.3 for _ in range(3)]
    models, dense = [], []
    for curvature in H:
        model = Model(5, np.zeros(4), 0.0, rng.normal(size=4), np.diag(curvature))
        for _ in range(3):
            way = rng.normal(size=4)
            model = model.moved(model.place + way, 0.0, model.slope - curvature @ way, np.diag(curvature))
        models.append(model)
        dense.append(np.stack([model.curved(unit) for unit in np.eye(4)]))
    here, slope, own = rng.normal(size=4), rng.normal(size=4), rng.uniform(1, 2, 4)
    right = slope + sum(m.slope - B @ (here - m.place) for m, B in zip(models, dense, strict=True))
    expected = np.linalg.solve(np.diag(own) + sum(dense), right)
    assert np.allclose(highest(models, here, slope, own), expected)


def test_what_all_factors_share_is_divided_out_with_a_site():
    prior = MeanField.from_moments(np.zeros(2), np.ones(2))
    ledger = Ledger(prior, 3)
    change = MeanField(np.array([1.0, 2.0]), np.array([0.5, 0.5]))
    rest = MeanField(np.array([3.0, -3.0]), np.zeros(2))
    ledger.dispatch([1], {})
    changes = ledger.check([Update(1, 0, change, 0.0)])
    assert ledger.take([1], changes, 1.0, rest=rest) == 1.0
    assert np.allclose(ledger.factor(0).precision_times_location, [1.0, -1.0])
    assert np.allclose(ledger.factor(1).precision_times_location, [2.0, 1.0])
    assert np.allclose(ledger.posterior.precision_times_location, [4.0, -1.0])
    cavity = ledger.cavity(1)
    ledger.retire(1)
    assert np.allclose(ledger.posterior.precision_times_location, cavity.precision_times_location)
    assert np.allclose(ledger.recomputed_posterior().precision_times_location, [2.0, -2.0])
    ledger.dispatch([0], {})
    ledger.take([0], Family.stack([change]), 1.0, rest=rest)
    assert ledger.holds_nothing_of(1)
    assert np.allclose(ledger.factor(2).precision_times_location, [2.5, -2.5])
    assert np.allclose(
        ledger.recomputed_posterior().precision_times_location, ledger.posterior.precision_times_location
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"solver": pt.solvers.FixedPoint(steps=5)},
        {"schedule": pt.schedules.OnePass()},
        {"hyper": pt.LearnHyper()},
        {"custody": "shared"},
    ],
)
def test_where_there_is_nothing_to_learn_secants_from_they_are_refused(by_label, settings):
    with pytest.raises(InputError, match="secants"):
        fit(by_label, settings.pop("schedule", SCHEDULES["synchronous"]), **settings)


def test_other_families_say_what_they_lack(by_label):
    with pytest.raises(MissingCapability, match="mean-field"):
        pt.fit(pt.models.LinearRegression(features=FEATURES, noise=None), by_label, damping="secants")


def full(how="by-label", rows=300):
    """A Poisson regression with a full covariance, whose curvature grows a hundredfold on the way, and its sites."""
    X, _ = correlated(rows=rows)
    y = np.random.default_rng(2).poisson(np.exp(np.clip(X @ np.linspace(-1, 1, FEATURES), -6, 4))).astype(float)
    return pt.models.PoissonRegression(features=FEATURES), pt.datasets.split((X, y), sites=4, how=how)


@pytest.mark.parametrize("how", ["iid", "by-label"])
def test_where_nobody_waits_full_covariances_are_there_in_fourteen_rounds(how):
    model, shards = full(how)
    # Local problems that are solved, in rounds: another solver, and another rule.
    rounds = pt.fit(model, shards, schedule=pt.schedules.Synchronous(rounds=60))
    result = pt.fit(model, shards, schedule=pt.schedules.Asynchronous(updates=56), damping="secants")
    assert float(result.posterior.kl(rounds.posterior)) < 1e-3


def test_factors_of_full_covariances_are_what_sites_say_in_the_end():
    model, shards = full()
    rounds = pt.fit(model, shards, schedule=pt.schedules.Synchronous(rounds=60))
    result = pt.fit(model, shards, schedule=pt.schedules.Asynchronous(updates=120), damping="secants")
    for mine, other in zip(result.factors, rounds.factors, strict=True):
        assert np.allclose(mine.precision, other.precision, atol=1e-4 * np.max(rounds.posterior.precision))


@pytest.mark.parametrize("chart", [Diagonal(), Whole()], ids=["diagonal", "whole"])
def test_slopes_are_those_of_expected_messages(chart):
    """By finite differences of E_q[log t] and of -KL(q ‖ p), along a way of locations and precisions."""
    size, rng = 3, np.random.default_rng(0)
    family = MeanField if isinstance(chart, Diagonal) else Gaussian
    root = rng.normal(size=(2, size, size))
    matrices = root @ root.transpose(0, 2, 1) + np.eye(size)
    precisions = [np.diag(matrix) if family is MeanField else matrix for matrix in matrices]
    density, message = (family(rng.normal(size=size), precision) for precision in precisions)
    prior = family(rng.normal(size=size), precisions[0] * 0 + np.eye(size) if family is Gaussian else np.ones(size))
    place = chart.place(density)
    way = chart.place(message) - place

    def at(share):
        there = place + share * way
        precision = chart.precision(there)
        return family(chart.times(precision, there[:size]), precision)

    naturals = chart.naturals(message, 1)
    said = chart.hear(place, 0.0, naturals.shift[0], naturals.precision[0])
    _, slope, _ = chart.of_prior(chart.naturals(prior, 1), place, said.curvature)
    ahead, behind = at(1e-5), at(-1e-5)
    of_message = float(ahead.expected_log(message)) - float(behind.expected_log(message))
    of_prior = float(behind.kl(prior)) - float(ahead.kl(prior))
    assert said.slope @ way == pytest.approx(of_message / 2e-5, rel=1e-6)
    assert slope @ way == pytest.approx(of_prior / 2e-5, rel=1e-6)


def test_a_whole_model_falls_short_by_what_a_site_has_lost():
    """A message says of every density what its mean parameters say: nothing is short where that is the value."""
    rng = np.random.default_rng(1)
    root = rng.normal(size=(3, 4, 4))
    first, second, message = (
        Gaussian(rng.normal(size=4), matrix) for matrix in root @ root.transpose(0, 2, 1) + np.eye(4)
    )
    chart = Whole()
    said = chart.hear(chart.place(first), 1.0, message.precision_times_location, message.precision)
    model = chart.model(0, said.around)
    value = 1.0 + float(second.expected_log(message)) - float(first.expected_log(message))
    assert model.judge(chart.place(second), value - 0.5).short == pytest.approx(0.5)


@pytest.mark.parametrize(("gone", "counts"), [(0.0, False), (0.05, True)])
def test_losses_count_where_locations_were_led(gone, counts):
    """Precisions also move because factors become what sites say: what a value loses then is no sign of a lie."""
    size = 20
    prior = MeanField(np.zeros(size), np.ones(size))
    state = Secants().init(Setup(sites=3, prior=prior))
    place, reach = state.chart.place(prior), state.reach
    before, now = (
        state.chart.hear(where, value, np.zeros(size), np.ones(size))
        for where, value in ((place, 0.0), (place + np.repeat([gone, 0.004], size), -0.1))
    )
    state.said = dict.fromkeys(range(3), now)
    state._judge(0, state.chart.model(10, before.around), now, promised=1e-4)
    assert (0 in state.losses) == counts
    assert (state.reach < reach) == counts


@pytest.mark.parametrize("schedule", [pt.schedules.Sequential(passes=60), pt.schedules.RandomOrder(passes=60)])
def test_a_run_that_has_settled_stays_where_it_is(schedule):
    """What is left of ways then is rounding, and teaches nothing."""
    X = pt.datasets.standardised(load_iris().data)
    y = X[:, 0] + 0.5 * np.random.default_rng(0).normal(size=len(X))
    model = pt.models.LinearRegression(features=4, posterior="mean-field", noise=0.5)
    result = pt.fit(model, pt.datasets.split((X, y), sites=10, seed=0), schedule=schedule)
    X = np.column_stack([X, np.ones(len(X))])
    prior = np.array([1, 1, 1, 1, 0.01])
    precision = prior + np.sum(X**2, axis=0) / 0.25
    location = np.linalg.solve(np.diag(prior) + X.T @ X / 0.25, X.T @ y / 0.25)
    assert result.posterior.location == pytest.approx(location, abs=1e-6)
    assert result.posterior.precision == pytest.approx(precision, rel=1e-6)
    assert result.quarantined == {}
