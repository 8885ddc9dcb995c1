"""What is said before a regression is fitted: about tables, families, levels and sites."""

import io
import json
import stat
import warnings

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner

import partita as pt
from partita import telemetry
from partita.cli import app
from partita.designs.advice import doubt_levels, find_alike
from partita.designs.responses import find_response
from partita.errors import InputError, RunMismatch
from partita.launch import follow_run
from partita.server.storage import read_names
from silo_tables import read_design


def table(rows=90):
    rng = np.random.default_rng(4)
    frame = pd.DataFrame({"x": rng.normal(size=rows), "smoker": rng.choice(["yes", "no"], rows)})
    frame["ill"] = np.where(rng.random(rows) < 0.4, "sick", "healthy")
    frame["y"] = frame.x + rng.normal(size=rows)
    return frame


TABLE = table()


def sites(**columns):
    frame = TABLE.assign(**columns)
    return {"north": frame[:50], "south": frame[50:]}


def test_levels_that_differ_by_case_or_blanks_are_said_before_the_fit():
    smoker = TABLE.smoker.copy()
    smoker[3], smoker[60] = "Yes", " yes "
    with pytest.warns(UserWarning, match=r"column 'smoker': ' yes ', 'Yes', 'yes' differ .* 3 levels: make them alike"):
        pt.regress("y ~ x + smoker", sites(smoker=smoker), quiet=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pt.regress("y ~ x + smoker", sites(), quiet=True)
    assert find_alike(["a b", "AB", "c", "C ", "d"]) == [("a b", "AB"), ("c", "C ")]


def test_a_column_with_one_level_is_said_to_tell_nothing():
    with pytest.warns(UserWarning, match="column 'smoker' has one level only, 'no': it tells no row from another"):
        pt.regress("y ~ x + smoker", sites(smoker="no"), quiet=True)


def test_so_are_those_of_targets_and_groups():
    ill = TABLE.ill.copy()
    ill[5] = "Sick"
    with pytest.raises(InputError, match="needs two of them, or 0 and 1: 'Sick', 'sick' differ by case or blanks only"):
        pt.regress("ill ~ x", sites(ill=ill), family="bernoulli")
    ward = pd.Series(["a", "b", "c"] * 30)
    ward[0] = "A "
    design, _ = read_design("y ~ x + (1 | ward)", "gaussian", sites(ward=ward))
    assert design.advice == (
        "site north: 1 groups of 'ward' have names that differ by case or blanks only: make them alike",
    )


DAYS = pd.Series(pd.date_range("2020-01-01", periods=90, freq="D"))


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (DAYS, "column 'z' holds dates, which would be 90 levels .* days since .* say C\\(z\\)"),
        (DAYS.dt.strftime("%Y-%m-%d"), "holds dates"),
        (DAYS.dt.strftime("%d/%m/%Y").where(DAYS.index != 3, "unknown"), "holds dates"),
        (pd.Series([f"patient {i}" for i in range(90)]), r"90 levels in 90 rows, as names of rows .* \(1 \| z\)"),
    ],
)
def test_dates_and_names_of_rows_are_no_levels(column, words):
    with pytest.raises(InputError, match=words):
        pt.regress("y ~ x + z", sites(z=column))
    # Whoever says that they are is warned.
    design, _ = read_design("y ~ x + C(z)", "gaussian", sites(z=column))
    assert len(design.advice) == 1


def test_few_levels_and_many_rows_are_nothing_to_speak_of():
    levels = [f"level {i}" for i in range(100)]
    assert doubt_levels("z", levels, 1000) is None
    assert doubt_levels("z", [f"2020-01-{i:02d}" for i in range(1, 13)], 12) is None
    frame = pd.DataFrame({"z": levels * 4, "y": np.arange(400.0)})
    design, _ = read_design("y ~ C(z)", "gaussian", {"all": frame})
    assert "100 levels, with 4.0 rows each: if it names groups, (1 | z)" in design.advice[0]
    large = pd.DataFrame({"z": [f"2020-01-01 {i}" for i in range(1500)], "y": np.arange(1500.0)})
    with pytest.raises(InputError, match="site all: column 'z' holds dates"):
        pt.regress("y ~ z", {"all": large})


@pytest.fixture
def spoken(monkeypatch):
    """What is said on standard error."""
    stream = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(file=stream, width=100))
    return stream


def test_which_level_of_a_target_is_modelled_is_said(spoken):
    found = pt.regress("ill ~ x", sites(), family="bernoulli")
    assert spoken.getvalue().splitlines()[0] == "target ill: what is modelled is 'sick', against 'healthy'"
    assert "P(ill = 'sick')" in str(found)
    share = np.mean(TABLE.ill == "sick")
    assert abs(found.predict(TABLE).mean() - share) < 0.02
    spoken.truncate(0)
    pt.regress("ill ~ x", sites(), family="bernoulli", quiet=True)
    pt.regress("I(ill == 'healthy') ~ x", sites(), family="bernoulli")
    assert "target" not in spoken.getvalue()


def test_a_regression_says_how_far_it_is_unless_it_is_quick_or_quiet(spoken, monkeypatch):
    monkeypatch.setattr(telemetry, "FIRST_LINE", 1e6)
    pt.regress("y ~ x", sites())
    assert spoken.getvalue() == ""
    monkeypatch.setattr(telemetry, "FIRST_LINE", 0.0)
    pt.regress("y ~ x", sites(), quiet=True)
    assert spoken.getvalue() == ""
    pt.regress("y ~ x", sites())
    assert "y ~ x: round 2 of 2, free energy" in spoken.getvalue()
    pt.regress("ill ~ x", sites(), family="bernoulli")
    assert "ill ~ x: settled in round " in spoken.getvalue()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("Gaussian", "gaussian"),
        (" normal ", "gaussian"),
        ("negative_binomial", "negative binomial"),
        ("Negative-Binomial", "negative binomial"),
        ("NegativeBinomial", "negative binomial"),
        ("binomial", "bernoulli"),
        ("logit", "bernoulli"),
        ("Poisson", "poisson"),
    ],
)
def test_families_go_by_other_names(given, meant):
    assert find_response(given).name == meant


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("gausian", r"got 'gausian'; did you mean 'gaussian'\?"),
        ("binomal", r"did you mean 'bernoulli'\?"),
        ("poison", r"did you mean 'poisson'\?"),
        ("gamma", "expected one of gaussian, bernoulli, poisson, negative binomial, got 'gamma'$"),
        (7, "expected one of"),
        (["gaussian"], "expected one of"),
    ],
)
def test_families_that_are_not_known_get_a_suggestion(given, words):
    with pytest.raises(InputError, match=words):
        pt.regress("y ~ x", sites(), family=given)


def test_the_family_of_another_package_gets_a_suggestion():
    import statsmodels.api as sm

    with pytest.raises(InputError, match=r"did you mean 'bernoulli'\?"):
        find_response(sm.families.Binomial())


def test_a_run_knows_what_sites_are_called():
    class Watched(pt.engines.InProcess):
        def open(self, job, shards):
            self.names = job.names.names
            super().open(job, shards)

    engine = Watched()
    pt.regress("y ~ x", sites(), engine=engine, quiet=True)
    assert engine.names == ("north", "south")


def test_who_watches_a_run_sees_names(tmp_path):
    run_dir = tmp_path / "run"
    pt.regress("y ~ x", sites(), run_dir=run_dir, quiet=True)
    follower = follow_run(run_dir)
    assert follower.read()
    assert [row["site"] for row in follower.site_rows()] == ["north", "south"]
    with pytest.raises(RunMismatch):
        pt.regress("y ~ x", {"other": TABLE}, run_dir=run_dir, quiet=True)
    assert read_names(run_dir) == ["north", "south"]
    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE((run_dir / "sites.json").stat().st_mode) == 0o600
    for text in ("{", "3", "{}", "[" * 100_000):
        (run_dir / "sites.json").write_text(text)
        assert read_names(run_dir) == []


def test_levels_that_a_terminal_or_rich_would_obey(spoken):
    """Escapes are shown, brackets are brackets."""
    smoker, ill = TABLE.smoker.replace("no", "z\x1b]0;owned\x07[/b]"), TABLE.ill.replace("sick", "[/b]\x1b[2J")
    found = pt.regress("ill ~ x + smoker", sites(smoker=smoker, ill=ill), family="binomial")
    for text in (str(found), repr(found), spoken.getvalue()):
        assert "\x1b" not in text
    assert r"smoker[T.z\x1b]0;owned\x07[/b]]" in str(found)
    assert r"what is modelled is 'healthy', against '[/b]\x1b[2J'" in spoken.getvalue()


def test_commands_say_so_too(tmp_path, monkeypatch):
    monkeypatch.setattr("partita.foundation.compilation.cache_compilations", lambda: None)
    for name, part in sites().items():
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    text = '[data]\nsites = "*.csv"\n[regression]\nformula = "ill ~ x"\nfamily = "Binomial"\n'
    (tmp_path / "ill.toml").write_text(text)
    outcome = CliRunner().invoke(app, ["run", str(tmp_path / "ill.toml"), "--out", str(tmp_path / "run")])
    assert outcome.exit_code == 0, outcome.exception
    assert "target ill: what is modelled is 'sick', against 'healthy'" in outcome.stderr
    assert json.loads((tmp_path / "run" / "regression.json").read_text())["family"] == "bernoulli"


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("first", [2**53, 2**63, 2**64 + 2])
def test_names_that_are_long_numbers_are_not_taken_for_each_other(first, missing, tmp_path):
    """Floats do not tell 2**53 from 2**53 + 1: people of a file were merged, those of a frame were not."""
    ids = [first, first + 1, first + 2] * 30
    lines = [f"{'' if missing and i == 3 else one},{y}" for i, (one, y) in enumerate(zip(ids, TABLE.y, strict=True))]
    (tmp_path / "all.csv").write_text("\n".join(["who,y", *lines]))
    tables = {"all": tmp_path / "all.csv"}
    found = pt.regress("y ~ 1 + (1 | who)", tables, schedule=pt.schedules.Synchronous(rounds=1), quiet=True)
    assert found.counts["all"].groups == 3
    assert found.counts["all"].missing == missing
    found = pt.regress("y ~ C(who)", tables, quiet=True)
    assert found.design.names == (f"C(who)[T.{first + 1}]", f"C(who)[T.{first + 2}]")


def test_long_numbers_are_numbers_too(tmp_path):
    table = pd.DataFrame({"big": (np.arange(90) + 1) * 2**53, "y": TABLE.y})
    table.to_csv(tmp_path / "all.csv", index=False)
    slope = pt.regress("y ~ big", {"all": tmp_path / "all.csv"}, quiet=True).coefficients()[1]["mean"]
    expected = pt.regress("y ~ small", {"all": table.assign(small=table.big / 2**53)}, quiet=True).coefficients()[1]
    np.testing.assert_allclose(slope * 2**53, expected["mean"], rtol=1e-9)


def test_sites_whose_names_are_the_same_in_words():
    """The first one's rows were lost without a word."""
    with pytest.raises(InputError, match="two are called '1': give each a name of its own"):
        pt.regress("y ~ x", {1: TABLE[:50], "1": TABLE[50:]})


def test_numbers_whose_squares_vanish():
    for formula, name in (("y ~ I(x * 1e-200)", "I(x * 1e-200)"), ("I(y * 1e-200) ~ x", "I(y * 1e-200)")):
        with pytest.raises(InputError) as caught:
            pt.regress(formula, sites(), quiet=True)
        assert str(caught.value).startswith(f"column {name!r}: has numbers so small that their squares are zero")
    small = pt.regress("y ~ I(x * 1e-140)", sites(), quiet=True).coefficients()[1]
    usual = pt.regress("y ~ x", sites(), quiet=True).coefficients()[1]
    np.testing.assert_allclose(small["mean"] * 1e-140, usual["mean"], rtol=1e-9)


def test_progress_and_the_log_evidence_are_in_the_same_units(monkeypatch):
    """Runs have units of their own: lines of progress ended far from what was found."""
    monkeypatch.setattr(telemetry, "FIRST_LINE", 0.0)
    stream = io.StringIO()
    progress = telemetry.Progress("trial", Console(file=stream, width=100))
    found = pt.regress("y ~ x", sites(y=1000 * TABLE.y), callbacks=[progress], quiet=True)
    shown = float(stream.getvalue().split("free energy ")[-1])
    assert abs(shown - found.log_evidence) < 0.01
    assert progress.offset == 0
