"""The scikit-learn face: its own checks, and what a user would try."""

import time
from copy import deepcopy

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import partita as pt
from partita.errors import InputError, RunMismatch
from partita.estimators import StreamingGPClassifier, StreamingGPRegressor
from partita.foundation.moments import Moments

# Compiling a program that learns hyperparameters takes seconds, for every shape.
CHEAP = {"hyperparameters": "fixed", "move_points": False}


# Both, as they come, are checked by `partita study estimator-checks`, which takes minutes.
@parametrize_with_checks([StreamingGPRegressor(**CHEAP)])
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def waves():
    generator = np.random.default_rng(0)
    X = generator.uniform(-3, 3, (240, 2))
    return X, 10 + 4 * np.sin(X[:, 0]) + X[:, 1] + 0.4 * generator.normal(size=240)


@pytest.fixture(scope="module")
def fitted(waves):
    X, y = waves
    model = StreamingGPRegressor(keep_factors=True)
    for part in np.split(np.arange(180), 3):
        model.partial_fit(X[part], y[part])
    return model


def test_a_stream_predicts_with_honest_intervals(waves, fitted):
    X, y = waves[0][180:], waves[1][180:]
    mean, std = fitted.predict(X, return_std=True)
    assert fitted.score(X, y) > 0.9
    assert np.mean(np.abs(y - mean) < 1.96 * std) > 0.85
    assert np.all(std > 0.25)
    # Far from all data nothing is known.
    _, far = fitted.predict(np.array([[50.0, -50.0]]), return_std=True)
    assert far > 2 * std.max()


def test_draws_agree_with_predictions(waves, fitted):
    X = waves[0][180:190]
    mean, std = fitted.predict(X, return_std=True)
    draws = fitted.sample_y(X, 600, random_state=1)
    assert draws.shape == (10, 600)
    np.testing.assert_allclose(draws.mean(axis=1), mean, atol=5 * std.max() / np.sqrt(600))
    np.testing.assert_allclose(draws.std(axis=1), std, rtol=0.2)
    assert np.array_equal(draws, fitted.sample_y(X, 600, random_state=1))


def test_saved_models_predict_and_learn_on(waves, fitted, tmp_path):
    X, y = waves
    fitted.save(tmp_path / "model")
    loaded = StreamingGPRegressor.load(tmp_path / "model")
    for a, b in zip(fitted.predict(X, return_std=True), loaded.predict(X, return_std=True), strict=True):
        np.testing.assert_array_equal(a, b)
    first, second = (deepcopy(m).partial_fit(X[180:], y[180:]) for m in (fitted, loaded))
    np.testing.assert_array_equal(first.predict(X), second.predict(X))
    with pytest.raises(RunMismatch, match="holds a StreamingGPRegressor"):
        StreamingGPClassifier.load(tmp_path / "model")


def test_forgetting_and_visiting_again(waves, fitted):
    X, y = waves
    model = deepcopy(fitted)
    _, before = model.predict(X[:60], return_std=True)
    _, after = model.forget(0).predict(X[:60], return_std=True)
    assert after.mean() > before.mean()
    model = deepcopy(fitted)
    mean = model.predict(X)
    # What was learnt since about scales and hyperparameters makes a small difference.
    assert np.abs(model.revisit(0, X[:60], y[:60]).predict(X) - mean).max() < 0.5
    with pytest.raises(InputError, match="keep_factors"):
        StreamingGPRegressor().fit(X[:60], y[:60]).forget(0)


def test_a_batch_that_is_refused_leaves_the_stream_as_it_was(waves, fitted):
    X, y = waves
    model, before = deepcopy(fitted), fitted.predict(X[:5])
    with pytest.raises(pt.errors.ShardError, match="X: is too large to be squared"):
        model.partial_fit(X[:20] * 1e200, y[:20])
    np.testing.assert_array_equal(model.predict(X[:5]), before)
    assert np.all(np.isfinite(model.partial_fit(X[:20], y[:20]).predict(X[:5])))


def test_a_batch_in_other_units_is_said_aloud(waves, fitted):
    X, y = waves
    with pytest.warns(UserWarning, match="X: this batch is far from all before it"):
        deepcopy(fitted).partial_fit(X[:20] * 1e6, y[:20])


def test_verbose_fits_say_how_far_they_are(waves, capsys, monkeypatch):
    monkeypatch.setattr("partita.telemetry.FIRST_LINE", 0.0)
    X, y = waves
    StreamingGPRegressor(**CHEAP, batch_size=120, verbose=True).fit(X, y)
    said = capsys.readouterr().err
    assert "batch 1 of 2" in said
    assert "batch 2 of 2, free energy -" in said
    StreamingGPRegressor(**CHEAP, batch_size=120, quiet=True).fit(X, y)
    assert capsys.readouterr().err == ""


def test_batches_that_are_hardly_there():
    model = StreamingGPRegressor()
    model.partial_fit(np.array([[1.0, 5.0]]), [3.0])
    assert model.predict([[1.0, 5.0]]) == pytest.approx(3.0, abs=1.0)
    model.partial_fit(np.array([[2.0, 5.0], [2.0, 5.0], [3.0, 5.0]]), [4.0, 4.2, 5.0])
    assert np.all(np.isfinite(model.predict([[2.5, 5.0]], return_std=True)))
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit(np.array([[np.nan, 5.0]]), [1.0])
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(np.ones((3, 3)), np.ones(3))
    with pytest.raises(InputError, match="another number of columns"):
        model.partial_fit(np.ones((3, 2)), np.ones((3, 2)))


def test_several_outputs_share_a_kernel(waves):
    X, y = waves
    both = StreamingGPRegressor(**CHEAP).fit(X[:60], np.stack([y, -3 * y], axis=1)[:60])
    mean, std = both.predict(X[180:], return_std=True)
    assert mean.shape == std.shape == (60, 2)
    assert both.score(X[180:], np.stack([y, -3 * y], axis=1)[180:]) > 0.8
    assert both.sample_y(X[:5], 3).shape == (5, 2, 3)


def exact(X, y, lengthscale=1.0):
    """Maximum likelihood of an exact process in standardised units, by scikit-learn; and the units."""
    units = X.mean(), X.std(), y.mean(), y.std()
    kernel = ConstantKernel(1.0) * RBF(lengthscale) + WhiteKernel(0.05, (1e-6, 10))
    return GaussianProcessRegressor(kernel).fit((X - units[0]) / units[1], (y - units[2]) / units[3]), units


def test_a_series_with_a_trend_is_followed_as_by_an_exact_process():
    """Units change with every batch here: what was learnt in the old ones has to be converted."""
    t = np.arange(540.0)
    y = 50 + 0.05 * t + 5 * np.sin(2 * np.pi * t / 50) + np.random.default_rng(0).normal(0, 1, len(t))
    X = t[:, None]
    model = StreamingGPRegressor()
    for start in range(0, 480, 60):
        model.partial_fit(X[start : start + 60], y[start : start + 60])
    mean, std = model.predict(X[480:], return_std=True)
    reference, (at, unit, centre, scale) = exact(X[:480], y[:480], lengthscale=0.15)
    m, s = reference.predict((X[480:] - at) / unit, return_std=True)
    assert np.abs(mean - (centre + scale * m)).max() < 0.3 * scale
    np.testing.assert_allclose(std, scale * s, rtol=0.2)
    learnt, best = model.hyperparameters_, reference.kernel_
    np.testing.assert_allclose(learnt["kernel.lengthscale"], best.k1.k2.length_scale, rtol=0.15)
    assert learnt["kernel.variance"] == pytest.approx(best.k1.k1.constant_value, rel=0.4)
    assert learnt["likelihood.noise"] == pytest.approx(np.sqrt(best.k2.noise_level), rel=0.1)


@pytest.mark.parametrize("noise", [0.3, 0.1, 0.01])
def test_the_first_batch_is_learnt_from_as_by_an_exact_process(noise):
    """From a guess that may be far off: noise of a hundredth of the spread is thirty times less than it says."""
    generator = np.random.default_rng(0)
    X = generator.uniform(0, 6, (100, 1))
    y = 3 + 10 * (np.sin(2 * X[:, 0]) + noise * generator.normal(size=100))
    model = StreamingGPRegressor(points_per_batch=30, quiet=True).partial_fit(X, y)
    places = np.linspace(0.2, 5.8, 40)[:, None]
    mean, std = model.predict(places, return_std=True)
    reference, (at, unit, centre, scale) = exact(X, y)
    m, s = reference.predict((places - at) / unit, return_std=True)
    np.testing.assert_allclose(std, scale * s, rtol=0.1)
    assert np.max(np.abs(mean - (centre + scale * m)) / (scale * s)) < 0.2


def test_equal_columns_learn_equal_things_from_every_batch():
    generator = np.random.default_rng(0)
    X = generator.uniform(0, 6, (60, 1))
    y = np.sin(2 * X[:, 0]) + 0.2 * generator.normal(size=60)
    Y = np.column_stack([y, 3 + 5 * y, y])
    model = StreamingGPRegressor(quiet=True)
    for part in np.split(np.arange(60), 3):
        model.partial_fit(X[part], Y[part])
        noise = model.hyperparameters_["likelihood.noise"]
        np.testing.assert_allclose(noise, noise[0], rtol=1e-6)
        std = model.predict(X, return_std=True)[1] / [1, 5, 1]
        np.testing.assert_allclose(std, std[:, :1] * np.ones(3), rtol=1e-6)


def test_outputs_with_unlike_scales_and_noise_leave_each_other_alone():
    generator = np.random.default_rng(0)
    x = generator.uniform(-3, 3, 240)
    noise = np.array([0.1, 0.01, 100.0])
    Y = np.column_stack([np.sin(x), 0.01 * x**2, 1000 * x]) + noise * generator.normal(size=(240, 3))
    model = StreamingGPRegressor()
    for part in np.split(np.arange(240), 3):
        model.partial_fit(x[part, None], Y[part])
    places = np.linspace(-2.8, 2.8, 20)[:, None]
    mean, std = model.predict(places, return_std=True)
    for output in range(3):
        reference, (at, unit, centre, scale) = exact(x[:, None], Y[:, output])
        m, s = reference.predict((places - at) / unit, return_std=True)
        np.testing.assert_allclose(std[:, output], scale * s, rtol=0.15)
        assert np.abs(mean[:, output] - (centre + scale * m)).max() < 0.6 * noise[output]
    drawn = model.sample_y(places, 200).std(axis=2)
    np.testing.assert_allclose(drawn.mean(axis=0), std.mean(axis=0), rtol=0.1)


@pytest.mark.parametrize(("likelihood", "size"), [("poisson", 300), ("student-t", 1)])
def test_other_likelihoods(likelihood, size):
    generator = np.random.default_rng(0)
    X = generator.uniform(-2, 2, (150, 1))
    rate = size * np.exp(1 + np.sin(2 * X[:, 0]))
    y = generator.poisson(rate) if likelihood == "poisson" else rate + 0.1 * generator.standard_t(3, 150)
    model = StreamingGPRegressor(likelihood=likelihood)
    for part in np.split(np.arange(150), 3):
        model.partial_fit(X[part], y[part])
    mean, std = model.predict(X, return_std=True)
    assert np.sqrt(np.mean((mean / rate - 1) ** 2)) < 0.2
    assert np.all(np.isfinite(std))
    if likelihood == "poisson":
        with pytest.raises(InputError, match="counts"):
            model.partial_fit(X[:5], y[:5] + 0.5)


def test_classes_over_a_stream():
    from sklearn.datasets import load_iris

    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    order = np.random.default_rng(0).permutation(150)
    model = StreamingGPClassifier(**CHEAP)
    model.partial_fit(X[order[:50]], names[order[:50]], classes=np.unique(names))
    model.partial_fit(X[order[50:100]], names[order[50:100]])
    probabilities = model.predict_proba(X[order[100:]])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert model.score(X[order[100:]], names[order[100:]]) > 0.9
    with pytest.raises(InputError, match="'other' was not named"):
        model.partial_fit(X[:2], ["setosa", "other"])
    with pytest.raises(InputError, match="only one class"):
        StreamingGPClassifier().partial_fit(X[:5], names[:5])
    with pytest.raises(InputError, match="likelihood"):
        StreamingGPClassifier(likelihood="poisson").fit(X, y)


def test_what_changes_after_the_first_batch(waves, fitted):
    X, y = waves
    model = deepcopy(fitted)
    before = model.predict(X)
    # Predictions are those of the stream, whatever is set since.
    np.testing.assert_array_equal(model.set_params(standardise=False, likelihood="student-t").predict(X), before)
    with pytest.raises(InputError, match="hyperparameters: cannot change"):
        model.set_params(hyperparameters="ml").partial_fit(X[:5], y[:5])
    np.testing.assert_array_equal(model.predict(X), before)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.full((5, 2), np.nan), np.zeros(5))
    np.testing.assert_array_equal(model.predict(X), before)


def test_settings_may_be_numpy_numbers():
    X = np.linspace(0, 1, 20)[:, None]
    kernel = pt.gp.kernels.Matern32(lengthscale=np.array([0.5]))
    model = StreamingGPRegressor(kernel, points_per_batch=np.int64(4), max_points=np.int64(6), **CHEAP)
    assert len(model.fit(X, X[:, 0]).partial_fit(X, X[:, 0]).pseudo_points_) == 6


def test_a_column_that_does_not_vary_leaves_the_others_alone(waves):
    X, y = waves
    small = 1e-3 * y
    alone = StreamingGPRegressor(**CHEAP).fit(X[:60], small[:60]).predict(X, return_std=True)
    both = StreamingGPRegressor(**CHEAP).fit(X[:60], np.stack([small, np.full(240, 7.0)], axis=1)[:60])
    for a, b in zip(alone, both.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(b[:, 0], a, rtol=1e-6)


def test_evidence_does_not_depend_on_units(waves):
    X, y = waves
    first, second = (StreamingGPRegressor(**CHEAP).fit(X[:60], scale * y[:60]) for scale in (1.0, 10.0))
    assert second.log_evidence_ == pytest.approx(first.log_evidence_ - 60 * np.log(10), abs=1e-6)


def test_classifiers_are_saved_with_their_classes(tmp_path):
    X = np.linspace(-1, 1, 30)[:, None]
    y = np.where(X[:, 0] > 0, "yes", "no")
    model = StreamingGPClassifier(**CHEAP).fit(X, y)
    model.save(tmp_path / "model")
    loaded = StreamingGPClassifier.load(tmp_path / "model")
    assert loaded.predict([[0.9]])[0] == "yes"
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    with pytest.raises(InputError, match="classes: cannot change"):
        loaded.partial_fit(X, y, classes=["yes", "no", "perhaps"])


def test_pipelines_clones_and_cross_validation(waves):
    X, y = waves
    model = StreamingGPRegressor(kernel=pt.gp.kernels.Matern52(), batch_size=60, **CHEAP)
    assert clone(model).get_params() == model.get_params()
    scores = cross_val_score(make_pipeline(MinMaxScaler(), model), X[:180], y[:180], cv=3)
    assert scores.min() > 0.7


def test_hyperparameters_are_believed_within_intervals(fitted):
    low, high = fitted.hyperparameter_intervals()["likelihood.noise"]
    middle = fitted.hyperparameters_["likelihood.noise"]
    assert low < middle < high
    assert fitted.pseudo_points_.shape == (30, 2)
    assert np.abs(fitted.pseudo_points_).max() < 10
    assert np.isfinite(fitted.log_evidence_)


def test_running_moments_are_those_of_all_rows():
    generator = np.random.default_rng(0)
    rows = generator.normal(3, 2, (50, 2)) * [1, 0]
    moments = Moments()
    for part in np.split(rows, [1, 20]):
        moments = moments.with_rows(part)
    np.testing.assert_allclose(moments.affine.mean, rows.mean(axis=0))
    np.testing.assert_allclose(moments.affine.scale, [rows[:, 0].std(), 1.0])


class Slow(pt.StreamingGPRegressor):
    def _absorb(self, *batch):
        time.sleep(0.2)
        super()._absorb(*batch)


def test_batches_that_take_their_time_say_so_unless_they_are_to_be_quiet(monkeypatch, capfd):
    monkeypatch.setattr(pt.telemetry, "FIRST_LINE", 0.05)
    X, y = np.linspace(0, 1, 20)[:, None], np.linspace(0, 1, 20)
    Slow(steps=2, quiet=True).partial_fit(X, y)
    assert capfd.readouterr().err == ""
    Slow(steps=2).partial_fit(X, y)
    assert "Slow: at work" in capfd.readouterr().err
