"""Responses of regressions: all of them keep their promises, and a new one is one class."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

import partita as pt
from partita.designs.responses import RESPONSES, Response
from partita.models.linear import LinearPredictor
from partita.report.charts import draw_pictures
from partita.report.formatting import format_ratio
from partita.report.regression import build_tables, describe, read_findings


class ExponentialRegression(LinearPredictor):
    """Times until something happens, at the rate exp(-xᵀθ)."""

    def pointwise(self, f, y, hyper):
        return -f - y * jnp.exp(-f)

    def response(self, f):
        return jnp.exp(f)


class Exponential(Response):
    """Times until something happens, whose mean is exp(f)."""

    name = "exponential"
    also_called = ("survival",)
    wanted = "a time above 0"
    example = 1.0
    ratio = "time ratio"
    has_density = True

    def is_possible(self, y):
        return bool(np.all(y > 0))

    def make_model(self, features, intercept, prior_scale, noise_scale):
        return ExponentialRegression(features=features, intercept=intercept, prior_scale=prior_scale)

    def distribution(self, f, noise_scale):
        import numpyro.distributions as dist

        return dist.Exponential(jnp.exp(-f))

    def expect(self, f, variances):
        return np.exp(f[:, None] + variances() / 2).mean(axis=1)

    def draw(self, f, others, rng):
        return rng.exponential(np.exp(f))


@pytest.fixture
def exponential(monkeypatch):
    monkeypatch.setitem(RESPONSES, "exponential", Exponential())


def times(rows=600, sites=3):
    rng = np.random.default_rng(0)
    x = rng.normal(size=rows)
    table = pd.DataFrame({"x": x, "y": rng.exponential(np.exp(1.0 + 0.7 * x)), "clinic": np.arange(rows) % 30})
    return table, {f"site {m}": table[np.arange(rows) % sites == m] for m in range(sites)}


def test_a_new_response_is_one_class(exponential, tmp_path):
    table, sites = times()
    found = pt.regress("y ~ x", sites, family="Survival", held_out=0.2, quiet=True)
    fitted = pt.regress("y ~ x", sites, family="exponential", quiet=True)

    def loss(w):
        f = w[0] + w[1] * table.x
        return np.sum(f + table.y * np.exp(-f))

    rows = fitted.coefficients()
    assert_allclose([row["mean"] for row in rows], minimize(loss, np.zeros(2)).x, atol=0.1 * rows[0]["sd"])
    assert_allclose(rows[1]["time ratio"], np.exp(rows[1]["mean"]))
    calibration = found.calibration()
    assert calibration["on"] == "rows that were held out"
    assert calibration["inside"][0.95] == pytest.approx(0.95, abs=0.05)
    fitted.save(tmp_path / "found.safetensors")
    loaded = pt.Regression.load(tmp_path / "found.safetensors")
    assert_allclose(loaded.predict(table), fitted.predict(table))
    row = describe([fitted])
    (coefficients, *_) = build_tables(row).values()
    assert coefficients[1]["time ratio"] == format_ratio(rows[1]["time ratio"])
    (picture, *_) = draw_pictures(read_findings(row))
    assert picture.figure.layout.xaxis.title.text == "time ratio"
    low, high = fitted.predict_interval(table).T
    assert np.mean((low < table.y) & (table.y < high)) == pytest.approx(0.95, abs=0.03)


def test_a_new_response_has_groups_and_its_own_words(exponential):
    _, sites = times(rows=180)
    grouped = pt.regress("y ~ x + (1 | clinic)", sites, family="exponential", quiet=True)
    assert [row["name"] for row in grouped.spreads()] == ["sd of clinic"]
    wrong = {name: table.assign(y=-table.y) for name, table in sites.items()}
    with pytest.raises(pt.errors.InputError, match="has to be a time above 0 for exponential"):
        pt.regress("y ~ x", wrong, family="exponential", quiet=True)
    counts = {name: table.assign(y=np.ceil(table.y)) for name, table in sites.items()}
    counted = pt.regress("y ~ x", counts, family="poisson", quiet=True)
    with pytest.raises(pt.errors.InputError, match="densities of numbers and probabilities"):
        pt.compare([grouped, counted])


@pytest.mark.parametrize("response", RESPONSES.values(), ids=list(RESPONSES))
def test_what_is_expected_is_the_mean_of_what_is_drawn(response):
    rng = np.random.default_rng(1)
    others = {"noise": np.full((200_000, 1), 0.5), "size": np.full((200_000, 1), 4.0)}
    mean, variance = np.array([-1.0, 0.0, 1.5]), 0.09
    f = mean + np.sqrt(variance) * rng.normal(size=(200_000, 3))
    drawn = response.draw(f, others, rng)
    expected = response.expect(mean, lambda: np.full((3, 1), variance))
    assert np.all(np.abs(expected - drawn.mean(axis=0)) < 5 * drawn.std(axis=0) / np.sqrt(200_000))
    assert response.is_possible(np.array([response.example, 1.0]))
