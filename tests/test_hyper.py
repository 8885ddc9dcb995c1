"""Hyperparameters by maximum likelihood, from shares of the gradient that sites send."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

import partita as pt


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


def test_gradient_from_shares_is_the_gradient_of_the_marginal_likelihood(data):
    """At the optimal posterior for given hyperparameters (Section 2.2), by finite differences."""
    from partita.hyper import LearnHyper
    from partita.ledger import Update

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


def test_unknown_names_are_refused(data):
    model = pt.models.LinearRegression(features=6, noise=1.0, intercept=False)
    with pytest.raises(pt.errors.InputError, match="has no nois .*prior_scale, noise"):
        pt.fit(model, [data], hyper=pt.LearnHyper(names=("nois",)))
