"""`pt.Model` with its defaults, two numbers each, at two sites: the exact posterior on a grid is the reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import gammaln

import partita as pt
from partita.families import Gaussian, MeanField
from partita.foundation.runtime import precision
from partita.server.schedules import OnePass
from partita.solvers import Gradient

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(150, 2))
F = X @ [0.8, -0.5]


def laplace(theta, data):
    return -jnp.abs(data[1] - data[0] @ theta) / 0.5


def poisson(theta, data):
    f = data[0] @ theta
    return data[1] * f - jnp.exp(f) - gammaln(data[1] + 1)


def student(theta, data):
    return -2 * jnp.log1p(((data[1] - data[0] @ theta) / 0.5) ** 2 / 3)


def weibull(theta, data):
    shape, u = jnp.exp(theta[1]), jnp.log(data[1]) - theta[0]
    return theta[1] + shape * u - jnp.exp(shape * u)


def mixture(theta, data):
    near, far = (jnp.log(p) - 2 * (data[1] - m) ** 2 for p, m in ((0.7, theta[0]), (0.3, theta[0] + theta[1])))
    return jnp.logaddexp(near, far)


def heteroscedastic(theta, data):
    log_noise = theta[1] * data[0][:, 1] - 1
    return -log_noise - 0.5 * (data[1] - theta[0] * data[0][:, 0]) ** 2 * jnp.exp(-2 * log_noise)


TARGETS = {
    laplace: F + GENERATOR.laplace(0, 0.5, 150),
    poisson: GENERATOR.poisson(np.exp(F)).astype(float),
    student: F + 0.5 * GENERATOR.standard_t(3, 150),
    weibull: 2 * GENERATOR.weibull(1.5, 150),
    mixture: np.where(GENERATOR.random(150) < 0.3, 3.0, 0.0) + 0.5 * GENERATOR.normal(size=150),
    heteroscedastic: 0.8 * X[:, 0] + np.exp(0.5 * X[:, 1] - 1) * GENERATOR.normal(size=150),
}


def on_a_grid(log_prob, data, q):
    """Mean and standard deviations of the posterior under N(0, 10²), on a grid around a first guess."""
    axes = [np.linspace(m - 8 * s, m + 8 * s, 161) for m, s in zip(q.location, q.scale, strict=True)]
    theta = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    with precision(np.float64):
        logs = np.asarray(jax.jit(jax.vmap(lambda one: jnp.sum(log_prob(one, data))))(theta))
    p = np.exp(logs - 0.5 * np.sum(theta**2, axis=1) / 100 - logs.max())
    p /= p.sum()
    mean = p @ theta
    return mean, np.sqrt(p @ (theta - mean) ** 2)


@pytest.mark.parametrize("log_prob", TARGETS, ids=lambda function: function.__name__)
def test_deviations_are_those_of_the_exact_posterior(log_prob):
    """Within 3 %, whether the likelihood has two derivatives or a kink."""
    y = TARGETS[log_prob]
    model = pt.Model(Gaussian.from_moments(np.zeros(2), 100 * np.eye(2)), log_prob)
    result = pt.fit(model, [(X[:70], y[:70]), (X[70:], y[70:])])
    mean, deviation = on_a_grid(log_prob, (X, y), result.posterior)
    assert np.all(np.abs(result.posterior.location - mean) < 0.1 * deviation)
    assert np.all(np.abs(result.posterior.scale / deviation - 1) < 0.03)
    assert result.history[-1]["problem"] is None


def test_parameters_by_name_and_gradient_solvers():
    """A tree of parameters is integrated as the vector of its numbers is; gradients find the same optimum."""
    y = TARGETS[laplace]
    shards = [(X[:70], y[:70]), (X[70:], y[70:])]

    def by_name(params, data):
        return laplace(jnp.stack([params["a"], params["b"][0]]), data)

    vector = pt.fit(pt.Model(MeanField.from_moments(np.zeros(2), 10.0), laplace), shards).posterior
    prior = MeanField.from_moments({"a": np.zeros(()), "b": np.zeros(1)}, 10.0)
    start = MeanField.from_moments({"a": np.zeros(()), "b": np.zeros(1)}, 0.1)
    tree = pt.fit(pt.Model(prior, by_name, init=start), shards).posterior
    np.testing.assert_allclose([tree.location["a"], tree.location["b"][0]], vector.location, rtol=1e-4)
    np.testing.assert_allclose([tree.scale["a"], tree.scale["b"][0]], vector.scale, rtol=1e-4)
    model = pt.Model(MeanField.from_moments(np.zeros(2), 10.0), laplace)
    solver = Gradient("adam", 0.02, epochs=400, tolerance=0.0)
    other = pt.fit(model, [(X, y)], solver=solver, schedule=OnePass(), damping=1.0).posterior
    np.testing.assert_allclose(other.scale, vector.scale, rtol=0.02)
