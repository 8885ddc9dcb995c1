"""A sparse process as a model of the loop: against scikit-learn, dense algebra and the textbook."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from numpy.testing import assert_allclose
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import partita as pt
from partita.errors import InputError, ShardError
from partita.gp import SparseProcess, kernels, likelihoods
from partita.server.schedules import OnePass, Sequential
from partita.solvers import FixedPoint, MomentMatching
from partita.studies.methods.processes import textbook_propagation

GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-3, 3, (40, 1))
Y = np.sin(2 * X[:, 0]) + 0.3 * GENERATOR.normal(size=40)
KERNEL, NOISE = kernels.SquaredExponential(1.5, 0.8), 0.3
SITES = [(X[i::4], Y[i::4]) for i in range(4)]
NEW = np.linspace(-4, 4, 9)[:, None]


def exactly(model, shards=SITES):
    return pt.fit(model, shards, solver=FixedPoint(step_size=1.0), schedule=OnePass(), damping=1.0)


def test_with_a_point_at_every_row_it_is_the_exact_process():
    model = SparseProcess(X, KERNEL, likelihoods.Normal(NOISE))
    result = exactly(model)
    reference = GaussianProcessRegressor(ConstantKernel(1.5) * RBF(0.8), alpha=NOISE**2, optimizer=None).fit(X, Y)
    mean, std = reference.predict(NEW, return_std=True)
    m, v = model.latent(result.posterior, NEW)
    assert_allclose(m, mean, atol=1e-5)
    assert_allclose(v, std**2, atol=1e-5)
    assert result.log_evidence == pytest.approx(reference.log_marginal_likelihood_value_, abs=1e-4)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_the_evidence_of_every_power(power):
    """The bound of Titsias (2009) at 0, FITC at 1, and what Bui, Yan and Turner (2017) have between."""
    model = SparseProcess(np.linspace(-3, 3, 6)[:, None], KERNEL, likelihoods.Normal(NOISE), power)
    V, left = model.project_rows(X)
    noise = NOISE**2
    covariance = V @ V.T + np.diag(power * left + noise)
    expected = scipy.stats.multivariate_normal(np.zeros(40), covariance).logpdf(Y)
    if power == 0:
        expected -= 0.5 * left.sum() / noise
    else:
        expected -= (1 - power) / (2 * power) * np.log1p(power * left / noise).sum()
    assert exactly(model).log_evidence == pytest.approx(expected, abs=1e-6)


def test_ep_of_a_process_is_that_of_the_textbook():
    labels = (Y > 0).astype(float)[:15]
    model = SparseProcess(X[:15], KERNEL, likelihoods.Probit(), power=1.0)
    rows = [(X[i : i + 1], labels[i : i + 1]) for i in range(15)]
    result = pt.fit(model, rows, solver=MomentMatching(), schedule=Sequential(passes=20), damping=1.0)
    K = 1.5 * np.exp(-0.5 * (X[:15] - X[:15].T) ** 2 / 0.8**2)
    mean, variance = textbook_propagation(K, 2 * labels - 1)
    at_once = pt.fit(model, [(X[:15], labels)], solver=MomentMatching(steps=60, each_row=True), schedule=OnePass())
    for posterior in (result.posterior, at_once.posterior):
        m, v = model.latent(posterior, X[:15])
        assert_allclose(m, mean, atol=1e-5)
        assert_allclose(v, variance, atol=1e-5)


@pytest.mark.parametrize("power", [0.0, 0.4])
def test_a_likelihood_is_averaged_over_what_the_points_leave_open(power):
    model = SparseProcess(np.zeros((1, 1)), KERNEL, likelihoods.Logit(), power)
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    values = -np.logaddexp(0, -(0.7 + np.sqrt(0.5) * nodes))
    weights = weights / weights.sum()
    expected = weights @ values if power == 0 else np.log(weights @ np.exp(power * values)) / power
    with pt.foundation.runtime.precision(np.float64):
        assert float(model.pointwise(np.asarray(0.7), jnp.array([1.0, 0.5]), {})) == pytest.approx(expected, abs=1e-9)


@pytest.mark.slow
def test_the_noise_can_be_learnt():
    """By the sites' shares of the gradient, to the maximum of the collapsed bound."""
    points = np.linspace(-3, 3, 12)[:, None]
    model = SparseProcess(points, KERNEL, likelihoods.Normal(1.0))
    result = pt.fit(model, SITES, hyper=pt.LearnHyper(), schedule=pt.schedules.Synchronous(rounds=60))

    V, left = model.project_rows(X)

    def bound(noise):
        covariance = V @ V.T + noise**2 * np.eye(40)
        return scipy.stats.multivariate_normal(np.zeros(40), covariance).logpdf(Y) - 0.5 * left.sum() / noise**2

    best = max(np.linspace(0.2, 0.5, 61), key=bound)
    assert result.hyper["noise"] == pytest.approx(best, abs=0.02)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"points": np.zeros(3)}, "points"),
        ({"points": np.zeros((0, 1))}, "points"),
        ({"power": 1.5}, "power"),
        ({"power": -0.1}, "power"),
    ],
)
def test_what_makes_no_process_is_refused(settings, words):
    with pytest.raises(InputError, match=words):
        SparseProcess(**{"points": X, "kernel": KERNEL, "likelihood": likelihoods.Normal(), **settings})


def test_shards_are_checked():
    model = SparseProcess(X, KERNEL, likelihoods.Probit())
    with pytest.raises(ShardError, match="features"):
        model.shard(0, (np.zeros((3, 2)), np.zeros(3)))
    with pytest.raises(InputError, match="labels"):
        model.shard(0, (X[:3], np.array([0.0, 1.0, 2.0])))
