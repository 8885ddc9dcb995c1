"""The table of published methods: that rows are whole, and that some of them agree with their references."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from partita.cli import app
from partita.errors import InputError, MissingData
from partita.expectations import LocalReparameterisation
from partita.server.schedules import OnePass, Sequential
from partita.solvers import FixedPoint, Gradient, MomentMatching
from partita.studies.methods import TABLE, check_methods, find_method, graphs, processes, run_method
from partita.studies.methods.problems import each_row, whole

RUNNER = CliRunner()


def test_rows_are_whole():
    assert len({row.name for row in TABLE}) == len(TABLE)
    for row in TABLE:
        assert row.citation
        assert row.words.endswith(".")


@pytest.mark.parametrize(
    "name",
    [
        "winn-bishop-2005",
        "khan-li-2018",
        "minka-2004",
        "bui-2017",
        "bui-2017b-classes",
        "zeno-2018",
        "winn-bishop-2005b",
        "minka-2001b",
        "minka-2001c",
        "minka-2004b",
        "knowles-minka-2011b",
        "wand-2014d",
        "honkela-2010c",
    ],
)
def test_quick_rows_agree_with_their_references(name):
    """All of them: `partita methods --check`."""
    (result,) = check_methods([find_method(name)])
    assert result["status"] == "good"
    assert abs(result["difference"]) <= result["tolerance"]


def test_factors_at_one_site_are_sent_together():
    """The moments that match those of the whole graph are its exact probabilities, loops or not."""
    row = replace(find_method("minka-2001c"), partition=whole, schedule=OnePass(), check=graphs.exact_marginals)
    (result,) = check_methods([row])
    assert result["status"] == "good"
    loopy = replace(row, partition=each_row, schedule=Sequential(30))
    (result,) = check_methods([loopy])
    assert result["status"] == "off"


def fully_independent():
    """With α = 1; where noise is normal, the solver's own power changes nothing."""
    problem = processes.sparse_regression()
    return replace(problem, model=replace(problem.model, power=1.0))


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("minka-2004b", {"solver": MomentMatching(0.6)}),
        ("small-powers", {"solver": MomentMatching(0.1)}),
        ("winn-bishop-2005b", {"schedule": OnePass()}),
        ("bui-2017b-regression", {"problem": fully_independent}),
        ("bui-2017b-classes", {"solver": MomentMatching(0.6)}),
        ("knowles-minka-2011b", {"expectation": LocalReparameterisation(32)}),
        ("honkela-2010c", {"solver": Gradient("sgd", 0.003, steps=2000, tolerance=0.0)}),
    ],
)
def test_references_tell_one_method_from_another(name, changed):
    (result,) = check_methods([replace(find_method(name), **changed)])
    assert result["status"] == "off"


def test_a_row_that_is_off_says_so():
    bad = replace(find_method("khan-li-2018"), solver=FixedPoint(step_size=0.01))
    (result,) = check_methods([bad])
    assert result["status"] == "off"
    assert result["difference"] > 1


def test_a_row_without_its_data_says_where_to_get_them(monkeypatch, tmp_path):
    monkeypatch.setenv("PARTITA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (result,) = check_methods([find_method("wand-2014b")])
    assert result["status"] == "no data"
    assert "Rdatasets" in result["words"]
    with pytest.raises(MissingData, match=r"tables/epil\.csv is not here"):
        run_method(find_method("wand-2014b"))


def test_unknown_rows_are_refused():
    with pytest.raises(InputError, match="use one of beal-2003"):
        find_method("nobody")


def test_the_command():
    shown = RUNNER.invoke(app, ["methods"])
    assert shown.exit_code == 0
    assert all(row.name in shown.stdout for row in TABLE)
    rows = [json.loads(line) for line in RUNNER.invoke(app, ["methods", "--json"]).stdout.splitlines()]
    assert [row["method"] for row in rows] == [row.name for row in TABLE]
    one = RUNNER.invoke(app, ["methods", "winn-bishop-2005", "--json"])
    assert json.loads(one.stdout)["status"] == "good"
