"""Predictions of regressions on tables, beside statsmodels on all data at once; and what files keep of them."""

import json
import stat

import numpy as np
import pandas as pd
import polars as pl
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from typer.testing import CliRunner

import partita as pt
from partita.cli import app
from partita.designs.calibration import predict_observations
from partita.errors import CorruptStorage, InputError, RunMismatch
from partita.foundation.archives import read_arrays, write_arrays
from partita.site.reading import read_inputs


def simulated(rows=400):
    rng = np.random.default_rng(7)
    frame = pd.DataFrame(
        {
            "year": rng.normal(2000, 8, rows),
            "arm": rng.choice(["drug", "placebo"], rows),
            "ward": rng.integers(0, 20, rows),
        }
    )
    f = 0.08 * (frame.year - 2000) + 0.7 * (frame.arm == "drug") + 0.4 * rng.normal(size=20)[frame.ward]
    frame["ill"] = np.where(rng.random(rows) < 1 / (1 + np.exp(-f)), "yes", "no")
    frame["visits"] = rng.poisson(np.exp(0.5 + 0.5 * f))
    frame["score"] = 100 + 20 * f + 15 * rng.normal(size=rows)
    return frame


TABLE = simulated()
SITES = {"north": TABLE[TABLE.ward < 8], "south": TABLE[TABLE.ward >= 8]}
RIGHT = "I(year - 2000) * arm + I((year - 2000)**2)"
NEW = pd.DataFrame({"year": [1990.0, 2000.0, 2013.0, 2005.0], "arm": ["drug", "placebo", "drug", "placebo"]})
FAMILIES = {"bernoulli": "ill", "poisson": "visits", "gaussian": "score"}


@pytest.fixture(scope="module", params=FAMILIES)
def found(request):
    return pt.regress(f"{FAMILIES[request.param]} ~ {RIGHT}", SITES, family=request.param)


def pooled(family):
    known = {"gaussian": sm.families.Gaussian(), "bernoulli": sm.families.Binomial(), "poisson": sm.families.Poisson()}
    table = TABLE.assign(ill=(TABLE.ill == "yes") * 1)
    return smf.glm(f"{FAMILIES[family]} ~ {RIGHT}", table, family=known[family]).fit()


def test_predictions_beside_statsmodels(found):
    """The mean over the posterior is within a fifth of a standard error of what the best coefficients give."""
    frame = pooled(found.design.family).get_prediction(NEW).summary_frame()
    assert np.all(np.abs(found.predict(NEW) - frame["mean"]) < 0.2 * frame["mean_se"])


def test_intervals_beside_statsmodels(found):
    fitted = pooled(found.design.family)
    frame = fitted.get_prediction(NEW).summary_frame(alpha=0.2)
    low, high = found.predict_interval(NEW, level=0.8).T
    if found.design.family == "bernoulli":
        expected = frame["mean_ci_lower"], frame["mean_ci_upper"]
        assert_allclose([low, high], expected, atol=0.02)
    elif found.design.family == "gaussian":
        half = stats.t.ppf(0.9, fitted.df_resid) * np.sqrt(frame["mean_se"] ** 2 + fitted.scale)
        assert_allclose([low, high], [frame["mean"] - half, frame["mean"] + half], atol=0.05 * half.max())
    else:
        # Between the quantiles of the best coefficients' Poisson, and those as much wider as the mean is uncertain.
        assert np.all(np.abs(low - stats.poisson.ppf(0.1, frame["mean"])) <= 1)
        assert np.all(np.abs(high - stats.poisson.ppf(0.9, frame["mean"])) <= 1)


def test_units_and_offsets_do_not_matter():
    """In seconds since 1970 a year is a billion: variances in those units would be lost to rounding."""
    family = "bernoulli"
    first = pt.regress("ill ~ year + arm", SITES, family=family)
    sites = {name: part.assign(year=3e7 * (part.year - 1970)) for name, part in SITES.items()}
    other = pt.regress("ill ~ year + arm", sites, family=family)
    assert_allclose(other.predict(NEW.assign(year=3e7 * (NEW.year - 1970))), first.predict(NEW), atol=1e-6)


def test_a_row_that_misses_something_has_nan_in_its_place(found):
    table = NEW.assign(year=[1990.0, np.nan, 2013.0, 2005.0])
    table.loc[3, "arm"] = None
    whole = np.array([True, False, True, False])
    assert_array_equal(np.isnan(found.predict(table)), ~whole)
    assert_allclose(found.predict(table)[whole], found.predict(NEW)[whole], rtol=1e-12)
    assert_array_equal(np.isnan(found.predict_interval(table, draws=100)), np.column_stack([~whole, ~whole]))
    assert np.all(np.isnan(found.predict(NEW.assign(year=np.nan))))
    assert found.predict(NEW[:0]).shape == (0,)


def test_rows_are_predicted_one_by_one_as_together(found):
    """Columns in another order, more of them, another index: what counts is their names."""
    together = found.predict(NEW)
    table = NEW.assign(more=1).loc[::-1, ["more", "arm", "year"]]
    assert_allclose(found.predict(table)[::-1], together, rtol=1e-12)
    assert_allclose([found.predict(NEW[i : i + 1])[0] for i in range(4)], together, rtol=1e-12)


def test_files_and_frames_of_all_kinds(found, tmp_path):
    frame = pl.DataFrame({name: NEW[name].to_numpy() for name in NEW})
    frame.write_csv(tmp_path / "new.csv")
    frame.write_parquet(tmp_path / "new.parquet")
    for table in (frame, tmp_path / "new.csv", str(tmp_path / "new.parquet")):
        assert_array_equal(found.predict(table), found.predict(NEW))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (NEW.assign(arm="both"), "table: column 'arm' has 'both', which no site had: known are 'drug', 'placebo'"),
        (NEW.assign(arm=1.0), "column 'arm' has '1', which no site had"),
        (NEW.drop(columns="year"), "table: has no column 'year': it has arm"),
        (NEW.assign(year="recent"), "column 'year' is not numbers"),
        (NEW.assign(year=True), "column 'year' is not numbers"),
        (NEW.assign(year=pd.Timestamp("2020-01-01")), "column 'year' is not numbers"),
        (NEW.assign(year=np.inf), "not finite"),
        (pd.concat([NEW, NEW], axis=1), "twice"),
        (np.ones((3, 2)), "table: expected a file or a pandas or polars frame, got ndarray"),
        ("missing.csv", "cannot be read"),
    ],
)
def test_tables_that_cannot_be_predicted_are_refused(bernoulli, table, words):
    for ask in (bernoulli.predict, bernoulli.predict_interval):
        with pytest.raises(InputError, match=words):
            ask(table)


@pytest.fixture(scope="module")
def bernoulli():
    return pt.regress("ill ~ year + arm", SITES, family="bernoulli")


def test_the_run_of_a_regression_refuses_rows_that_are_not_its_inputs(bernoulli, tmp_path):
    bernoulli.result.save(tmp_path / "run.safetensors")
    raw = np.column_stack([NEW.year, NEW.arm == "placebo"])
    for result in (bernoulli.result, pt.load(tmp_path / "run.safetensors")):
        for ask in (result.predict, result.predict_proba):
            with pytest.raises(
                InputError, match=r"regression 'ill ~ year \+ arm'.* pt\.Regression\.load\(path\)\.predict"
            ):
                ask(raw)


def test_what_is_saved_predicts_the_same(found, tmp_path):
    path = tmp_path / "found.safetensors"
    found.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    loaded = pt.Regression.load(path)
    assert_array_equal(loaded.predict(NEW), found.predict(NEW))
    assert_array_equal(loaded.predict_interval(NEW, draws=200), found.predict_interval(NEW, draws=200))
    assert (repr(loaded), str(loaded)) == (repr(found), str(found))
    assert loaded.coefficients() == found.coefficients()
    assert loaded.spreads() == found.spreads()
    assert loaded.contributions() == found.contributions()
    assert pt.compare([loaded, found])[1]["behind"] == 0
    with pytest.raises(InputError, match="needs the data"):
        loaded.calibration()
    # Nothing of the data is in the file.
    assert str(TABLE.score.iloc[0]).encode() not in path.read_bytes()


@pytest.mark.filterwarnings("ignore:the run has not settled")
@pytest.mark.parametrize(
    ("formula", "family"),
    [
        ("visits ~ 1", "negative binomial"),
        pytest.param("ill ~ year + (1 | ward)", "bernoulli", marks=pytest.mark.slow),
        pytest.param(
            "visits ~ bs(year, knots=[2000], lower_bound=1950, upper_bound=2050)",
            "negative binomial",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_programs_are_saved_too(formula, family, tmp_path):
    found = pt.regress(formula, {name: part[:80] for name, part in SITES.items()}, family=family)
    found.save(tmp_path / "found.safetensors")
    loaded = pt.Regression.load(tmp_path / "found.safetensors")
    assert_array_equal(loaded.predict(NEW), found.predict(NEW))
    assert loaded.spreads() == found.spreads()
    # What is expected is the mean of what is drawn.
    table = pd.concat([part[:80] for part in SITES.values()])
    X, _ = read_inputs(found.design, table)
    drawn = predict_observations(found.design, found._draw(4000, 1), X, np.random.default_rng(1))
    deviation = drawn.std(axis=0) / np.sqrt(4000)
    off = np.abs(found.predict(table) - drawn.mean(axis=0))
    assert np.all(off < 6 * deviation + 0.02 * drawn.mean(axis=0))
    with pytest.raises(InputError, match=r"use pt\.Regression\.load"):
        pt.load(tmp_path / "found.safetensors")


def test_the_result_of_a_command_carries_its_design(bernoulli, tmp_path, monkeypatch):
    monkeypatch.setattr("partita.foundation.compilation.cache_compilations", lambda: None)
    for name, part in SITES.items():
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    text = '[data]\nsites = "*.csv"\n[regression]\nformula = "ill ~ year + arm"\nfamily = "bernoulli"\n'
    (tmp_path / "ill.toml").write_text(text)
    outcome = CliRunner().invoke(app, ["run", str(tmp_path / "ill.toml"), "--out", str(tmp_path / "run"), "--quiet"])
    assert outcome.exit_code == 0, outcome.exception
    loaded = pt.Regression.load(tmp_path / "run" / "result.safetensors")
    assert_allclose(loaded.predict(NEW), bernoulli.predict(NEW), rtol=1e-9)


def altered(about, key, value):
    return {**about, "design": {**about["design"], key: value}}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("right", [[["__import__('os').system('false')", "python"]]]),
        ("right", [[["I(year - year.mean())", "python"]]]),
        ("right", [[["year", "no such way"]]]),
        ("right", [[["year", "lookup"]] * 3, 7]),
        ("right", [[[f"10**{10**9}*year", "python"]]]),
        ("columns", [["arm", ["a"] * 200], ["ill", None], ["year", [f"{i}" for i in range(10**5)]]]),
        ("columns", []),
        ("columns", 3),
        ("names", ["year"]),
        ("centre", [0.0]),
        ("centre", [None, 0.0]),
        ("unit", [0.0, 1.0]),
        ("target_unit", -1.0),
        ("prior_scale", 0.0),
        ("family", "cauchy"),
        ("sites", [["north", "many", None, 0]]),
        ("formula", None),
    ],
)
def test_files_that_say_something_else_are_refused(bernoulli, tmp_path, key, value):
    bernoulli.save(tmp_path / "good.safetensors")
    arrays, about = read_arrays(tmp_path / "good.safetensors")
    about.pop("format")
    write_arrays(tmp_path / "bad.safetensors", arrays, json.loads(json.dumps(altered(about, key, value))))
    if key == "formula":
        # Only words: what is evaluated are the terms.
        assert_array_equal(pt.Regression.load(tmp_path / "bad.safetensors").predict(NEW), bernoulli.predict(NEW))
        return
    with pytest.raises(CorruptStorage, match=r"bad\.safetensors"):
        pt.Regression.load(tmp_path / "bad.safetensors")


def test_files_of_other_things_are_refused(tmp_path):
    model = pt.models.LinearRegression(features=1, noise=1.0)
    X, y = np.arange(4.0)[:, None], np.arange(4.0)
    result = pt.fit(model, [(X, y)], schedule=pt.schedules.OnePass())
    result.save(tmp_path / "other.safetensors")
    with pytest.raises(RunMismatch, match="holds no regression"):
        pt.Regression.load(tmp_path / "other.safetensors")
