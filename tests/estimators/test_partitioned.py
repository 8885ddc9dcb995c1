"""The scikit-learn face of data at several sites: its own checks, exact algebra, and what a user would try."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import partita as pt
from partita.errors import ImproperDensity, InputError
from quadrature import linear_regression

CANCER = load_breast_cancer(return_X_y=True)
CANCER = (CANCER[0][:, :6], CANCER[1])
SITES = np.array(["north", "south", "east"])[np.arange(len(CANCER[1])) % 3]
DIABETES = load_diabetes(return_X_y=True)


@pytest.mark.slow
@parametrize_with_checks(
    [
        pt.PartitionedRegressor(),
        pt.PartitionedClassifier(),
        pt.PartitionedClassifier(posterior="mean-field", engine=pt.engines.InProcess()),
    ]
)
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def fitted():
    return pt.PartitionedClassifier().fit(*CANCER, groups=SITES)


def test_sites_give_what_pooled_data_give(fitted):
    pooled = pt.PartitionedClassifier().fit(*CANCER)
    np.testing.assert_allclose(fitted.coef_, pooled.coef_, rtol=1e-5)
    np.testing.assert_allclose(fitted.intervals(), pooled.intervals(), rtol=1e-5)
    assert fitted.log_evidence_ == pytest.approx(pooled.log_evidence_, abs=1e-6)
    assert fitted.score(*CANCER) > 0.9
    assert [site["site"] for site in fitted.sites_] == ["east", "north", "south"]
    assert all(site["rows"] > 180 and site["nats"] > 0 for site in fitted.sites_)
    assert fitted.history_[-1]["messages"] == 600


def test_forgetting_a_site_is_not_having_had_it():
    X, y = (CANCER[0] - CANCER[0].mean(axis=0)) / CANCER[0].std(axis=0), CANCER[1]
    settings = {"standardise": False}
    model = pt.PartitionedClassifier(**settings).fit(X, y, groups=SITES).forget("east")
    keep = SITES != "east"
    without = pt.PartitionedClassifier(**settings).fit(X[keep], y[keep], groups=SITES[keep])
    wide = without.intervals()[..., 1] - without.intervals()[..., 0]
    assert np.max(np.abs(model.coef_ - without.coef_) / wide) < 1e-5
    assert model.log_evidence_ == pytest.approx(without.log_evidence_, abs=1e-6)
    assert [site["site"] for site in model.sites_] == ["north", "south"]
    with pytest.raises(InputError, match="site 'east': there are north, south"):
        model.forget("east")
    with pytest.raises(InputError, match="is the only one"):
        model.forget("north").forget("south")


def test_linear_regression_is_exact():
    """Against brute force, in the units of the data."""
    X, y = 10 * DIABETES[0][:200, :4], (DIABETES[1][:200] - 150) / 80
    model = pt.PartitionedRegressor(standardise=False).fit(X, y, groups=np.arange(200) % 4)
    exact = linear_regression(np.column_stack([X, np.ones(200)]), y, [1.0, 1.0, 1.0, 1.0, 10.0])
    np.testing.assert_allclose(model.coef_, exact.location[:-1], rtol=1e-8)
    assert model.intercept_ == pytest.approx(exact.location[-1], rel=1e-8)
    intervals = [exact.interval(number, 0.9) for number in range(4)]
    np.testing.assert_allclose(model.intervals(0.9), intervals, rtol=1e-5)
    assert model.log_evidence_ == pytest.approx(exact.log_evidence, abs=2e-5)


def test_the_scale_of_the_noise_can_be_set():
    X, y = np.arange(6.0)[:, None], np.array([0.1, -0.1, 0.2, 0.0, -0.2, 0.1])
    with pytest.warns(RuntimeWarning, match="noise is 128 times its prior scale"):
        model = pt.PartitionedRegressor(noise_scale=1e-3, standardise=False).fit(X, y)
    exact = linear_regression(np.column_stack([X, np.ones(6)]), y, [1.0, 10.0], noise_scale=1e-3)
    np.testing.assert_allclose(model.intervals()[0], exact.interval(0, 0.95), rtol=1e-4)


def test_units_do_not_matter():
    X, y = DIABETES
    model = pt.PartitionedRegressor().fit(X, y, groups=np.arange(len(y)) % 3)
    other = pt.PartitionedRegressor().fit(100 * X + 5, 7 * y - 3, groups=np.arange(len(y)) % 3)
    np.testing.assert_allclose(other.coef_, 0.07 * model.coef_, rtol=1e-6)
    np.testing.assert_allclose(other.predict(100 * X + 5), 7 * model.predict(X) - 3, rtol=1e-8)
    assert other.log_evidence_ == pytest.approx(model.log_evidence_ - len(y) * np.log(7), abs=1e-5)
    mean, std = model.predict(X, return_std=True)
    assert 0.92 < np.mean(np.abs(y - mean) < 1.96 * std) < 0.98


def test_a_stream_of_batches_is_the_same_and_keeps_no_data():
    X, y = DIABETES
    stream = pt.PartitionedRegressor(standardise=False)
    for part in np.array_split(np.arange(len(y)), 4):
        stream.partial_fit(10 * X[part], y[part] / 80)
    whole = pt.PartitionedRegressor(standardise=False).fit(10 * X, y / 80)
    np.testing.assert_allclose(stream.coef_, whole.coef_, rtol=1e-6)
    assert stream.log_evidence_ == pytest.approx(whole.log_evidence_, abs=1e-6)
    assert stream._data is None
    # Exact, so that nothing is said of factors that are not refined.
    stream.forget(3)
    first = np.concatenate(np.array_split(np.arange(len(y)), 4)[:3])
    rest = pt.PartitionedRegressor(standardise=False).fit(10 * X[first], y[first] / 80)
    np.testing.assert_allclose(stream.coef_, rest.coef_, rtol=1e-6)


def test_classes_of_a_stream_are_said_at_its_beginning():
    X, y = load_iris(return_X_y=True)
    model = pt.PartitionedClassifier(posterior="mean-field", schedule=pt.schedules.Synchronous(rounds=10))
    order = np.argsort(np.arange(150) % 10, kind="stable")
    model.partial_fit(X[order[:90]], y[order[:90]], classes=[0, 1, 2])
    model.partial_fit(X[order[90:]], y[order[90:]])
    assert model.coef_.shape == (3, 4)
    assert model.score(X, y) > 0.8
    with pytest.raises(InputError, match="the class 7 was not named"):
        model.partial_fit(X[:2], [7, 0])


def test_networks_predict_with_uncertainty():
    X, y = DIABETES
    model = pt.PartitionedRegressor(hidden=(5,), schedule=pt.schedules.Synchronous(rounds=30))
    mean, std = model.fit(X[:400], y[:400], groups=np.arange(400) % 2).predict(X[400:], return_std=True)
    assert np.mean(np.abs(y[400:] - mean) < 1.96 * std) > 0.85
    assert np.std(std) > 0
    with pytest.raises(AttributeError, match="a network has none"):
        _ = model.coef_


@pytest.mark.parametrize("settings", [{"posterior": "mean-field"}, {"hidden": (5,)}], ids=["linear", "network"])
def test_a_stream_learns_its_noise(settings):
    """From all its batches: a last one of three rows, all of them the same, hardly matters."""
    X, y = DIABETES
    model = pt.PartitionedRegressor(**settings, schedule=pt.schedules.Synchronous(rounds=30))
    for part in (np.arange(220), np.arange(220, 440), np.repeat(441, 3)):
        model.partial_fit(X[part], y[part])
    mean, std = model.predict(X, return_std=True)
    noise = model._units.target.scale * model.result_.hyper["noise"]
    assert noise == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)), rel=0.05)
    assert np.all(std > noise)
    assert np.mean(np.abs(y - mean) < 1.96 * std) > 0.93


def test_pipelines_clones_and_pickles(fitted):
    pipeline = make_pipeline(MinMaxScaler(), clone(fitted))
    assert cross_val_score(pipeline, *CANCER, cv=3).mean() > 0.9
    again = pickle.loads(pickle.dumps(fitted))
    assert again._data is None
    np.testing.assert_array_equal(again.predict_proba(CANCER[0]), fitted.predict_proba(CANCER[0]))


def test_an_engine_carries_tasks_and_changes_nothing(fitted, tmp_path):
    engine = pt.engines.InProcess()
    model = pt.PartitionedClassifier(engine=engine)
    assert model.get_params()["engine"] is engine
    before = dict(vars(engine))
    model.fit(*CANCER, groups=SITES)
    assert model.result_.fingerprint == fitted.result_.fingerprint
    # What it keeps during a fit is not kept in a parameter.
    assert model.engine is engine
    assert vars(engine) == before
    assert clone(model).engine == engine
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(CANCER[0]), model.predict(CANCER[0]))
    assert again.fit(*CANCER, groups=SITES).result_.fingerprint == fitted.result_.fingerprint
    model.save(tmp_path / "model")
    # Without a warning: it need not be given again.
    assert pt.PartitionedClassifier.load(tmp_path / "model").engine is None
    assert pt.PartitionedClassifier.load(tmp_path / "model", engine=engine).engine is engine


@pytest.mark.parametrize("kind", [pt.PartitionedClassifier, pt.PartitionedRegressor])
def test_an_engine_is_one_and_is_asked(kind):
    data = CANCER if kind is pt.PartitionedClassifier else DIABETES
    groups = np.arange(len(data[1])) % 2
    with pytest.raises(InputError, match="speeds: expected 2, one per site, got 3"):
        kind(engine=pt.engines.InProcess(speeds=[1.0, 2.0, 3.0])).fit(*data, groups=groups)
    with pytest.raises(InputError, match="engine: expected an engine, got the class InProcess: make one"):
        kind(engine=pt.engines.InProcess).fit(*data, groups=groups)
    with pytest.raises(InputError, match=r"engine: expected one such as pt.engines.Ray\(\), got 'ray', which has no"):
        kind(engine="ray").fit(*data, groups=groups)
    slow = kind(engine=pt.engines.InProcess(speeds=[1.0, 3.0]), schedule=pt.schedules.Asynchronous(updates=12))
    slow.fit(*data, groups=groups)
    assert [row["site"] for row in slow.history_].count(1) == 9


def test_saved_streams_learn_on(tmp_path):
    rng = np.random.default_rng(7)
    X = pd.DataFrame(rng.normal(size=(120, 2)), columns=["dose", "age"])
    y = 3 + 2 * X["dose"] + rng.normal(size=120)
    model = pt.PartitionedRegressor().partial_fit(X[:60], y[:60])
    model.save(tmp_path / "model")
    again = pt.PartitionedRegressor.load(tmp_path / "model")
    for one in (model, again):
        one.partial_fit(X[60:], y[60:])
    np.testing.assert_array_equal(again.predict(X, return_std=True), model.predict(X, return_std=True))
    assert (again.log_evidence_, again.sites_) == (model.log_evidence_, model.sites_)
    with pytest.raises(ValueError, match="feature names"):
        again.predict(X.rename(columns={"dose": "weight"}))


def test_saved_classifiers_know_their_classes_and_what_was_not_kept(tmp_path):
    rng = np.random.default_rng(8)
    X = rng.normal(size=(60, 2))
    y = np.where(X[:, 0] > 0, "ill", "well")
    schedule = pt.schedules.Synchronous(rounds=3)
    settings = {"schedule": schedule, "solver": pt.solvers.FixedPoint()}
    model = pt.PartitionedClassifier(**settings).fit(X, y, groups=np.arange(60) % 2)
    model.save(tmp_path / "model")
    with pytest.warns(UserWarning, match=": solver not kept"):
        again = pt.PartitionedClassifier.load(tmp_path / "model")
    assert again.schedule == schedule
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert pt.PartitionedClassifier.load(tmp_path / "model", **settings).solver is settings["solver"]
    assert pt.load(tmp_path / "model").fingerprint == model.result_.fingerprint
    # The run alone does not know how inputs were scaled.
    with pytest.raises(InputError, match=r"scales its inputs: use predict of pt\.Partitioned\w+\.load\(path\)"):
        pt.load(tmp_path / "model").predict(X[:2])
    with pytest.raises(pt.errors.RunMismatch, match="holds a PartitionedClassifier"):
        pt.PartitionedRegressor.load(tmp_path / "model")
    with pytest.warns(UserWarning, match="not refined"):
        again.forget(0).save(tmp_path / "without")
    assert np.isnan(pt.load(tmp_path / "without").log_evidence)


def test_verbose_fits_say_how_far_they_are(capsys, monkeypatch):
    monkeypatch.setattr("partita.telemetry.FIRST_LINE", 0.0)
    X, y = CANCER
    for verbose in (False, True):
        model = pt.PartitionedClassifier(
            schedule=pt.schedules.Synchronous(rounds=3), verbose=verbose, quiet=not verbose
        )
        model.fit(X, y, groups=SITES)
        said = capsys.readouterr().err
        assert ("round 1 of 3" in said) == verbose
        assert ("round 3 of 3" in said) == verbose
    model.partial_fit(X[:50], y[:50])
    assert "round" in capsys.readouterr().err


def test_text_is_no_number():
    X, y = np.random.default_rng(0).normal(size=(20, 2)), np.zeros(20)
    with pytest.raises(InputError, match="y: is not an array of numbers"):
        pt.PartitionedRegressor().fit(X, np.array(["a"] * 20))
    with pytest.raises(InputError, match="X: is not an array of numbers .it is text"):
        pt.fit(pt.models.LinearRegression(2), [(X.astype(str), y)])


def test_batches_have_numbers_of_their_own():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 2)), rng.normal(size=60)
    model = pt.PartitionedRegressor().fit(X[:40], y[:40], groups=np.repeat([1, 2], 20)).partial_fit(X[40:], y[40:])
    assert [row["site"] for row in model.sites_] == [1, 2, 3]
    # Without a warning: factors of a linear regression need no refining.
    model.forget(2)
    assert [row["site"] for row in model.partial_fit(X[:9], y[:9]).sites_] == [1, 3, 4]


def test_sizes_and_settings_may_be_numpys(tmp_path):
    X, y = CANCER
    settings = {"hidden": np.array([3]), "prior_scale": np.float32(0.5), "schedule": pt.schedules.Synchronous(rounds=2)}
    model = pt.PartitionedClassifier(**settings).fit(X, y)
    model.save(tmp_path / "model")
    again = pt.PartitionedClassifier.load(tmp_path / "model", schedule=None)
    assert (again.hidden, again.prior_scale) == ([3], 0.5)
    with pytest.raises(InputError, match="hidden: expected a list of sizes"):
        pt.PartitionedClassifier(hidden=5).fit(X, y)


def test_bad_input(fitted):
    with pytest.raises(InputError, match="groups: expected one entry per row, 569"):
        pt.PartitionedClassifier().fit(*CANCER, groups=[1, 2])
    with pytest.raises(InputError, match="level"):
        fitted.intervals(2)
    factors = fitted.result_.factors
    with pytest.raises(InputError, match="factors: expected 2, one per site, got 3"):
        pt.fit(fitted.result_.model, [CANCER] * 2, factors=factors)
    with pytest.raises(ImproperDensity, match="factors"):
        pt.fit(fitted.result_.model, [CANCER] * 3, factors=[factor**-5.0 for factor in factors])
    with pytest.raises(InputError, match="factors: expected a Gaussian"):
        pt.fit(fitted.result_.model, [CANCER], factors=[pt.families.MeanField(np.zeros(7), np.ones(7))])


def test_batches_of_one_class_are_said_aloud():
    """Such a stream ends far off, and its log evidence above what is possible."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(40, 2))
    y = (X[:, 0] > 0).astype(int)
    order = np.argsort(y, kind="stable")
    with pytest.warns(UserWarning, match="all rows of this batch are of one class"):
        pt.PartitionedClassifier(quiet=True).partial_fit(X[order[:12]], y[order[:12]], classes=[0, 1])
    pt.PartitionedClassifier(quiet=True).partial_fit(X[:12], y[:12], classes=[0, 1])
    pt.PartitionedClassifier(quiet=True).partial_fit(X[:1], y[:1], classes=[0, 1])
