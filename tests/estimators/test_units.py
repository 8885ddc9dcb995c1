"""Streams whose first batch says little of the units: what is learnt is what pooled rows teach, in units of theirs."""

import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import partita as pt
from partita.errors import InputError
from partita.families import Gaussian, MeanField, Substitution, WeightsAndNoise
from quadrature import linear_regression


def rows(seed=0, number=90):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(number, 3)) * [1.0, 50.0, 0.01] + [0.0, 300.0, 5.0]
    return X, 40 + X @ [3.0, 0.2, 100.0] + 2 * rng.normal(size=number)


def growing():
    X, y = rows()
    return X * np.repeat([1e-3, 1.0, 1e3], 30)[:, None], y * np.repeat([1e-3, 1.0, 1e3], 30)


def flat():
    """Columns, and then the target too, that do not vary in the first batch."""
    X, y = rows()
    X[:30, 0], X[:30, 2], y[:30] = 0.0, 5.0, 40.0
    return X, y


def sorted_rows():
    X, y = rows()
    order = np.argsort(y)
    return X[order], y[order]


STREAMS = {
    "one row first": (rows, [1, 30, 60]),
    "one row each": (lambda: rows(number=12), list(range(1, 12))),
    "growing": (growing, [30, 60]),
    "flat": (flat, [30, 60]),
    "sorted": (sorted_rows, [10, 50]),
}


@pytest.fixture(autouse=True)
def nothing_is_said_of_batches_far_off():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*has it other units")
        warnings.filterwarnings("ignore", message=".*without their data")
        yield


def streamed(model, X, y, ends):
    for part in np.split(np.arange(len(y)), ends):
        model.partial_fit(X[part], y[part])
    return model


@pytest.mark.parametrize("name", STREAMS)
def test_a_regression_is_that_of_pooled_rows_whatever_came_first(name):
    make, ends = STREAMS[name]
    X, y = make()
    stream = streamed(pt.PartitionedRegressor(quiet=True), X, y, ends)
    groups = np.searchsorted(ends, np.arange(len(y)), side="right")
    pooled = pt.PartitionedRegressor(quiet=True).fit(X, y, groups=groups)
    np.testing.assert_allclose(stream.coef_, pooled.coef_, rtol=1e-7)
    np.testing.assert_allclose(stream.intervals(), pooled.intervals(), rtol=1e-6)
    np.testing.assert_allclose(stream.predict(X, return_std=True), pooled.predict(X, return_std=True), rtol=1e-7)
    assert stream.log_evidence_ == pytest.approx(pooled.log_evidence_, abs=1e-6)
    np.testing.assert_allclose(
        [site["nats"] for site in stream.sites_], [site["nats"] for site in pooled.sites_], rtol=1e-4
    )


@pytest.mark.parametrize("name", ["one row first", "growing", "flat"])
def test_a_regression_is_exact_whatever_came_first(name):
    """Against brute force, in units of all rows."""
    make, ends = STREAMS[name]
    X, y = make()
    stream = streamed(pt.PartitionedRegressor(quiet=True), X, y, ends)
    design = np.column_stack([(X - X.mean(axis=0)) / X.std(axis=0), np.ones(len(X))])
    exact = linear_regression(design, (y - y.mean()) / y.std(), [1.0, 1.0, 1.0, 10.0])
    unit = y.std() / X.std(axis=0)
    np.testing.assert_allclose(stream.coef_, unit * exact.location[:-1], rtol=1e-6)
    intervals = np.array([exact.interval(number, 0.9) for number in range(3)]) * unit[:, None]
    np.testing.assert_allclose(stream.intervals(0.9), intervals, rtol=1e-4)
    assert stream.log_evidence_ == pytest.approx(exact.log_evidence - len(y) * np.log(y.std()), abs=1e-4)


def test_after_one_row_a_regression_is_near_least_squares():
    X, y = rows(number=400)
    stream = streamed(pt.PartitionedRegressor(quiet=True), X, y, [1, 200])
    squares = sm.OLS(y, sm.add_constant(X)).fit()
    np.testing.assert_allclose(stream.coef_, squares.params[1:], rtol=0.01)
    low, high = stream.intervals().T
    np.testing.assert_allclose(high - low, np.diff(squares.conf_int()[1:], axis=1)[:, 0], rtol=0.02)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_classification_is_that_of_pooled_rows_whatever_came_first(classes):
    """Nearly: factors of early batches are approximations at what was believed by then."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, 2)) * [1e3, 1e-3] + [2e3, 0.0]
    f = np.column_stack([np.zeros(400), (X[:, 0] - 2e3) / 800, X[:, 1] * 700])[:, :classes]
    y = np.argmax(f + rng.gumbel(size=f.shape), axis=1)
    stream = pt.PartitionedClassifier(quiet=True)
    for part in np.split(np.arange(400), [1, 40, 200]):
        stream.partial_fit(X[part], y[part], classes=list(range(classes)))
    pooled = pt.PartitionedClassifier(quiet=True).fit(X, y)
    wide = np.diff(pooled.intervals(), axis=-1)[..., 0]
    assert np.max(np.abs(stream.coef_ - pooled.coef_) / wide) < 0.1
    np.testing.assert_allclose(np.diff(stream.intervals(), axis=-1)[..., 0], wide, rtol=0.1)
    np.testing.assert_allclose(stream.predict_proba(X), pooled.predict_proba(X), atol=0.03)
    assert stream.log_evidence_ == pytest.approx(pooled.log_evidence_, rel=5e-3)


def test_weights_of_rows_count_for_units():
    X, y = rows()
    weights = np.tile([1.0, 2.0, 0.0], 30)
    stream = pt.PartitionedRegressor(quiet=True)
    for part in np.split(np.arange(90), [2, 50]):
        stream.partial_fit(X[part], y[part], sample_weight=weights[part])
    repeated = np.repeat(np.arange(90), weights.astype(int))
    pooled = pt.PartitionedRegressor(quiet=True).fit(X[repeated], y[repeated])
    np.testing.assert_allclose(stream.intervals(), pooled.intervals(), rtol=1e-6)
    with pytest.raises(ValueError, match="non-zero|all are zero"):
        stream.partial_fit(X[:2], y[:2], sample_weight=[0, 0])


@pytest.mark.parametrize("kept", [False, True], ids=["stream", "fit"])
def test_what_is_forgotten_leaves_no_units_behind(kept):
    """A site in other units, by mistake."""
    X, y = rows()
    X[:30], y[:30] = 10 * X[:30], 1000 * y[:30]
    if kept:
        model = pt.PartitionedRegressor(quiet=True).fit(X, y, groups=np.repeat([0, 1, 2], 30))
    else:
        model = streamed(pt.PartitionedRegressor(quiet=True), X, y, [30, 60])
    model.forget(0)
    rest = pt.PartitionedRegressor(quiet=True).fit(X[30:], y[30:])
    np.testing.assert_allclose(model.coef_, rest.coef_, rtol=1e-6)
    np.testing.assert_allclose(model.intervals(), rest.intervals(), rtol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"posterior": "mean-field"}], ids=["full", "mean-field"])
def test_a_classifier_that_forgets_a_site_never_had_it(settings):
    X, y = rows()
    labels = (y > np.median(y)).astype(int)
    model = pt.PartitionedClassifier(**settings, quiet=True).fit(X, labels, groups=np.repeat([0, 1, 2], 30)).forget(0)
    rest = pt.PartitionedClassifier(**settings, quiet=True).fit(X[30:], labels[30:], groups=np.repeat([1, 2], 30))
    wide = np.diff(rest.intervals(), axis=-1)[..., 0]
    assert np.max(np.abs(model.coef_ - rest.coef_) / wide) < 1e-4
    assert model.log_evidence_ == pytest.approx(rest.log_evidence_, abs=1e-5)


def test_a_saved_stream_knows_its_units(tmp_path):
    X, y = growing()
    model = streamed(pt.PartitionedRegressor(quiet=True), X[:60], y[:60], [30])
    model.save(tmp_path / "model")
    again = pt.PartitionedRegressor.load(tmp_path / "model")
    for one in (model, again):
        one.partial_fit(X[60:], y[60:])
    np.testing.assert_array_equal(again.predict(X, return_std=True), model.predict(X, return_std=True))
    assert again.log_evidence_ == model.log_evidence_


def test_a_batch_that_fails_changes_nothing():
    X, y = rows()
    model = streamed(pt.PartitionedRegressor(quiet=True), X[:60], y[:60], [1])
    before = model.predict(X)
    with pytest.raises(InputError):
        model.set_params(damping=-1.0).partial_fit(X[60:], y[60:])
    np.testing.assert_array_equal(model.predict(X), before)
    model.set_params(damping="auto").partial_fit(X[60:], y[60:])
    np.testing.assert_allclose(model.coef_, pt.PartitionedRegressor(quiet=True).fit(X, y).coef_, rtol=1e-7)


def test_mean_field_streams_change_their_scales_and_say_where_their_centres_are_off():
    rng = np.random.default_rng(3)
    X = pd.DataFrame(rng.normal(size=(300, 2)), columns=["dose", "age"])
    X["dose"] *= np.repeat([1e-3, 1.0], 150)
    y = 1e3 * (20 * X["dose"] - X["age"] + 0.3 * rng.normal(size=300) + 5)
    settings = {"posterior": "mean-field", "quiet": True}
    stream = pt.PartitionedRegressor(**settings).partial_fit(X[:150], y[:150])
    with pytest.warns(UserWarning, match="middle or spread") as said:
        stream.partial_fit(X[150:].assign(age=X["age"] + 6), y[150:])
    (told,) = [str(one.message) for one in said if "middle or spread" in str(one.message)]
    assert told.startswith("X: column age has another middle")
    assert 'posterior="full"' in told
    # With centres that stay, scales are changed exactly: the first batch holds nothing back.
    near = pt.PartitionedRegressor(**settings).partial_fit(X[:150], y[:150]).partial_fit(X[150:], y[150:])
    pooled = pt.PartitionedRegressor(**settings).fit(X, y)
    np.testing.assert_allclose(near.coef_, pooled.coef_, rtol=0.02)
    np.testing.assert_allclose(near.intervals(), pooled.intervals(), rtol=0.02)


def test_networks_say_where_their_units_are_off():
    X, y = rows()
    settings = {"hidden": (2,), "schedule": pt.schedules.Synchronous(rounds=2), "quiet": True}
    model = pt.PartitionedRegressor(**settings).partial_fit(X[:40], y[:40])
    with pytest.warns(UserWarning, match="y: targets have another middle or spread .* a network keeps"):
        model.partial_fit(X[40:], 100 * y[40:])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*middle or spread")
        model.partial_fit(X[40:], 100 * y[40:])
        pt.PartitionedRegressor(**settings).partial_fit(X[:40], y[:40]).partial_fit(X[40:], y[40:])


def densities():
    rng = np.random.default_rng(4)
    A = rng.normal(size=(5, 3))
    h = rng.normal(size=3)
    new = Substitution(rng.normal(size=(3, 3)), rng.normal(size=3), 1.7)
    diagonal = new._replace(matrix=np.diag(rng.normal(size=3)))
    zeros = np.zeros(3)
    noisy = WeightsAndNoise(np.array(2.5), np.array(3.0), zeros, zeros, h, A.T @ A, 1.0)
    return [(Gaussian(h, A.T @ A), new), (MeanField(h, np.ones(3) + h**2), diagonal), (noisy, new)]


@pytest.mark.parametrize("number", range(3), ids=["Gaussian", "MeanField", "WeightsAndNoise"])
def test_a_factor_in_other_coordinates_is_the_same_function(number):
    factor, new = densities()[number]
    changed, constant = factor.substituted(new)
    rng = np.random.default_rng(5)
    for _ in range(3):
        w, tau = rng.normal(size=3), rng.gamma(2.0)
        old = new.matrix @ w + new.shift
        both = [(old, tau / new.noise**2), (w, tau)] if isinstance(factor, WeightsAndNoise) else [old, w]
        before, after = (
            float(pt.families.inner(t, t.statistics(at))) for t, at in zip((factor, changed), both, strict=True)
        )
        assert before == pytest.approx(after + constant, rel=1e-5)


def test_mean_field_densities_have_no_sums_as_coordinates():
    with pytest.raises(InputError, match="no sums of its coordinates"):
        MeanField(np.zeros(2), np.ones(2)).substituted(Substitution(np.array([[1.0, 0.0], [0.5, 1.0]]), np.zeros(2)))
