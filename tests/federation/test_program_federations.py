"""Programs across the wall: NumPyro's from a file that sites have approved by its digest, and own models by name."""

import hashlib
import sys

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import partita as pt
from memory_federation import MemoryFederation
from partita.cli import app
from partita.errors import InputError
from partita.federation.folders import read_server
from partita.federation.new import plan_program
from partita.foundation.own_code import load_file

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

HIERARCHY = """
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def model(X, ward, y):
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
    level = numpyro.sample("level", dist.Normal(0, 5))
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    with numpyro.plate("wards", 1):
        own = numpyro.sample("own", dist.Normal(0, spread))
    numpyro.sample("y", dist.Normal(X @ slopes + level + own, noise), obs=y)
"""

LINE = """
import jax.numpy as jnp
import numpy as np

import partita as pt


def log_prob(theta, data):
    return -jnp.log(jnp.cosh(data["y"] - theta[0] - theta[1] * data["x"]))


def make():
    return pt.Model(pt.families.Gaussian.from_moments(np.zeros(2), 4 * np.eye(2)), log_prob)
"""


def make_table(number, wards, rows=48):
    generator = np.random.default_rng(number)
    x, z, ward = generator.normal(size=rows), generator.normal(size=rows), np.resize(wards, rows)
    effects = dict(zip(wards, generator.normal(0, 0.7, len(wards)), strict=True))
    y = 1.5 * x - 0.5 * z + 2 + np.array([effects[one] for one in ward]) + 0.4 * generator.normal(size=rows)
    table = pd.DataFrame({"x": x, "z": z, "ward": ward, "y": y})
    table.loc[5, "z"] = np.nan
    return table


TABLES = {
    "a": make_table(1, ["n1", "n2", "n3", "n4"]),
    "b": make_table(2, [f"s{i}" for i in range(6)]),
}


def federate(tmp_path, monkeypatch, plan):
    ours = MemoryFederation(tmp_path / "ours", plan, tuple(TABLES), monkeypatch)
    for name, table in TABLES.items():
        ours.write_table(name, table)
    return ours


def test_a_hierarchy_in_a_file_is_the_same_as_in_one_process(tmp_path, monkeypatch):
    file = tmp_path / "model.py"
    file.write_text(HIERARCHY)
    columns = {"X": ["x", "z"], "ward": "ward", "y": "y"}
    ours = federate(tmp_path, monkeypatch, plan_program(file, columns, {"wards": "ward"}, list(TABLES)))
    state = ours.run()
    assert state["state"] == "finished", state["reason"]
    program = load_file(file, hashlib.sha256(HIERARCHY.encode()).hexdigest(), "model")
    shards, before = [], 0
    for table in TABLES.values():
        kept = table.dropna()
        labels = np.unique(kept["ward"], return_inverse=True)[1]
        shards.append((kept[["x", "z"]].to_numpy(), before + labels, kept["y"].to_numpy()))
        before += labels.max() + 1
    model = pt.from_numpyro(program, ("X", "ward", "y"), local={"wards": "ward"})
    there = pt.fit(model, shards)
    here = pt.load(ours.result, model=there.model)
    np.testing.assert_allclose(here.posterior.location, there.posterior.location, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(here.posterior.covariance, there.posterior.covariance, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(here.log_evidence, there.log_evidence, rtol=1e-8)
    assert len(here.history) == len(there.history)
    # What wards are called stays where they are, and so does everything else of the table.
    assert not any(b"n1" in record["payload"] + record.get("agreed", b"") for record in ours.sent)


def test_an_own_model_by_its_name_is_the_same_as_in_one_process(tmp_path, monkeypatch):
    package = tmp_path / "packages"
    package.mkdir()
    (package / "hospital_lines.py").write_text(LINE)
    monkeypatch.syspath_prepend(package)
    plan = plan_program("hospital_lines:make", {"x": "x", "y": "y"}, {}, list(TABLES))
    ours = federate(tmp_path, monkeypatch, plan)
    state = ours.run()
    assert state["state"] == "finished", state["reason"]
    model = sys.modules["hospital_lines"].make()
    there = pt.fit(model, [{"x": t["x"].to_numpy(), "y": t["y"].to_numpy()} for t in TABLES.values()])
    here = pt.load(ours.result, model=model)
    np.testing.assert_allclose(here.posterior.location, there.posterior.location, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(here.posterior.covariance, there.posterior.covariance, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(here.log_evidence, there.log_evidence, rtol=1e-8)


def test_new_federations_of_formulas_and_programs_are_made_by_the_command(tmp_path):
    def make(name, *words):
        done = CliRunner().invoke(app, ["new-federation", str(tmp_path / name), "--sites", "a,b", *words])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return read_server(tmp_path / name).recipe

    made = make("formula", "--formula", "falls ~ age + C(ward) + (1 | patient)", "--family", "Poisson")
    assert (made.name, made.reads) == ("poisson regression", ("age", "falls", "ward", "patient"))
    entry = make("entry", "--program", "hospital.models:lines", "--data", "x=x", "--data", "y=y")
    assert (entry.name, entry.reads) == ("hospital.models:lines", ("x", "y"))
    (tmp_path / "model.py").write_text(HIERARCHY)
    data = ["--data", "X=x,z", "--data", "ward=ward", "--data", "y=y"]
    file = make("file", "--program-file", str(tmp_path / "model.py"), *data, "--local", "wards=ward")
    assert file.wanted.columns == {"X": ["x", "z"], "ward": "ward", "y": "y"}
    assert file.wanted.local == {"wards": "ward"}
    for name in ("", "for-sites/a", "for-sites/b"):
        assert (tmp_path / "file" / name / "model.py").read_text() == HIERARCHY
    with pytest.raises(InputError, match="give one of them"):
        make("both", "--formula", "y ~ x", "--program", "a:b")
    with pytest.raises(InputError, match="expected something like"):
        make("none", "--formula", "y and x")
    with pytest.raises(InputError, match="expected a column"):
        make("nothing", "--program", "a:b")
    assert not any((tmp_path / name).exists() for name in ("both", "none", "nothing"))


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["--formula", "y ~ x", "--model", "network"], "--model"),
        (["--family", "poisson", "--features", "x1"], "--family"),
        (["--formula", "y ~ x", "--by", "ward"], "--by"),
        (["--summary", "x,y", "--data", "X=x"], "--data"),
    ],
)
def test_options_that_would_mean_nothing_are_refused(tmp_path, words, option):
    done = CliRunner().invoke(app, ["new-federation", str(tmp_path / "new"), "--sites", "a,b", *words])
    assert isinstance(done.exception, InputError)
    assert option in str(done.exception)
    assert not (tmp_path / "new").exists()
