"""Hyperparameters by maximum likelihood, from shares of the gradient that sites send."""

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.stats import multivariate_normal, norm

import partita as pt

ORDER = ("prior_scale", "noise")


@pytest.fixture(scope="module")
def data():
    generator = np.random.default_rng(1)
    X = generator.normal(size=(200, 6))
    y = X @ (1.7 * generator.normal(size=6)) + 0.6 * generator.normal(size=200)
    return X, y


def log_marginal(X, y, prior_scale, noise):
    covariance = noise**2 * np.eye(len(y)) + prior_scale**2 * X @ X.T
    return multivariate_normal(np.zeros(len(y)), covariance).logpdf(y)


@pytest.mark.parametrize(
    "schedule",
    [pt.schedules.Synchronous(rounds=150), pt.schedules.Sequential(passes=150)],
    ids=["synchronous", "sequential"],
)
def test_type_two_estimates_agree_with_the_direct_maximiser(data, schedule):
    direct = minimize(
        lambda logs: -log_marginal(*data, *np.exp(logs)),
        [0, 0],
        method="Nelder-Mead",
        options={"xatol": 1e-8},
    )
    model = pt.models.LinearRegression(features=6, noise=1.0, intercept=False)
    shards = pt.datasets.split(data, sites=5, sizes=[1, 2, 3, 4, 5])
    result = pt.fit(model, shards, schedule=schedule, hyper=pt.LearnHyper())
    found = [result.hyper["prior_scale"], result.hyper["noise"]]
    np.testing.assert_allclose(found, np.exp(direct.x), rtol=1e-5)
    assert result.log_evidence == pytest.approx(-direct.fun, abs=1e-6)


def test_a_local_step_sees_the_sites_of_its_fold_alone(data):
    """M times their mean share, and the prior's own: on average over sites, the whole gradient (Section 2.2)."""
    from partita.server.hyper import LearnHyper
    from partita.wire.tasks import Update

    model = pt.models.LinearRegression(features=6, noise=0.8, prior_scale=1.3, intercept=False)
    fitted = pt.fit(model, pt.datasets.split(data, sites=3), schedule=pt.schedules.OnePass())
    updates = [
        Update(m, 0, fitted.posterior, 0.0, hyper_gradient={"noise": g, "prior_scale": 0.0})
        for m, g in enumerate((2.0, -5.0, 7.0))
    ]
    whole, local = (LearnHyper(local=local).begin(model, 3) for local in (False, True))
    whole.add(updates)
    found = []
    for update in updates:
        local.add([update])
        assert local.is_ready(complete=False)
        found.append(local.gradient(fitted.posterior))
    prior = whole.gradient(fitted.posterior)["prior_scale"]
    assert [one["noise"] for one in found] == pytest.approx([6.0, -15.0, 21.0])
    assert [one["prior_scale"] for one in found] == pytest.approx([prior] * 3)
    assert np.mean([one["noise"] for one in found]) == pytest.approx(whole.gradient(fitted.posterior)["noise"])
    assert not whole.is_ready(complete=False)
    local.add(updates[:2])
    assert local.gradient(fitted.posterior)["noise"] == pytest.approx(3 * (2.0 - 5.0) / 2)
    local.forget(0)
    local.forget(1)
    assert not local.is_ready(complete=False)


@pytest.mark.parametrize(
    "schedule",
    [pt.schedules.RandomOrder(passes=400), pt.schedules.Asynchronous(updates=2000)],
    ids=["random order", "asynchronous"],
)
def test_local_steps_come_to_the_direct_maximiser(data, schedule):
    """From one site at a time, whose share is far from the mean: sites differ in what they say of the noise."""
    direct = minimize(lambda logs: -log_marginal(*data, *np.exp(logs)), [0, 0], method="Nelder-Mead")
    model = pt.models.LinearRegression(features=6, noise=1.5, intercept=False)
    shards = pt.datasets.split(data, sites=5)
    local = pt.LearnHyper(local=True, first_step=0.2)
    result = pt.fit(model, shards, schedule=schedule, hyper=local, damping=1.0)
    found = [result.hyper["prior_scale"], result.hyper["noise"]]
    np.testing.assert_allclose(found, np.exp(direct.x), rtol=0.03)


def test_gradient_from_shares_is_the_gradient_of_the_marginal_likelihood(data):
    """At the optimal posterior for given hyperparameters (Section 2.2), by finite differences."""
    from partita.server.hyper import LearnHyper
    from partita.wire.tasks import Update

    model = pt.models.LinearRegression(features=6, noise=0.8, prior_scale=1.3, intercept=False)
    shards = pt.datasets.split(data, sites=3)
    fitted = pt.fit(model, shards, schedule=pt.schedules.OnePass())
    learner = LearnHyper().begin(model, 3)
    learner.add(
        [Update(m, 0, fitted.posterior, 0.0, hyper_gradient=g) for m, g in enumerate(shares(model, shards, fitted))]
    )
    gradient = learner.gradient(fitted.posterior)
    for name, other in (("prior_scale", {"noise": 0.8}), ("noise", {"prior_scale": 1.3})):
        value, step = model.hyper[name], 1e-5
        ends = [log_marginal(*data, **{name: value + sign * step, **other}) for sign in (1, -1)]
        assert gradient[name] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6)


def shares(model, shards, fitted):
    """Each site's E_q[d log p(y_m | θ, ε)/dε] in closed form: only the noise enters the likelihood."""
    for X, y in shards:
        m, v = X @ fitted.posterior.location, np.sum((X @ fitted.posterior.covariance) * X, axis=1)
        noise = model.noise
        yield {"prior_scale": 0.0, "noise": float(np.sum(((y - m) ** 2 + v) / noise**3 - 1 / noise))}


def test_only_the_named_ones_are_learnt(data):
    model = pt.models.LinearRegression(features=6, noise=1.0, prior_scale=0.9, intercept=False)
    result = pt.fit(model, [data], schedule=pt.schedules.Synchronous(rounds=20), hyper=pt.LearnHyper(names=("noise",)))
    assert result.hyper["prior_scale"] == 0.9
    assert result.hyper["noise"] != 1.0
    assert result.history[-1]["hyper.noise"] == result.hyper["noise"]


def test_what_is_known_before_counts(data):
    """The most probable hyperparameters under log-normal priors, by direct search."""
    prior = {"noise": (2.0, 0.02), "prior_scale": (0.5, 0.4)}

    def minus_log_joint(logs):
        medians, deviations = np.array([prior[name] for name in ORDER]).T
        return -log_marginal(*data, *np.exp(logs)) - norm(np.log(medians), deviations).logpdf(logs).sum()

    direct = minimize(minus_log_joint, [0, 0], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12})
    model = pt.models.LinearRegression(features=6, noise=1.0, intercept=False)
    schedule = pt.schedules.Synchronous(rounds=100)
    result = pt.fit(model, [data], schedule=schedule, hyper=pt.LearnHyper(prior=prior))
    np.testing.assert_allclose([result.hyper[name] for name in ORDER], np.exp(direct.x), rtol=1e-3)


def test_a_batch_of_a_stream_may_teach_hyperparameters(data):
    """Its own: the most probable noise of the second batch, given the posterior of the first."""
    X, y = data
    model = pt.models.LinearRegression(features=6, noise=1.0, intercept=False)
    settings = {"schedule": pt.schedules.Synchronous(rounds=150), "hyper": pt.LearnHyper("noise")}
    first = pt.partial_fit(model, (X[:100], y[:100]), **settings)
    second = pt.partial_fit(first, (X[100:], 2 * y[100:]), **settings)

    def minus_log_marginal(log_noise):
        covariance = X[100:] @ first.posterior.covariance @ X[100:].T + np.exp(2 * log_noise) * np.eye(100)
        return -multivariate_normal(X[100:] @ first.posterior.location, covariance).logpdf(2 * y[100:])

    direct = minimize_scalar(minus_log_marginal, bounds=(-2, 2), method="bounded", options={"xatol": 1e-8})
    assert second.hyper["noise"] == pytest.approx(np.exp(direct.x), rel=1e-4)
    assert second.log_evidence == pytest.approx(first.log_evidence - direct.fun, abs=1e-6)
    third = pt.partial_fit(second, (X[:100], y[:100]), schedule=settings["schedule"])
    assert third.hyper == second.hyper


def test_unknown_names_are_refused(data):
    model = pt.models.LinearRegression(features=6, noise=1.0, intercept=False)
    with pytest.raises(pt.errors.InputError, match="has no nois .*prior_scale, noise"):
        pt.fit(model, [data], hyper=pt.LearnHyper(names=("nois",)))
    with pytest.raises(pt.errors.InputError, match="has no nois"):
        pt.fit(model, [data], hyper=pt.LearnHyper(prior={"nois": (1.0, 1.0)}))
    with pytest.raises(pt.errors.InputError, match="prior of noise: median: expected a positive number"):
        pt.LearnHyper(prior={"noise": (-1.0, 1.0)})
