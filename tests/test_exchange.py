"""Results as ArviZ has them: its summaries are ours, and its comparisons work."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import partita as pt

X, Y = pt.datasets.load("diabetes")
X, Y = pt.datasets.standardised(X)[:, :3], (Y - Y.mean()) / Y.std()
SHARDS = pt.datasets.split((X, Y), 3)
SHORT = pt.schedules.Synchronous(rounds=10)


@pytest.fixture(scope="module")
def linear():
    return pt.fit(pt.models.LinearRegression(3, noise=0.8), SHARDS, schedule=SHORT)


def test_draws_are_of_the_posterior(linear):
    import arviz

    table = arviz.summary(linear.to_arviz(draws=2000), kind="stats", round_to="none")
    assert list(table.index) == ["coef[0]", "coef[1]", "coef[2]", "intercept"]
    scale = linear.posterior.scale
    assert_allclose(table["mean"], linear.posterior.location, atol=0.1 * scale.max())
    assert_allclose(table["sd"], scale, rtol=0.1)


def test_what_draws_say_about_data(linear):
    data = linear.to_arviz(SHARDS, draws=400)
    assert_allclose(np.sort(data.observed_data.y), np.sort(Y))
    weights = np.concatenate([data.posterior.coef, data.posterior.intercept.values[..., None]], axis=-1)[1, 7]
    f = np.column_stack([SHARDS[0][0], np.ones(len(SHARDS[0][1]))]) @ weights
    likely = stats.norm.logpdf(SHARDS[0][1], f, 0.8)
    assert_allclose(data.log_likelihood.y[1, 7, : len(f)], likely, rtol=1e-9)
    assert_allclose(float(data.posterior_predictive.y.std()), 1.0, atol=0.1)
    assert data.sample_stats.free_energy.shape == (1, 10)


def test_models_can_be_compared(linear):
    import arviz

    robust = pt.fit(pt.models.RobustRegression(3, noise=0.7), SHARDS, schedule=SHORT)
    both = {"normal": linear.to_arviz(SHARDS, 400), "robust": robust.to_arviz(SHARDS, 400)}
    table = arviz.compare(both)
    assert list(table.index) == ["normal", "robust"]


def test_programs_have_their_names():
    def program(X, y):
        slope = numpyro.sample("slope", dist.Normal(0, 1).expand([3]).to_event(1))
        numpyro.sample("score", dist.Normal(X @ slope, 0.8), obs=y)
        # As wide as one row.
        numpyro.sample("again", dist.Normal(slope[0], 0.8), obs=y)

    data = pt.fit(pt.from_numpyro(program), SHARDS, schedule=SHORT).to_arviz(SHARDS, 100)
    assert data.posterior.slope.shape == (4, 25, 3)
    assert data.posterior_predictive.score.shape == (4, 25, len(Y))
    assert data.posterior_predictive.again.shape == (4, 25, len(Y))
    assert_allclose(np.sort(data.observed_data.score), np.sort(Y))


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (pt.models.LinearRegression(3), {"coef", "intercept", "noise"}),
        (pt.models.Network([3, 2, 1], likelihood="gaussian"), {"0.weights", "0.biases", "1.weights", "1.biases"}),
    ],
)
def test_every_model_has_names(model, names):
    data = pt.fit(model, SHARDS, schedule=pt.schedules.Synchronous(rounds=1)).to_arviz(SHARDS, 20)
    assert len(set(data.posterior.data_vars)) == len(names)
    assert data.posterior_predictive.y.shape[:2] == (4, 5)


@pytest.mark.parametrize(
    "model", [pt.models.LogisticRegression(3), pt.models.ProbitRegression(3), pt.models.PoissonRegression(3)]
)
def test_replicated_targets_are_of_the_right_kind(model):
    y = (Y > 0).astype(float)
    data = pt.fit(model, [(X, y)], schedule=pt.schedules.Synchronous(rounds=3)).to_arviz([(X, y)], 200)
    drawn = np.asarray(data.posterior_predictive.y)
    assert np.all(drawn == np.floor(drawn))
    assert abs(drawn.mean() - y.mean()) < 0.1


def test_means_and_variances_have_their_own_names():
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(200, 2))
    y = 3 + inputs @ [1.0, -1.0] + generator.normal(size=200) * np.exp(-1 + 0.5 * inputs[:, 0])
    result = pt.fit(pt.models.HeteroscedasticRegression(2), [(inputs, y)], schedule=SHORT)
    data = result.to_arviz([(inputs, y)], 400)
    names = ["coef", "intercept", "log_variance_coef", "log_variance_intercept"]
    assert sorted(data.posterior) == names
    found = np.concatenate([np.atleast_1d(data.posterior[name].mean(("chain", "draw"))) for name in names])
    assert_allclose(found, result.posterior.location, atol=0.3 * result.posterior.scale.max())
    assert_allclose(float(data.posterior_predictive.y.mean()), y.mean(), atol=0.1)


def test_parameters_that_are_trees_within_trees():
    rows = np.random.default_rng(0).normal(size=(40, 2))
    mixture = pt.fit(pt.models.GaussianMixture(2, 2), [rows[:20], rows[20:]], schedule=SHORT)
    assert all(values.shape[:2] == (4, 5) for values in mixture.to_arviz(draws=20).posterior.values())
    with pytest.raises(pt.errors.InputError, match="draws: expected a whole number"):
        mixture.to_arviz(draws=0)


def test_rows_come_first_and_added_terms_are_no_observations():
    pairs = np.column_stack([Y, -Y])
    sites = [(X[:100], pairs[:100]), (X[100:], pairs[100:])]

    def program(X, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3, 2]).to_event(2))
        with numpyro.plate("outputs", 2, dim=-2), numpyro.plate("rows", len(X), dim=-1):
            numpyro.sample("pair", dist.Normal((X @ w).T, 1), obs=y.T)
            numpyro.factor("more", jnp.zeros((2, len(X))))

    data = pt.fit(pt.from_numpyro(program), sites, schedule=SHORT).to_arviz(sites, 16)
    assert_allclose(data.observed_data["pair"], pairs)
    assert data.posterior_predictive["pair"].shape == (4, 4, len(Y), 2)
    assert data.log_likelihood["pair"].shape == (4, 4, len(Y))
    assert set(data.observed_data) == {"pair"}


def test_a_network_with_one_output_has_one_number_per_row():
    network = pt.models.Network([3, 4, 1], likelihood="gaussian")
    data = pt.fit(network, SHARDS, schedule=pt.schedules.Synchronous(rounds=2)).to_arviz(SHARDS, 16)
    shape = (4, 4, len(Y))
    assert data.log_likelihood.y.shape == data.posterior_predictive.y.shape == shape
    assert data.observed_data.y.shape == shape[2:]
