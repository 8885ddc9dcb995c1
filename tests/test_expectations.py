"""E_q[log p]: adaptive quadrature and many draws are the references."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate, special, stats

import partita as pt
from partita.errors import InputError
from partita.expectations import (
    ClosedForm,
    DrawnFisher,
    Enumeration,
    ExpectedHessian,
    ExpectedSlope,
    GaussHermite,
    GaussNewton,
    LocalReparameterisation,
    MonteCarlo,
    choose,
)
from partita.foundation.points import hermite, normal_points
from partita.foundation.runtime import precision
from partita.models import prior_of

KEY = jax.random.key(0)
X = np.array([[1.0, 0.5], [-2.0, 1.0], [0.0, 0.0], [0.3, -0.8]])
LOCATION, COVARIANCE = np.array([0.4, -0.7]), np.array([[0.5, 0.2], [0.2, 0.8]])
# Model, targets of the four rows, and log p(y | f) by SciPy.
ONE_PREDICTOR = {
    "logistic": (
        pt.models.LogisticRegression(features=2, intercept=False),
        np.array([0.0, 1.0, 1.0, 0.0]),
        lambda y, f: stats.bernoulli.logpmf(y, special.expit(f)),
    ),
    "probit": (
        pt.models.ProbitRegression(features=2, intercept=False),
        np.array([0.0, 1.0, 1.0, 0.0]),
        lambda y, f: stats.norm.logcdf((2 * y - 1) * f),
    ),
    "poisson": (
        pt.models.PoissonRegression(features=2, intercept=False),
        np.array([0.0, 3.0, 1.0, 2.0]),
        lambda y, f: stats.poisson.logpmf(y, np.exp(f)),
    ),
    "linear": (
        pt.models.LinearRegression(features=2, intercept=False, noise=0.7),
        np.array([0.2, -1.0, 0.5, 2.0]),
        lambda y, f: stats.norm.logpdf(y, f, 0.7),
    ),
}


def density(full: bool) -> pt.families.Family:
    if full:
        return pt.families.Gaussian.from_moments(LOCATION, COVARIANCE)
    return pt.families.MeanField.from_moments(LOCATION, np.sqrt(np.diag(COVARIANCE)))


@eqx.filter_jit
def traced_values(expectation, model, q, data, keys) -> jax.Array:
    hyper = {name: jnp.asarray(value) for name, value in model.hyper.items()}
    view = q.mean() if expectation.of_mean else q
    return jax.lax.map(lambda key: expectation(model, view, data, hyper, key), keys)


def values(expectation, model, q, data, seeds=(0,)) -> np.ndarray:
    """E_q[log p] for each seed and row; for each row, if there is one seed."""
    with precision(np.float64):
        result = np.asarray(traced_values(expectation, model, q, data, jax.vmap(jax.random.key)(np.array(seeds))))
    return result[0] if len(seeds) == 1 else result


def by_quadrature(log_prob, y, full: bool) -> np.ndarray:
    V = COVARIANCE if full else np.diag(np.diag(COVARIANCE))
    expected = []
    for x, target in zip(X, y, strict=True):
        m, s = x @ LOCATION, np.sqrt(x @ V @ x)
        integrand = lambda z, m=m, s=s, y=target: stats.norm.pdf(z) * log_prob(y, m + s * z)  # noqa: E731
        expected.append(integrate.quad(integrand, -12, 12, epsabs=1e-10, limit=200)[0])
    return np.array(expected)


@pytest.mark.parametrize("full", [True, False], ids=["full", "mean-field"])
@pytest.mark.parametrize("name", ONE_PREDICTOR)
def test_deterministic_expectations_match_adaptive_quadrature(name, full):
    model, y, log_prob = ONE_PREDICTOR[name]
    expected = by_quadrature(log_prob, y, full)
    data = model.shard(0, (X, y)).data
    assert_allclose(values(GaussHermite(), model, density(full), data), expected, rtol=1e-6, atol=1e-8)
    if model.closed_form:
        assert_allclose(values(ClosedForm(), model, density(full), data), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ONE_PREDICTOR)
def test_more_quadrature_points_are_more_exact(name):
    model, y, log_prob = ONE_PREDICTOR[name]
    data, expected = model.shard(0, (X, y)).data, by_quadrature(log_prob, y, True)
    errors = [np.abs(values(GaussHermite(n), model, density(True), data) - expected).max() for n in (2, 12, 40)]
    assert errors[0] > 1e-3 or name == "linear"
    assert errors[2] <= errors[1] + 1e-9 <= errors[0] + 2e-9


@pytest.mark.parametrize("full", [True, False], ids=["full", "mean-field"])
@pytest.mark.parametrize("name", ONE_PREDICTOR)
def test_monte_carlo_is_unbiased(name, full):
    model, y, log_prob = ONE_PREDICTOR[name]
    data, expected = model.shard(0, (X, y)).data, by_quadrature(log_prob, y, full)
    runs = values(MonteCarlo(2000), model, density(full), data, range(8))
    error = runs.std(axis=0, ddof=1) / np.sqrt(len(runs))
    assert np.all(np.abs(runs.mean(axis=0) - expected) <= 5.4 * error + 1e-12)  # t with 7 degrees, 0.1 %
    assert np.all(error < 0.05)


def test_closed_form_with_unknown_noise_matches_draws():
    model = pt.models.LinearRegression(features=2, intercept=False)
    q = pt.families.NormalGamma.from_parameters(LOCATION, np.linalg.inv(COVARIANCE), 4.0, 2.0)
    y, generator = np.array([0.2, -1.0, 0.5, 2.0]), np.random.default_rng(0)
    tau = generator.gamma(4.0, 1 / 2.0, 200_000)
    f = (LOCATION + generator.multivariate_normal(np.zeros(2), COVARIANCE, len(tau)) / np.sqrt(tau)[:, None]) @ X.T
    draws = stats.norm.logpdf(y, f, 1 / np.sqrt(tau)[:, None])
    expected = values(ClosedForm(), model, q, model.shard(0, (X, y)).data)
    assert np.all(np.abs(draws.mean(axis=0) - expected) <= 5 * draws.std(axis=0) / np.sqrt(len(tau)))


def softmax_reference(samples: int) -> tuple[pt.models.SoftmaxRegression, pt.families.MeanField, np.ndarray]:
    """A three-class model, a density, and draws of log p(y | θ) for four rows."""
    model, generator = (
        pt.models.SoftmaxRegression(features=2, classes=3, intercept=False),
        np.random.default_rng(1),
    )
    location, scale = generator.normal(size=(3, 2)), generator.uniform(0.2, 0.9, (3, 2))
    theta = location + scale * generator.standard_normal((samples, 3, 2))
    log_p = special.log_softmax(np.einsum("nd,scd->snc", X, theta), axis=-1)
    q = pt.families.MeanField.from_moments(location, scale)
    return model, q, np.take_along_axis(log_p, np.array([0, 2, 1, 1])[None, :, None], axis=-1)[..., 0]


@pytest.mark.parametrize(
    ("expectation", "tolerance"),
    [
        (LocalReparameterisation(4096), 2e-3),
        (LocalReparameterisation(20_000, fixed=False), 1e-2),
        (MonteCarlo(20_000), 1e-2),
    ],
    ids=["fixed", "random", "parameters"],
)
def test_softmax_expectations_match_many_draws(expectation, tolerance):
    model, q, draws = softmax_reference(200_000)
    error = 4 * draws.std(axis=0) / np.sqrt(len(draws))
    data = model.shard(0, (X, np.array([0, 2, 1, 1]))).data
    actual = values(expectation, model, q, data)
    assert np.all(np.abs(actual - draws.mean(axis=0)) <= tolerance * 3 + error)
    # A row of zeros has no predictor to be uncertain about.
    assert_allclose(actual[2], -np.log(3), rtol=1e-12)


def test_fixed_draws_ignore_the_key_and_random_ones_do_not():
    model, q, _ = softmax_reference(1)
    data = model.shard(0, (X, np.array([0, 2, 1, 1]))).data
    fixed = values(LocalReparameterisation(8), model, q, data, (1, 2))
    random = values(LocalReparameterisation(8, fixed=False), model, q, data, (1, 2))
    assert np.array_equal(*fixed)
    assert not np.allclose(*random)


def test_quadrature_and_points_have_the_moments_of_a_standard_normal():
    nodes, weights = hermite(7)
    for power in range(13):
        assert_allclose(weights @ nodes**power, stats.norm.moment(power), rtol=1e-10, atol=1e-9)
    points = normal_points(64, 3)
    assert points.shape == (64, 3)
    assert_allclose(points.mean(axis=0), 0, atol=1e-15)
    assert_allclose((points**2).mean(axis=0), 1)


gaussian_model = pt.Model(density(True), lambda theta, y: -0.5 * (y - theta[0]) ** 2)
gamma_model = pt.Model(pt.families.Gamma.from_shape_rate(np.array(2.0), np.array(1.0)), lambda rate, y: -rate * y)


tree_model = pt.Model(
    pt.families.MeanField.from_moments({"slope": LOCATION, "level": np.zeros((1, 1))}, 1.0),
    lambda params, data: -jnp.abs(data[1] - data[0] @ params["slope"] - params["level"][0, 0]),
)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (ONE_PREDICTOR["logistic"][0], GaussHermite),
        (pt.models.LogisticRegression(features=2, posterior="mean-field"), GaussHermite),
        (ONE_PREDICTOR["probit"][0], GaussHermite),
        (ONE_PREDICTOR["poisson"][0], ClosedForm),
        (ONE_PREDICTOR["linear"][0], ClosedForm),
        (pt.models.LinearRegression(features=2), ClosedForm),
        (pt.models.SoftmaxRegression(features=2, classes=3), LocalReparameterisation),
        (pt.models.SoftmaxRegression(features=2, classes=3, posterior="full"), ExpectedSlope),
        (pt.models.SoftmaxRegression(features=200, classes=3, posterior="full"), MonteCarlo),
        (gaussian_model, ExpectedSlope),
        (gamma_model, MonteCarlo),
        (tree_model, ExpectedSlope),
        (pt.models.Network(lambda params, X: X @ params, params=np.zeros((2, 3), np.float32)), DrawnFisher),
        (pt.models.Network([2, 3, 2]), GaussNewton),
    ],
)
def test_the_best_possible_expectation_is_chosen(model, expected):
    assert type(choose(model, prior_of(model, model.hyper))) is expected


def messages(expectation, model, q, shard):
    with precision(np.float64):
        value, factor = jax.jit(lambda q: expectation.message(model, q, shard, {}, KEY))(q)
    return float(value), jax.tree.map(np.asarray, factor)


@pytest.mark.parametrize("full", [True, False], ids=["full", "mean-field"])
def test_slopes_see_the_curvature_of_a_kink(full):
    """E_q[-|y - f|] has slope E[sign(y - f)] and curvature -2 N(y; m, v) in f = xᵀθ; a Hessian is blind to it."""
    model = pt.Model(density(full), lambda theta, data: -jnp.abs(data[1] - data[0] @ theta))
    y = np.array([0.2, -1.0, 0.5, 2.0])[[0, 1, 3]]
    A = X[[0, 1, 3]]
    V = COVARIANCE if full else np.diag(np.diag(COVARIANCE))
    m, s = A @ LOCATION, np.sqrt(np.sum((A @ V) * A, axis=1))
    slope = A.T @ (1 - 2 * stats.norm.cdf((m - y) / s))
    curvature = -2 * (A.T * stats.norm.pdf(y, m, s)) @ A
    shard = model.shard(0, (A, y))
    value, factor = messages(ExpectedSlope(4096), model, density(full), shard)
    spread = s * np.sqrt(2 / np.pi) * np.exp(-((y - m) ** 2) / (2 * s**2)) + (y - m) * (
        1 - 2 * stats.norm.cdf((m - y) / s)
    )
    assert_allclose(value, -spread.sum(), rtol=1e-3)
    H = -factor.precision if full else -np.diag(factor.precision)
    expected = curvature if full else np.diag(np.diag(curvature))
    assert_allclose(H, expected, rtol=0.02, atol=0.02)
    assert_allclose(
        factor.precision_times_location - factor.precision @ LOCATION
        if full
        else factor.precision_times_location - factor.precision * LOCATION,
        slope,
        atol=5e-3,
    )
    assert_allclose(messages(ExpectedHessian(), model, density(full), shard)[1].precision, 0, atol=1e-12)


def test_slopes_of_a_quadratic_are_exact_and_zero_where_nothing_is_seen():
    model = pt.Model(
        pt.families.Gaussian.from_moments(np.zeros(3), np.eye(3)),
        lambda theta, data: -0.5 * (data[1] - data[0] @ theta[:2]) ** 2,
    )
    root = np.random.default_rng(0).normal(size=(3, 3))
    q = pt.families.Gaussian.from_moments(np.array([3e3, -2e3, 1e3]), root @ root.T + np.eye(3))
    y = np.array([0.2, -1.0, 0.5, 2.0])
    factor = messages(ExpectedSlope(64), model, q, model.shard(0, (X, y)))[1]
    assert_allclose(factor.precision[:2, :2], X.T @ X, rtol=1e-8, atol=1e-8)
    assert_allclose(factor.precision_times_location[:2], X.T @ y, rtol=1e-5, atol=1e-5)
    assert np.all(factor.precision[2] == 0)
    assert np.all(factor.precision[:, 2] == 0)
    assert factor.precision_times_location[2] == 0


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        (ONE_PREDICTOR["logistic"][0], ClosedForm()),
        (ONE_PREDICTOR["logistic"][0], LocalReparameterisation()),
        (ONE_PREDICTOR["logistic"][0], GaussNewton()),
        (pt.models.SoftmaxRegression(features=2, classes=3), GaussNewton()),
        (pt.models.SoftmaxRegression(features=2, classes=3), DrawnFisher()),
        (pt.models.Network([2, 3, 2]), ClosedForm()),
        (pt.models.Network([2, 1], likelihood="bernoulli"), GaussHermite()),
        (pt.models.LinearRegression(features=2), GaussHermite()),
        (pt.models.SoftmaxRegression(features=2, classes=3), GaussHermite()),
        (pt.models.SoftmaxRegression(features=2, classes=3, posterior="full"), LocalReparameterisation()),
        (gaussian_model, GaussHermite()),
        (gaussian_model, ClosedForm()),
        (gamma_model, ExpectedSlope()),
    ],
)
def test_an_expectation_that_does_not_fit_is_refused(model, wanted):
    with pytest.raises(InputError, match=f"{type(wanted).__name__} does not fit {type(model).__name__}"):
        choose(model, prior_of(model, model.hyper), wanted)


def test_a_wanted_expectation_that_fits_is_taken():
    for wanted in (GaussHermite(11), MonteCarlo(3)):
        model = ONE_PREDICTOR["poisson"][0]
        assert choose(model, prior_of(model, model.hyper), wanted) is wanted


@pytest.mark.parametrize(
    ("build", "number"),
    [(GaussHermite, 0), (MonteCarlo, 0), (LocalReparameterisation, -2), (MonteCarlo, 1.5), (ExpectedSlope, 0)],
)
def test_settings_out_of_range_are_refused(build, number):
    with pytest.raises(InputError):
        build(number)


REGRESSIONS = [name for name in pt.models.REGISTRY if name.endswith("-regression")]
POSTERIORS = [(name, kind) for name in REGRESSIONS for kind in ("full", "mean-field")]


@pytest.mark.parametrize(
    ("name", "posterior"), [pair for pair in POSTERIORS if pair != ("heteroscedastic-regression", "mean-field")]
)
def test_rows_of_zeros_have_finite_gradients(name, posterior):
    noise = {"noise": 1.0} if name == "linear-regression" else {}
    model = pt.models.REGISTRY[name](features=2, intercept=False, posterior=posterior, **noise)
    q, data = prior_of(model, model.hyper), model.shard(0, (np.zeros((2, 2)), np.array([0, 1]))).data
    expectation = choose(model, q)
    with precision(np.float64):
        hyper = {key: jnp.asarray(value) for key, value in model.hyper.items()}
        gradient = jax.jit(lambda q: q.mean_gradient(lambda v: jnp.sum(expectation(model, v, data, hyper, KEY))))(q)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_rows_of_zeros_have_finite_gradients_in_networks(activation):
    """Even where hidden units are all zero, and a prior that hardly varies."""
    model = pt.models.Network([2, 3, 2], activation=activation)
    zeros = jax.tree.map(np.zeros_like, model.start.location)
    data = model.shard(0, (np.zeros((2, 2)), np.array([0, 1])))
    for scale in (1.0, 1e-8):
        q = pt.families.MeanField.from_moments(zeros, np.float32(scale))
        value, message = GaussNewton().message(model, q, data, {}, KEY)
        gradient = q.mean_gradient(lambda v: jnp.sum(LocalReparameterisation(1)(model, v, data.data, {}, KEY)))
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((value, message, gradient)))


def two_variables() -> pt.families.Family:
    coin = pt.families.Categorical.from_probabilities(np.array([0.3, 0.7]))
    die = pt.families.Categorical.from_probabilities(np.array([0.2, 0.5, 0.3]))
    return pt.families.Product({"coin": coin, "die": die})


def test_few_values_are_all_looked_at():
    table = np.array([[0.1, -0.4, 2.0], [1.5, 0.3, -0.7]])
    model = pt.Model(two_variables(), lambda theta, scale: scale * jnp.asarray(table)[theta["coin"], theta["die"]])
    q = two_variables()
    assert isinstance(choose(model, q), Enumeration)
    expected = np.array([0.3, 0.7]) @ table @ np.array([0.2, 0.5, 0.3])
    with precision(np.float64):
        assert_allclose(Enumeration()(model, q, np.array([1.0, 3.0]), {}, KEY), [expected, 3 * expected], rtol=1e-12)


def test_more_values_than_can_be_looked_at_are_refused():
    coins = pt.families.Independent.of([pt.families.Categorical.from_probabilities(np.full(2, 0.5))] * 30)
    model = pt.Model(coins, lambda theta, x: x * jnp.sum(theta))
    assert isinstance(choose(model, coins), MonteCarlo)
    with pytest.raises(InputError, match="it needs a posterior over at most 65536 values"):
        choose(model, coins, Enumeration())
