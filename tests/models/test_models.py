"""Likelihoods against SciPy and scikit-learn; what a model refuses; weights, intercepts and padding."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import special, stats
from sklearn.linear_model import LogisticRegression as Reference

import partita as pt
from partita.errors import ImproperDensity, InputError, ShardError
from partita.expectations import MonteCarlo
from partita.foundation.runtime import precision
from partita.server.schedules import OnePass, Sequential
from partita.solvers import FixedPoint
from quadrature import linear_regression

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(12, 2))
LABELS = np.array([0.0, 1, 1, 0, 1, 0, 0, 1, 1, 1, 0, 0])
CLASSES = LABELS + (X[:, 0] > 0)
COUNTS = GENERATOR.poisson(2.0, 12).astype(float)
REAL = X @ np.array([1.0, -2.0]) + 0.3 * GENERATOR.normal(size=12)

# Model, targets, and log p(y | f) by SciPy.
MODELS = {
    "linear-regression": (
        pt.models.LinearRegression(features=2, noise=0.7),
        REAL,
        lambda y, f: stats.norm.logpdf(y, f, 0.7),
    ),
    "logistic-regression": (
        pt.models.LogisticRegression(features=2),
        LABELS,
        lambda y, f: stats.bernoulli.logpmf(y, special.expit(f)),
    ),
    "probit-regression": (
        pt.models.ProbitRegression(features=2),
        LABELS,
        lambda y, f: stats.bernoulli.logpmf(y, stats.norm.cdf(f)),
    ),
    "robust-regression": (
        pt.models.RobustRegression(features=2, noise=0.7, degrees=3.0),
        REAL,
        lambda y, f: stats.t.logpdf(y, 3.0, f, 0.7),
    ),
    "poisson-regression": (
        pt.models.PoissonRegression(features=2),
        COUNTS,
        lambda y, f: stats.poisson.logpmf(y, np.exp(f)),
    ),
    "softmax-regression": (
        pt.models.SoftmaxRegression(features=2, classes=3, intercept_scale=1.0),
        CLASSES,
        lambda y, f: np.take_along_axis(special.log_softmax(f, axis=1), y[:, None].astype(int), 1)[:, 0],
    ),
}
LOGISTIC = MODELS["logistic-regression"][0]


@pytest.fixture(params=MODELS)
def name(request) -> str:
    return request.param


def fitted(model, *shards, steps: int = 60) -> pt.families.Family:
    """The optimum: every site in turn until nothing changes; half steps, because whole ones can overshoot."""
    schedule = Sequential(passes=20)
    return pt.fit(model, list(shards), solver=FixedPoint(steps, step_size=0.5), schedule=schedule).posterior


def same(first, second, tolerance: float = 1e-10) -> None:
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_every_model_has_an_example():
    """Others have tests of their own, those among them that predict nothing."""
    others = {name for name, kind in pt.models.REGISTRY.items() if not kind.takes_target}
    assert {*MODELS, *others, "network", "heteroscedastic-regression", "sparse-process"} == set(pt.models.REGISTRY)


def test_log_prob_matches_scipy(name):
    model, y, log_prob = MODELS[name]
    theta = np.array([0.7, -1.2, 0.4]) if name != "softmax-regression" else np.arange(9.0).reshape(3, 3) / 4 - 1
    data = model.shard(0, (X, y)).data
    with precision(np.float64):
        actual = model.log_prob(theta, data, model.hyper)
    assert_allclose(actual, log_prob(y, np.column_stack([X, np.ones(12)]) @ theta.T), rtol=1e-12)


def test_log_prob_with_unknown_noise_matches_scipy():
    model = pt.models.LinearRegression(features=2, intercept=False)
    with precision(np.float64):
        actual = model.log_prob((np.array([1.0, 2.0]), np.array(4.0)), model.shard(0, (X, REAL)).data, {})
    assert_allclose(actual, stats.norm.logpdf(REAL, X @ [1.0, 2.0], 0.5), rtol=1e-12)


def test_variances_that_depend_on_inputs_match_scipy_and_draws():
    """log p by SciPy; and its expectation, with correlated means and variances, from draws."""
    model = pt.models.HeteroscedasticRegression(features=2)
    data, theta = model.shard(0, (X, REAL)).data, np.array([0.7, -1.2, 0.4, 0.3, 0.5, -0.6])
    rows = np.column_stack([X, np.ones(12)])
    root = np.random.default_rng(1).normal(size=(6, 6)) / 4
    q = pt.families.Gaussian.from_moments(theta, root @ root.T + 0.02 * np.eye(6))
    with precision(np.float64):
        actual = model.log_prob(theta, data, model.hyper)
        expected = np.asarray(model.expected_log_prob(q.mean(), data, model.hyper))
        draws = np.asarray(
            jax.vmap(lambda one: model.log_prob(one, data, model.hyper))(q.sample(jax.random.key(0), (200_000,)))
        )
    assert_allclose(actual, stats.norm.logpdf(REAL, rows @ theta[:3], np.exp(0.5 * rows @ theta[3:])), rtol=1e-12)
    assert np.all(np.abs(draws.mean(axis=0) - expected) < 5 * draws.std(axis=0) / np.sqrt(len(draws)))
    with pytest.raises(InputError, match="posterior"):
        pt.models.HeteroscedasticRegression(features=2, posterior="mean-field")


def test_variances_that_depend_on_inputs_are_found_and_predicted():
    generator = np.random.default_rng(3)
    rows = generator.uniform(-2, 2, (600, 1))
    y = 1.5 * rows[:, 0] + np.exp(0.5 * rows[:, 0]) * generator.normal(size=600)
    model = pt.models.HeteroscedasticRegression(features=1)
    result = pt.fit(model, [(rows[i::3], y[i::3]) for i in range(3)], schedule=Sequential(passes=15))
    mean, std = result.predict(np.array([[-1.5], [1.5]]), return_std=True)
    assert_allclose(mean, [-2.25, 2.25], atol=0.2)
    assert_allclose(std, np.exp([-0.75, 0.75]), rtol=0.15)


def test_unknown_noise_is_integrated_over():
    """In one pass over two sites, against brute force."""
    model = pt.models.LinearRegression(features=2, intercept=False, prior_scale=2.0, noise_scale=0.5)
    q = pt.fit(model, [(X[:5], REAL[:5]), (X[5:], REAL[5:])], schedule=OnePass(), damping=1.0).posterior
    exact = linear_regression(X, REAL, [2.0, 2.0], noise_scale=0.5)
    assert_allclose(q.location, exact.location, rtol=1e-8)
    assert_allclose(q.covariance, exact.covariance, rtol=1e-8)
    assert_allclose(q.noise_variance, exact.noise_variance, rtol=1e-8)


def with_nan(array: np.ndarray, *place: int) -> np.ndarray:
    copy = array.copy()
    copy[place] = np.nan
    return copy


BAD = {
    "NaN in X": (lambda y: (with_nan(X, 4, 1), y), "X", r"not finite at \[4, 1\]"),
    "infinite X": (lambda y: (np.where(X[3, 0] == X, np.inf, X), y), "X", r"not finite at \[3, 0\]"),
    "NaN in y": (lambda y: (X, with_nan(y, 7)), "y", r"not finite at \[7\]"),
    "too many features": (lambda y: (np.ones((12, 3)), y), "X", r"expected 2 features .* \(12, 3\)"),
    "flat X": (lambda y: (X[:, 0], y), "X", r"expected 2 features .* \(12,\)"),
    "words": (lambda y: ([["a", "b"]], [1.0]), "X", "numbers"),
    "ragged": (lambda y: ([[1.0], [1.0, 2.0]], [1.0]), "X", "numbers"),
    "matrix of targets": (lambda y: (X, y[:, None]), "y", r"one target per row, got shape \(12, 1\)"),
    "fewer targets": (lambda y: (X, y[:-1]), "y", "11 rows where X has 12"),
    "no rows": (lambda y: (np.zeros((0, 2)), y[:0]), "X", "no rows"),
    "no targets": (lambda y: X, "shard", r"\(X, y\)"),
    "one argument": (lambda y: (X,), "shard", r"\(X, y\)"),
    "fewer weights": (lambda y: (X, y, np.ones(11)), "weights", r"\(12,\), got \(11,\)"),
    "negative weights": (lambda y: (X, y, -np.ones(12)), "weights", "not negative"),
    "NaN weights": (lambda y: (X, y, with_nan(np.ones(12), 3)), "weights", "finite"),
    "zero weights": (lambda y: (X, y, np.zeros(12)), "weights", "not all zero"),
    "words as weights": (lambda y: (X, y, ["a"] * 12), "weights", "numbers"),
}


@pytest.mark.parametrize("problem", BAD)
def test_bad_data_are_refused_before_any_work(name, problem):
    model, y, _ = MODELS[name]
    build, argument, message = BAD[problem]
    events = []
    with pytest.raises(ShardError, match=f"^site 1: {argument}: .*{message}") as caught:
        pt.fit(model, [(X, y), build(y)], callbacks=[events.append])
    assert (caught.value.site, caught.value.argument, events) == (1, argument, [])


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("logistic-regression", 2),
        ("logistic-regression", -1),
        ("probit-regression", 0.5),
        ("poisson-regression", -1),
        ("poisson-regression", 1.5),
        ("softmax-regression", 3),
        ("softmax-regression", -1),
        ("softmax-regression", 0.5),
    ],
)
def test_targets_outside_the_range_are_refused(name, label):
    model, y, _ = MODELS[name]
    with pytest.raises(ShardError, match=r"^site 0: y: .*must be"):
        pt.fit(model, [(X, np.append(y[1:], label))])


@pytest.mark.parametrize("shards", [[], "data", None, {0: (X, LABELS)}])
def test_shards_must_be_a_list_of_sites(shards):
    with pytest.raises(InputError, match="shards"):
        pt.fit(LOGISTIC, shards)


@pytest.mark.parametrize(
    "settings",
    [
        {"features": -1},
        {"features": 2.0},
        {"features": 2, "prior_scale": 0},
        {"features": 2, "prior_scale": np.nan},
        {"features": 2, "intercept_scale": -1.0},
        {"features": 2, "posterior": "diagonal"},
    ],
)
def test_settings_out_of_range_are_refused(name, settings):
    with pytest.raises(InputError, match=list(settings)[-1]):
        pt.models.REGISTRY[name](**settings)


def test_settings_of_single_models_are_checked():
    with pytest.raises(InputError, match="classes"):
        pt.models.SoftmaxRegression(features=2, classes=1)
    with pytest.raises(InputError, match="noise"):
        pt.models.LinearRegression(features=2, noise=-1.0)
    with pytest.raises(InputError, match="posterior"):
        pt.models.LinearRegression(features=2, posterior="mean-field")


def test_a_site_with_one_row_works(name):
    model, y, _ = MODELS[name]
    alone, split = fitted(model, (X, y)), fitted(model, (X[:1], y[:1]), (X[1:], y[1:]))
    assert_allclose(split.kl(alone), 0, atol=1e-8)


def test_weight_two_is_the_row_twice_and_weight_zero_is_no_row(name):
    model, y, _ = MODELS[name]
    weights, rows = np.ones(12), np.array([0, 0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11])
    weights[[0, 5]] = 2, 0
    same(fitted(model, (X, y, weights)), fitted(model, (X[rows], y[rows])))


@pytest.mark.parametrize("name", ["linear-regression", "softmax-regression"], indirect=True)
def test_intercept_is_a_column_of_ones_with_its_own_scale(name):
    with_intercept = pt.models.REGISTRY[name](**_settings(name), features=2, prior_scale=1.5, intercept_scale=4.0)
    explicit = pt.models.REGISTRY[name](**_settings(name), features=3, intercept=False)
    scales, prior = np.array([1.5, 1.5, 4.0]), pt.models.prior_of(explicit, explicit.hyper)
    if isinstance(prior, pt.families.Gaussian):
        prior = pt.families.Gaussian.from_moments(np.zeros(3), np.diag(scales**2))
    else:
        prior = pt.families.MeanField.from_moments(np.zeros((3, 3)), np.tile(scales, (3, 1)))
    y = MODELS[name][1]
    ones = np.column_stack([X, np.ones(12)])
    same(fitted(with_intercept, (X, y)), fitted(explicit.with_prior(prior), (ones, y)))


def _settings(name: str) -> dict:
    return {"linear-regression": {"noise": 0.7}, "softmax-regression": {"classes": 3}}.get(name, {})


@pytest.mark.parametrize("name", ["logistic-regression", "softmax-regression"], indirect=True)
def test_padding_never_changes_a_message(name):
    """A site of three rows, alone and beside one of two hundred, where it is padded."""
    model, y, _ = MODELS[name]
    small, large = (X[:3], y[:3]), (np.tile(X, (17, 1)), np.tile(y, 17))
    alone = pt.fit(model, [small], schedule=OnePass(), damping=1.0).factors[0]
    beside = pt.fit(model, [small, large], schedule=OnePass(), damping=1.0).factors[0]
    same(alone, beside, 1e-12)


@pytest.mark.parametrize("posterior", ["full", "mean-field"])
def test_logistic_posterior_is_near_the_ridge_estimate_of_scikit_learn(posterior):
    generator = np.random.default_rng(2)
    A = generator.normal(size=(3000, 3))
    y = (generator.uniform(size=3000) < special.expit(A @ [1.0, -0.5, 0.2])).astype(float)
    ridge = Reference(C=4.0, fit_intercept=False, tol=1e-10).fit(A, y).coef_[0]
    model = pt.models.LogisticRegression(features=3, prior_scale=2.0, intercept=False, posterior=posterior)
    q = fitted(model, (A[:1000], y[:1000]), (A[1000:], y[1000:]), steps=3)
    p = special.expit(A @ ridge)
    laplace = np.linalg.inv(A.T @ (A * (p * (1 - p))[:, None]) + np.eye(3) / 4)
    # The posterior mean differs from its mode by the order of one over the number of rows.
    assert_allclose(q.location, ridge, atol=0.1 * np.sqrt(laplace.diagonal().min()))
    reference = laplace if posterior == "full" else np.diag(1 / np.diag(np.linalg.inv(laplace)))
    assert_allclose(q.covariance, reference, rtol=0.02, atol=2e-5)


def test_a_prior_must_be_proper_and_a_family():
    prior = pt.families.Gaussian(np.zeros(3), -np.eye(3))
    with pytest.raises(ImproperDensity):
        LOGISTIC.with_prior(prior)
    with pytest.raises(ImproperDensity):
        pt.Model(prior, lambda theta, y: y)
    with pytest.raises(InputError, match="prior"):
        pt.Model(np.zeros(3), lambda theta, y: y)


def test_a_prior_that_does_not_fit_the_model_is_refused():
    """Three coefficients, two of them with a prior."""
    with pytest.raises(pt.PartitaError):
        pt.fit(LOGISTIC.with_prior(pt.families.Gaussian.from_moments(np.zeros(2), np.eye(2))), [(X, LABELS)])


def test_yesterdays_posterior_is_todays_prior():
    model = MODELS["linear-regression"][0]
    first = fitted(model, (X[:6], REAL[:6]))
    same(fitted(model.with_prior(first), (X[6:], REAL[6:])), fitted(model, (X, REAL)))


def normal_mean(theta, y):
    return -0.5 * (y - theta[0]) ** 2


def poisson(rate, y):
    return y * jnp.log(rate) - rate - jax.scipy.special.gammaln(y + 1)


def test_a_custom_gaussian_mean_has_the_conjugate_posterior():
    model = pt.Model(pt.families.Gaussian.from_moments(np.zeros(1), np.eye(1)), normal_mean)
    y = np.random.default_rng(3).normal(1.0, 1.0, 40)
    solver = FixedPoint(steps=100, step_size=0.05)
    schedule = Sequential(passes=3)
    q = pt.fit(model, [y[:10], y[10:]], solver=solver, schedule=schedule, expectation=MonteCarlo(200)).posterior
    assert_allclose(q.covariance, 1 / 41, rtol=0.05)
    assert_allclose(q.location, y.sum() / 41, atol=0.1 / np.sqrt(41))


def test_a_custom_gamma_rate_has_the_conjugate_posterior():
    """The message goes through the Fisher matrix of the gamma family."""
    model = pt.Model(pt.families.Gamma.from_shape_rate(np.array(2.0), np.array(1.0)), poisson)
    y = np.random.default_rng(4).poisson(3.0, 20)
    q = pt.fit(
        model,
        [y],
        solver=FixedPoint(steps=50, step_size=0.1),
        schedule=OnePass(),
        expectation=MonteCarlo(500),
    ).posterior
    exact = pt.families.Gamma.from_shape_rate(np.array(2.0 + y.sum()), np.array(21.0))
    assert q.kl(exact) < 5e-3
    assert_allclose(q.shape / q.rate, exact.shape / exact.rate, rtol=0.02)


def test_weights_of_a_custom_model():
    model = pt.Model(pt.families.Gaussian.from_moments(np.zeros(1), np.eye(1)), normal_mean)
    y, settings = np.array([1.0, 4.0, 2.0]), {"solver": FixedPoint(steps=3), "schedule": OnePass()}
    weighted = pt.fit(model, [pt.models.Weighted(y, np.array([2.0, 0.0, 1.0]))], **settings)
    same(weighted.posterior, pt.fit(model, [np.array([1.0, 1.0, 2.0])], **settings).posterior)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (np.array([1.0, np.nan]), r"not finite at \[1\]"),
        (np.array([]), "no rows"),
        (3.0, "one row per observation"),
        ((np.ones(3), np.ones(2)), "2 rows where .* has 3"),
        (pt.models.Weighted(np.ones(3), np.ones(2)), r"\(3,\), got \(2,\)"),
        (np.array(["a", "b"]), "numbers"),
    ],
)
def test_bad_data_of_a_custom_model_are_refused(raw, message):
    model = pt.Model(pt.families.Gaussian.from_moments(np.zeros(1), np.eye(1)), normal_mean)
    with pytest.raises(ShardError, match=f"^site 1: .*{message}"):
        pt.fit(model, [np.ones(2), raw])


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda value: pt.models.LogisticRegression(features=2, posterior=value), "posterior"),
        (lambda value: pt.from_numpyro(lambda x: None, "x", posterior=value), "posterior"),
        (lambda value: pt.models.GaussianMixture(2, 2, covariance=value), "covariance"),
    ],
)
@pytest.mark.parametrize("value", ["tied", ["full"], {"full": 1}, None])
def test_what_is_no_known_name_is_refused_in_the_same_words(make, argument, value):
    with pytest.raises(InputError, match=f"^{argument}: expected one of full, .*, got {re.escape(repr(value))}$"):
        make(value)
