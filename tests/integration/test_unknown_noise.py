"""Regressions whose noise is not known, at every ratio of signal to noise, against brute force."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose
from scipy import integrate, stats

import partita as pt
from quadrature import Exact, linear_regression

# Average heights and weights of American women (The World Almanac and Book of Facts, 1975).
HEIGHTS = np.arange(58.0, 73.0)
WEIGHTS = np.array([115, 117, 120, 123, 126, 129, 132, 135, 139, 142, 146, 150, 154, 159, 164.0])


def data(rows: int, unexplained: float, features: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Rows of which a linear model leaves so much of the variance unexplained, in unlike units."""
    rng = np.random.default_rng(rows)
    X = rng.normal(size=(rows, features))
    signal = X @ np.linspace(1, -0.5, features)
    y = np.sqrt(1 - unexplained) * signal / signal.std() + np.sqrt(unexplained) * rng.normal(size=rows)
    return X * 10.0 ** np.linspace(-5, 5, features) + 3, 1e4 * y - 2e5


def standardised(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean()) / y.std()


def reference(X: np.ndarray, y: np.ndarray, prior_scale: float, intercept_scale: float = 10.0) -> Exact:
    X, y = standardised(X, y)
    return linear_regression(np.column_stack([X, np.ones(len(y))]), y, [*[prior_scale] * X.shape[1], intercept_scale])


def frame(X: np.ndarray, y: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({f"x{number}": column for number, column in enumerate(X.T)} | {"y": y})


@pytest.mark.parametrize("unexplained", [1.0, 0.5, 1e-2, 1e-4, 1e-8])
@pytest.mark.parametrize("rows", [5, 20, 1000])
def test_coefficients_are_exact_at_any_ratio_of_signal_to_noise(rows, unexplained):
    """By formula and by estimator, against brute force with the documented prior: a hundredth of a deviation."""
    X, y = data(rows, unexplained)
    exact = reference(X, y, 2.5)
    table = frame(X, y)
    found = pt.regress("y ~ x0 + x1", {"north": table[: rows // 2], "south": table[rows // 2 :]})
    rows_found = {row["name"]: row for row in found.coefficients()}
    unit, spread = X.std(axis=0) / y.std(), np.sqrt(np.diag(exact.covariance))
    for number in range(2):
        row = rows_found[f"x{number}"]
        assert abs(row["mean"] * unit[number] - exact.location[number]) < 0.01 * spread[number]
        assert row["sd"] * unit[number] == pytest.approx(spread[number], rel=0.01)
    noise = np.exp(np.interp(0.5, np.cumsum(exact.shares) - 0.5 * exact.shares, exact.log_noise))
    assert found.spreads()[0]["median"] == pytest.approx(noise * y.std(), rel=0.01)
    assert found.log_evidence == pytest.approx(exact.log_evidence - rows * np.log(y.std()), abs=0.02)
    model = pt.PartitionedRegressor(prior_scale=2.5).fit(X, y, groups=np.arange(rows) % 2)
    assert_allclose(model.coef_ * unit, exact.location[:2], atol=0.01 * spread[:2].min())
    wider = reference(X, y, 2.5, 25.0).log_evidence
    assert model.log_evidence_ == pytest.approx(wider - rows * np.log(y.std()), abs=0.02)


def test_a_stream_of_a_million_rows_with_hardly_any_noise():
    """The prior is long forgotten: least squares."""
    X, y = standardised(*data(1_000_000, 1e-8, features=3))
    state = pt.models.LinearRegression(features=3)
    for part in np.array_split(np.arange(len(y)), 2):
        state = pt.partial_fit(state, (X[part], y[part]))
    squares = sm.OLS(y, np.column_stack([X, np.ones(len(y))])).fit()
    assert_allclose(state.posterior.location, squares.params, atol=0.05 * squares.bse.min())
    assert_allclose(np.sqrt(np.diag(state.posterior.covariance)), squares.bse, rtol=0.01)
    _, std = state.predict(X[:2], return_std=True)
    assert_allclose(std, np.sqrt(squares.scale), rtol=0.01)


def test_predictions_are_as_sharp_as_the_data():
    X, y = data(1000, 1e-6)
    model = pt.PartitionedRegressor().fit(X, y)
    assert_allclose(model.predict(X[:3], return_std=True)[1], 1e-3 * y.std(), rtol=0.1)


def test_a_parabola_through_fifteen_points():
    table = pd.DataFrame({"height": HEIGHTS, "weight": WEIGHTS})
    found = pt.regress("weight ~ height + I(height**2)", {"first": table[:8], "second": table[8:]})
    X = np.column_stack([HEIGHTS, HEIGHTS**2])
    exact = reference(X, WEIGHTS, 2.5)
    squares = sm.OLS(WEIGHTS, sm.add_constant(X)).fit()
    scale = WEIGHTS.std() / X.std(axis=0)
    for number, name in enumerate(("height", "I(height ** 2)")):
        row = next(row for row in found.coefficients() if row["name"] == name)
        assert row["mean"] == pytest.approx(exact.location[number] * scale[number], rel=1e-4)
        assert row["sd"] == pytest.approx(np.sqrt(exact.covariance[number, number]) * scale[number], rel=1e-4)
        assert abs(row["mean"] - squares.params[number + 1]) < 0.3 * squares.bse[number + 1]
        assert 1 < row["sd"] / squares.bse[number + 1] < 1.25


def test_a_mean_alone_is_exact_too():
    y = np.random.default_rng(1).normal(10, 2, 6)
    found = pt.regress("y ~ 1", {"north": pd.DataFrame({"y": y[:2]}), "south": pd.DataFrame({"y": y[2:]})})
    exact = linear_regression(np.ones((6, 1)), (y - y.mean()) / y.std(), [10.0])
    assert found.coefficients()[0]["sd"] == pytest.approx(np.sqrt(exact.covariance[0, 0]) * y.std(), rel=1e-4)
    assert found.log_evidence == pytest.approx(exact.log_evidence - 6 * np.log(y.std()), abs=1e-3)


def test_data_without_any_noise_have_an_answer():
    X = np.linspace(-1, 1, 30)[:, None]
    model = pt.PartitionedRegressor().fit(X, 3 * X[:, 0] + 2, groups=np.arange(30) % 3)
    assert_allclose(model.coef_, [3], rtol=1e-9)
    assert np.ptp(model.intervals()) < 1e-4
    assert np.isfinite(model.log_evidence_)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_fewer_rows_than_coefficients(rows):
    X, y = np.random.default_rng(1).normal(size=(3, 4))[:rows], np.array([1.0, -1.0, 0.5])[:rows]
    model = pt.models.LinearRegression(features=4)
    q = pt.fit(model, [(X, y)]).posterior
    exact = linear_regression(np.column_stack([X, np.ones(rows)]), y, [1, 1, 1, 1, 10.0]) if rows > 2 else None
    assert np.all(np.diag(q.covariance) > 0)
    assert np.all(np.diag(q.covariance)[:4] <= 1 + 1e-9)
    if exact is not None:
        assert_allclose(q.location, exact.location, atol=1e-3)
        assert_allclose(q.covariance, exact.covariance, atol=1e-3)


def grouped_evidence(x: np.ndarray, y: np.ndarray, group: np.ndarray) -> float:
    """log p(y) of y ~ x + (1 | group), in the units of y: over log σ and the groups' spread, by a grid."""
    x, y, unit = (x - x.mean()) / x.std(), (y - y.mean()) / y.std(), y.std()
    Z = (group[:, None] == np.unique(group)).astype(float)
    K = 2.5**2 * np.outer(x, x) + 100.0

    def log_joint(log_sigma: float, spread: float) -> float:
        covariance = K + spread**2 * Z @ Z.T + np.exp(2 * log_sigma) * np.eye(len(y))
        prior = np.log(2) + stats.t.logpdf(np.exp(log_sigma), 3) + log_sigma + stats.halfnorm.logpdf(spread)
        return stats.multivariate_normal.logpdf(y, None, covariance) + prior

    sigmas, spreads = np.linspace(-3.5, 0.5, 41), np.concatenate([np.linspace(0, 0.5, 41), np.linspace(0.55, 3, 20)])
    logs = np.array([[log_joint(a, b) for b in spreads] for a in sigmas])
    total = integrate.simpson(integrate.simpson(np.exp(logs - logs.max()), x=spreads), x=sigmas)
    return logs.max() + np.log(total) - len(y) * np.log(unit)


def test_groups_are_not_invented():
    """Both formulas rest on the same priors: without an effect of groups, the evidence is against one."""
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(8), 6)
    x = rng.normal(size=48)
    y = 4 + x + 0.3 * rng.normal(size=48)
    table = pd.DataFrame({"x": x, "y": y, "ward": [f"w{g}" for g in group]})
    sites = {"north": table[:24], "south": table[24:]}
    without, with_groups = (pt.regress(formula, sites) for formula in ("y ~ x", "y ~ x + (1 | ward)"))
    exact = reference(x[:, None], y, 2.5).log_evidence - 48 * np.log(y.std())
    assert without.log_evidence == pytest.approx(exact, abs=1e-3)
    truth = grouped_evidence(x, y, group)
    assert truth - 0.6 < with_groups.log_evidence < truth + 0.01
    best = pt.compare([without, with_groups])[0]
    assert best["formula"] == "y ~ x"
    assert best["weight"] > 0.5


def test_a_prior_that_holds_weights_back_is_said_aloud():
    X, y = standardised(*data(50, 1e-4))
    model = pt.models.LinearRegression(features=2)
    with pytest.warns(RuntimeWarning, match=r"weight 0 is \d+ standard deviations .* raise prior_scale \(1\)"):
        pt.fit(model, [(X, 8 * y)])
    with pytest.warns(RuntimeWarning, match=r"the intercept is \d+ standard .* raise intercept_scale \(10\)"):
        pt.fit(model, [(X, y + 60)])
    with pytest.warns(RuntimeWarning, match=r"noise is \d+ times its prior scale: .* raise noise_scale \(1\)"):
        pt.fit(model, [(X, 1e4 * y)])


def test_a_model_for_data_has_priors_in_their_units():
    X, y = data(50, 0.1)
    X, _ = standardised(X, y)
    squares = sm.OLS(y, sm.add_constant(X)).fit()
    q = pt.fit(pt.models.LinearRegression.for_data(X, y), [(X, y)]).posterior
    assert_allclose(q.location, np.roll(squares.params, -1), atol=0.15 * squares.bse.max())
    assert_allclose(np.sqrt(np.diag(q.covariance)), np.roll(squares.bse, -1), rtol=0.05)
    given = pt.models.LinearRegression.for_data(X, y, noise=2.0)
    assert (given.prior_scale, given.noise) == (1.0, 2.0)
