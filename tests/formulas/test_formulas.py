"""Regressions across silos, beside statsmodels on all data at once."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from numpy.testing import assert_allclose
from typer.testing import CliRunner

import partita as pt
from partita.cli import app
from partita.errors import CorruptStorage, InputError, StorageError
from partita.formulas.agreement import agree
from partita.formulas.silos import Silos
from silo_tables import read_design


def simulated(rows=400):
    rng = np.random.default_rng(1)
    table = pd.DataFrame(
        {
            "age": rng.normal(50, 10, rows),
            "arm": rng.choice(["drug", "placebo"], rows),
            "clinic": rng.choice(["a", "b", "c"], rows),
            "site": rng.integers(0, 4, rows),
        }
    )
    f = 0.05 * (table.age - 50) + 0.8 * (table.arm == "drug") - 0.5 * (table.clinic == "c")
    table["ill"] = np.where(rng.random(rows) < 1 / (1 + np.exp(-f)), "yes", "no")
    table["visits"] = rng.poisson(np.exp(0.5 + 0.5 * f))
    table["score"] = 100 + 20 * f + 15 * rng.normal(size=rows)
    # Only one site has the last clinic.
    table.loc[table.clinic == "c", "site"] = 3
    return table


TABLE = simulated()
SITES = {f"hospital {m}": part.drop(columns="site") for m, part in TABLE.groupby("site")}
RIGHT = "age + arm + clinic"


def compared(regression, fitted, tolerance=0.1):
    """Coefficients within a share of a standard error, and equal errors: means are not modes, and the prior is weak."""
    rows = {row["name"]: row for row in regression.coefficients()}
    assert set(rows) == set(fitted.params.index)
    for name, value in fitted.params.items():
        assert abs(rows[name]["mean"] - value) < tolerance * fitted.bse[name], name
        assert 0.97 < rows[name]["sd"] / fitted.bse[name] < 1.03, name


@pytest.fixture(scope="module")
def bernoulli():
    return pt.regress(f"ill ~ {RIGHT}", SITES, family="bernoulli")


def test_bernoulli_beside_statsmodels(bernoulli):
    pooled = TABLE.assign(ill=(TABLE.ill == "yes") * 1)
    compared(bernoulli, smf.glm(f"ill ~ {RIGHT}", pooled, family=sm.families.Binomial()).fit())
    row = bernoulli.coefficients()[1]
    assert_allclose([row["odds ratio"], row["ratio low"]], np.exp([row["mean"], row["low"]]))


def test_poisson_beside_statsmodels():
    found = pt.regress(f"visits ~ {RIGHT}", SITES, family="poisson")
    compared(found, smf.glm(f"visits ~ {RIGHT}", TABLE, family=sm.families.Poisson()).fit())
    inside = found.calibration()["inside"]
    assert abs(inside[0.8] - 0.8) < 0.1


def test_gaussian_beside_statsmodels():
    found = pt.regress(f"score ~ {RIGHT}", SITES)
    fitted = smf.ols(f"score ~ {RIGHT}", TABLE).fit()
    compared(found, fitted)
    (noise,) = found.spreads()
    assert noise["low"] < np.sqrt(fitted.scale) < noise["high"]
    # The log evidence is in the units of the data.
    scaled = {name: part.assign(score=part.score / 1000) for name, part in SITES.items()}
    other = pt.regress(f"score ~ {RIGHT}", scaled)
    assert_allclose(other.log_evidence - found.log_evidence, len(TABLE) * np.log(1000), rtol=1e-6)


@pytest.mark.slow
def test_negative_binomial_beside_statsmodels():
    rng = np.random.default_rng(5)
    counts = rng.poisson(np.exp(1 + 0.03 * (TABLE.age - 50)) * rng.gamma(2, 0.5, len(TABLE)))
    table = TABLE.assign(counts=counts)
    sites = {f"{m}": part for m, part in table.groupby("site")}
    found = pt.regress("counts ~ age + arm", sites, family="negative binomial")
    fitted = smf.negativebinomial("counts ~ age + arm", table).fit(disp=0)
    alpha = fitted.params["alpha"]
    rows = {row["name"]: row for row in found.coefficients()}
    for name in rows:
        assert abs(rows[name]["mean"] - fitted.params[name]) < 0.1 * fitted.bse[name]
        assert 0.95 < rows[name]["sd"] / fitted.bse[name] < 1.05
    (size,) = found.spreads()
    assert size["low"] < 1 / alpha < size["high"]


@pytest.mark.slow
def test_random_intercepts_beside_statsmodels():
    rng = np.random.default_rng(6)
    group = np.repeat(np.arange(40), 8)
    x = rng.normal(size=len(group))
    y = 3 + 2 * x + 1.5 * rng.normal(size=40)[group] + rng.normal(size=len(group))
    table = pd.DataFrame({"x": x, "y": y, "ward": group})
    sites = {f"{m}": table[group % 4 == m] for m in range(4)}
    found = pt.regress("y ~ x + (1 | ward)", sites)
    fitted = smf.mixedlm("y ~ x", table, groups=table.ward).fit()
    rows = {row["name"]: row for row in found.coefficients()}
    for name in ("x", "Intercept"):
        assert abs(rows[name]["mean"] - fitted.params[name]) < 0.1 * fitted.bse[name]
        assert 0.9 < rows[name]["sd"] / fitted.bse[name] < 1.1
    spread = {row["name"]: row for row in found.spreads()}
    assert spread["sd of ward"]["low"] < np.sqrt(fitted.cov_re.iloc[0, 0]) < spread["sd of ward"]["high"]
    assert spread["noise"]["low"] < np.sqrt(fitted.scale) < spread["noise"]["high"]
    assert found.contributions()[0]["groups"] == 10


def test_a_level_that_one_site_has_is_learnt_from_that_site(bernoulli):
    place = bernoulli.design.names.index("clinic[T.c]")
    for factor in bernoulli.result.factors[:3]:
        others = np.delete(np.asarray(factor.precision)[place], place)
        # Inputs are centred, so that the column varies with the intercept elsewhere, and says no more than it does.
        assert np.all(np.isfinite(others))
    without = pt.regress(f"ill ~ {RIGHT}", {**SITES, "hospital 3": SITES["hospital 3"]}, family="bernoulli")
    assert_allclose(without.log_evidence, bernoulli.log_evidence)


def test_a_site_with_perfect_separation():
    """Its own maximum likelihood is at infinity; the posterior is not."""
    sites = dict(SITES)
    first = sites["hospital 0"].copy()
    first["ill"] = np.where(first.age > first.age.median(), "yes", "no")
    sites["hospital 0"] = first
    found = pt.regress("ill ~ age + arm", sites, family="bernoulli")
    alone = pt.regress("ill ~ age + arm", {"hospital 0": first}, family="bernoulli")
    for regression in (found, alone):
        assert all(np.isfinite(row["sd"]) and row["sd"] < 10 for row in regression.coefficients())
    assert alone.coefficients()[1]["low"] > 0


def test_rows_that_miss_something_are_left_out_and_counted():
    sites = {name: part.copy() for name, part in SITES.items()}
    sites["hospital 1"].iloc[:5, 0] = np.nan
    found = pt.regress("score ~ age + arm", sites)
    assert [row["missing"] for row in found.contributions()] == [0, 5, 0, 0]
    with pytest.raises(InputError, match="other observations"):
        pt.compare([found, pt.regress("score ~ arm", sites)])


def test_formulas_are_compared_by_evidence(bernoulli):
    less = pt.regress("ill ~ age + clinic", SITES, family="bernoulli")
    rows = pt.compare([less, bernoulli])
    assert rows[0]["formula"] == bernoulli.formula
    assert_allclose(sum(row["weight"] for row in rows), 1)
    assert_allclose(rows[1]["behind"], bernoulli.log_evidence - less.log_evidence)


def test_a_gaussian_in_full():
    found = pt.regress(f"score ~ {RIGHT}", SITES, held_out=0.3)
    calibration = found.calibration()
    assert calibration["on"] == "rows that were held out"
    assert all(abs(share - level) < 0.15 for level, share in calibration["inside"].items())
    assert calibration["rmse"] < TABLE.score.std()
    # Whose rows are held out, and what is drawn for them, does not depend on the order of sites.
    turned = pt.regress(f"score ~ {RIGHT}", dict(reversed(SITES.items())), held_out=0.3)
    assert turned.calibration()["inside"] == calibration["inside"]
    first, head, intercept, *_ = str(found).splitlines()
    assert first == repr(found)
    assert "gaussian" in first
    assert head.split() == ["mean", "sd", "2.5", "%", "97.5", "%"]
    row = found.coefficients()[0]
    assert intercept.split() == [row["name"], *(f"{row[key]:.4g}" for key in ("mean", "sd", "low", "high"))]


@pytest.mark.parametrize("formula", ["n ~ rare", "n ~ C(many)", "n ~ skewed"])
def test_counts_with_columns_that_a_wide_prior_makes_explode(formula):
    rng = np.random.default_rng(1)
    columns = {
        "rare": (rng.random(600) < 0.01) * 1.0,
        "many": rng.integers(0, 12, 600),
        "skewed": rng.lognormal(0, 1.5, 600),
    }
    table = pd.DataFrame({**columns, "n": rng.poisson(40.0, 600)})
    found = pt.regress(formula, {f"{m}": table[m::3] for m in range(3)}, family="poisson")
    fitted = smf.glm(formula, table, family=sm.families.Poisson()).fit()
    for row in found.coefficients():
        assert abs(row["mean"] - fitted.params[row["name"]]) < 0.15 * fitted.bse[row["name"]]
        assert 0.97 < row["sd"] / fitted.bse[row["name"]] < 1.03


@pytest.mark.parametrize("level", [6, 8])
def test_counts_in_groups_far_from_one(level):
    rng = np.random.default_rng(1)
    group, x = rng.integers(0, 12, 300), rng.normal(size=300)
    own = 0.3 * rng.normal(size=12)
    table = pd.DataFrame({"g": group, "x": x, "n": rng.poisson(np.exp(level + 0.3 * x + own[group]))})
    found = pt.regress("n ~ x + (1 | g)", {"a": table[group < 6], "b": table[group >= 6]}, family="poisson")
    intercept, slope = found.coefficients()
    assert abs(intercept["mean"] - level - own.mean()) < 0.02
    assert abs(intercept["sd"] - own.std(ddof=1) / np.sqrt(12)) < 0.02
    assert abs(slope["mean"] - 0.3) < 4 * slope["sd"] < 0.03


@pytest.mark.parametrize(("scale", "offset"), [(1e-13, 0.0), (1.0, 1e9), (1e8, -1e12)])
def test_units_do_not_matter(scale, offset):
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    y = 1 + 2 * x + rng.normal(size=300)
    found = []
    for column in (x, scale * x + offset):
        table = pd.DataFrame({"x": column, "y": y})
        found.append(pt.regress("y ~ x", {"a": table[:100], "b": table[100:]}))
    assert_allclose(found[1].coefficients()[1]["mean"] * scale, found[0].coefficients()[1]["mean"], rtol=1e-4)
    assert_allclose(found[1].log_evidence, found[0].log_evidence, atol=1e-2)


def test_the_same_rows_are_held_out_whatever_the_formula_is():
    sites = {name: part.assign(ward=np.arange(len(part)) // 2) for name, part in SITES.items()}
    digests = set()
    for formula in ("score ~ age", "score ~ arm + (1 | ward)"):
        with Silos.of(sites, None).connected() as connection:
            agreement = agree(connection, formula, "gaussian", held_out=0.4, seed=1)
        assert 0.5 * len(TABLE) < sum(counts.rows for counts in agreement.counts.values()) < 0.7 * len(TABLE)
        digests.add(agreement.digest)
    assert len(digests) == 1


def test_numbers_that_are_text_are_no_levels():
    sites = {name: part.assign(age=part.age.round(1).astype(str)) for name, part in SITES.items()}
    sites["hospital 1"].iloc[3, sites["hospital 1"].columns.get_loc("age")] = "unknown"
    with pytest.raises(InputError, match="hospital 0: column 'age' is text that holds numbers: make"):
        pt.regress("score ~ age", sites)
    with pytest.raises(InputError, match="numbers, and 'unknown': make"):
        pt.regress("score ~ age", {"hospital 1": sites["hospital 1"]})


def test_columns_may_have_any_name():
    sites = {name: part.assign(**{"ward no": np.arange(len(part)) % 3}) for name, part in SITES.items()}
    design, _ = read_design("score ~ age + C(`ward no`)", "gaussian", sites)
    assert design.names == ("age", "C(`ward no`)[T.1]", "C(`ward no`)[T.2]")
    design, parts = read_design("score ~ age + (1 | `ward no`)", "gaussian", sites)
    assert (design.names, design.group) == (("age",), "ward no")
    assert len(np.unique(parts["hospital 2"].group)) == 3


@pytest.mark.parametrize(("target", "family"), [("score", "gaussian"), ("ill", "bernoulli"), ("visits", "poisson")])
def test_an_intercept_alone(target, family):
    (row,) = pt.regress(f"{target} ~ 1", SITES, family=family).coefficients()
    y = (TABLE[target] == "yes") * 1 if family == "bernoulli" else TABLE[target]
    known = {"gaussian": sm.families.Gaussian(), "bernoulli": sm.families.Binomial(), "poisson": sm.families.Poisson()}
    fitted = sm.GLM(y, np.ones(len(y)), family=known[family]).fit()
    assert abs(row["mean"] - fitted.params.iloc[0]) < 0.1 * fitted.bse.iloc[0]
    assert 0.97 < row["sd"] / fitted.bse.iloc[0] < 1.03


def test_no_coefficient_at_all():
    found = pt.regress("score ~ 0", SITES, quiet=True)
    assert found.coefficients() == []
    assert "log evidence" in str(found)
    np.testing.assert_array_equal(found.predict(TABLE), np.zeros(len(TABLE)))


def test_groups_with_long_numbers_stay_apart(tmp_path):
    """As a file has them: numbers of seven digits, and more of them than a column may have levels."""
    patients = 1_234_000 + np.arange(1500)
    table = pd.DataFrame(
        {"y": np.arange(3000.0), "patient": np.repeat(patients, 2), "arm": np.tile([0.25, 1e7 + 1], 1500)}
    )
    table.to_csv(tmp_path / "north.csv", index=False)
    sites = {"north": tmp_path / "north.csv", "south": table}
    design, parts = read_design("y ~ C(arm) + (1 | patient)", "gaussian", sites)
    assert design.columns["arm"].levels == ("0.25", "10000001")
    np.testing.assert_array_equal(parts["north"].group, np.repeat(np.arange(1500), 2))
    np.testing.assert_array_equal(parts["south"].group, 1500 + np.repeat(np.arange(1500), 2))


def test_contributions_and_calibration(bernoulli):
    rows = bernoulli.contributions()
    assert [row["site"] for row in rows] == list(SITES)
    assert sum(row["rows"] for row in rows) == len(TABLE)
    assert all(row["nats"] > 0 for row in rows)
    found = bernoulli.calibration()
    assert found["on"] == "the rows that were fitted"
    assert sum(part["rows"] for part in found["curve"]) == len(TABLE)
    assert found["ece"] < 0.1


def test_arviz(bernoulli):
    summary = bernoulli.to_arviz(400).posterior
    row = {row["name"]: row for row in bernoulli.coefficients()}["age"]
    assert_allclose(float(summary["age"].mean()), row["mean"], atol=4 * row["sd"] / 20)
    assert_allclose(float(summary["age"].std()), row["sd"], rtol=0.15)


@pytest.mark.parametrize(
    ("formula", "family", "words"),
    [
        ("score ~ scale(age)", "gaussian", "depends on all data"),
        ("score ~ weight", "gaussian", "has no column 'weight'"),
        ("score ~ C(np.floor(age))", "gaussian", r"C\(\) takes a column"),
        ("visits ~ arm + offset(log(age))", "poisson", "offsets are not known"),
        ("score ~ age + (age | clinic)", "gaussian", "random intercept"),
        ("score", "gaussian", "something like"),
        ("score ~ age +* arm", "gaussian", "something like"),
        ("ill ~ age", "gaussian", "needs numbers"),
        ("clinic ~ age", "bernoulli", "two of them"),
        ("score ~ age", "bernoulli", "0 or 1"),
        ("score ~ age", "poisson", "count"),
        ("score ~ age", "gamma", "expected one of"),
        ("score ~ log(age - 1000)", "gaussian", "not finite"),
        ("score ~ I(age * 1e300)", "gaussian", "hospital 0: .* too large"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_what_cannot_be_fitted_is_refused(formula, family, words):
    with pytest.raises(InputError, match=words):
        pt.regress(formula, SITES, family=family)


def test_sites_have_to_agree_on_columns():
    other = {**SITES, "hospital 1": SITES["hospital 1"].assign(age="old")}
    with pytest.raises(InputError, match="numbers at site hospital 0, text at site hospital 1"):
        pt.regress("score ~ age", other)
    empty = {**SITES, "hospital 1": SITES["hospital 1"].assign(age=np.nan)}
    with pytest.raises(InputError, match="hospital 1: no row has all"):
        pt.regress("score ~ age", empty)


def test_numbers_as_levels():
    coded = {name: part.assign(clinic=part.clinic.map({"a": 1, "b": 2, "c": 10})) for name, part in SITES.items()}
    found = pt.regress("score ~ C(clinic)", coded)
    assert found.design.names == ("C(clinic)[T.2]", "C(clinic)[T.10]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    for number, part in enumerate(SITES.values()):
        frame = pl.DataFrame({name: part[name].to_numpy() for name in part})
        if number:
            frame.write_csv(folder / f"site{number}.csv")
        else:
            frame.write_parquet(folder / "site0.parquet")
    (folder / "ill.toml").write_text(
        """
[data]
sites = "site*.*"

[regression]
formula = "ill ~ age + arm + clinic"
family = "bernoulli"
compare = ["ill ~ age + clinic"]
"""
    )
    return folder


def test_files_are_read_as_frames_are(folder, bernoulli):
    found = pt.regress(f"ill ~ {RIGHT}", [folder / "site0.parquet", *sorted(folder.glob("*.csv"))], family="bernoulli")
    assert_allclose(found.log_evidence, bernoulli.log_evidence, rtol=1e-9)
    with pytest.raises(InputError, match="no file matches"):
        pt.regress("ill ~ age", "nothing*.csv")
    (folder / "broken.parquet").write_text("no table")
    with pytest.raises(InputError, match="cannot be read"):
        pt.regress("ill ~ age", [folder / "broken.parquet"])


def test_partita_run(folder, bernoulli, tmp_path, monkeypatch):
    monkeypatch.setattr("partita.foundation.compilation.cache_compilations", lambda: None)
    out = tmp_path / "ill"
    outcome = CliRunner().invoke(app, ["run", str(folder / "ill.toml"), "--out", str(out), "--json"])
    assert outcome.exit_code == 0, (outcome.exception, outcome.stderr)
    lines = [json.loads(line) for line in outcome.stdout.splitlines()]
    row = next(line for line in lines if line["event"] == "regression")
    assert_allclose(row["log evidence"], bernoulli.log_evidence, rtol=1e-9)
    assert [one["formula"] for one in row["formulas"]] == ["ill ~ age + arm + clinic", "ill ~ age + clinic"]
    page = (out / "report.html").read_text()
    assert "odds ratio" in page
    again = CliRunner().invoke(app, ["report", str(out)])
    assert again.exit_code == 0
    assert "clinic[T.c]" in (out / "report.html").read_text()


def test_bounds_of_a_run_are_those_of_the_targets_as_given(tmp_path, monkeypatch):
    monkeypatch.setattr("partita.foundation.compilation.cache_compilations", lambda: None)
    for name, part in SITES.items():
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "score.toml").write_text('[data]\nsites = "*.csv"\n[regression]\nformula = "score ~ age"\n')
    out = tmp_path / "run"
    outcome = CliRunner().invoke(app, ["run", str(tmp_path / "score.toml"), "--out", str(out), "--json"])
    summary = json.loads(outcome.stdout.splitlines()[-1])
    expected = pt.regress("score ~ age", SITES).log_evidence
    assert_allclose([summary["log evidence"], summary["free energy"]], expected, rtol=1e-6)
    (out / "regression.json").write_text(json.dumps({"fold": int(summary["rounds"])}))
    outcome = CliRunner().invoke(app, ["report", str(out)])
    assert isinstance(outcome.exception, CorruptStorage)
    with pytest.raises(StorageError, match=r"is a folder; .*result\.safetensors"):
        pt.load(out)


def test_what_cannot_be_compared_is_told_before_anything_is_fitted(folder, tmp_path):
    table = pd.read_csv(folder / "site1.csv")
    table.loc[:5, "age"] = np.nan
    table.to_csv(tmp_path / "a.csv", index=False)
    text = (
        '[data]\nsites = "*.csv"\n[regression]\nformula = "ill ~ arm"\nfamily = "bernoulli"\ncompare = ["ill ~ age"]\n'
    )
    (tmp_path / "ill.toml").write_text(text)
    outcome = CliRunner().invoke(app, ["run", str(tmp_path / "ill.toml"), "--out", str(tmp_path / "run")])
    assert "'ill ~ age' is of other observations than 'ill ~ arm'" in str(outcome.exception)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("[model]\nname = 'network'", "does not go with"),
        ("[solver]\nname = 'fixed-point'", "does not go with"),
    ],
)
def test_mistakes_in_the_file_are_told(folder, tmp_path, change, words):
    path = tmp_path / "wrong.toml"
    path.write_text((folder / "ill.toml").read_text() + change)
    outcome = CliRunner().invoke(app, ["run", str(path)])
    assert words in str(outcome.exception)


@pytest.mark.parametrize(("target", "family"), [("score", "gaussian"), ("visits", "poisson")])
def test_weights_say_how_many_observations_a_row_stands_for(target, family):
    """Beside statsmodels' frequency weights, and exactly as if rows were there as often."""
    table = TABLE.assign(n=np.arange(len(TABLE)) % 4)
    sites = {f"{m}": part for m, part in table.groupby("site")}
    found = pt.regress(f"{target} ~ {RIGHT}", sites, family=family, weights="n", quiet=True)
    known = {"gaussian": sm.families.Gaussian(), "poisson": sm.families.Poisson()}
    compared(found, smf.glm(f"{target} ~ {RIGHT}", table, family=known[family], freq_weights=table.n).fit())
    repeated = {name: part.loc[part.index.repeat(part.n)] for name, part in sites.items()}
    other = pt.regress(f"{target} ~ {RIGHT}", repeated, family=family, quiet=True)
    assert_allclose(other.log_evidence, found.log_evidence, rtol=1e-12)
    assert other.contributions() == found.contributions()


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.ones(400), "weights: expected the name of a column .* got ndarray"),
        ("age", r"site hospital 0: weights 'age' has to hold whole numbers .* surveys"),
        ("arm", "weights 'arm' has to hold whole numbers"),
        ("n", "has no column 'n'"),
        ("many", "more than 20,000,000 rows"),
        ("gaps", "none missing"),
        ("endless", "whole numbers|more than"),
    ],
)
def test_other_weights_are_refused(weights, words):
    sites = {
        name: part.assign(many=1e8, gaps=[np.nan] + [1] * (len(part) - 1), endless=np.inf)
        for name, part in SITES.items()
    }
    with pytest.raises(InputError, match=words):
        pt.regress("score ~ age", sites, weights=weights)
