"""A site predicts by itself, as the server's result does, from the posterior that it was sent last."""

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from scipy.special import expit
from typer.testing import CliRunner

import partita as pt
from partita.cli import app
from partita.errors import CorruptStorage, InputError, RunMismatch
from partita.federation.folders import read_server
from partita.federation.new import federation_file_text
from partita.federation.prediction import predict_rows
from partita.foundation.archives import read_arrays, write_arrays
from partita.models import prior_of
from partita.server.ledger import Ledger
from partita.site.gate import Site
from partita.site.latest import FILE, read_posterior
from partita.site.settings import site_file_text
from partita.wire.codec import encode_question
from partita.wire.messages import encode_task
from partita.wire.questions import Evaluate

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2)) * [10, 4] + [50, 25]
F = 0.1 * (X[:, 0] - 50) - 0.2 * (X[:, 1] - 25)
TARGETS = {
    "logistic-regression": (RNG.random(60) < expit(F)).astype(float),
    "softmax-regression": np.digitize(F + RNG.normal(size=60), [-0.7, 0.7]).astype(float),
    "linear-regression": F + RNG.normal(size=60),
    "poisson-regression": RNG.poisson(np.exp(F / 4)).astype(float),
    "network": np.digitize(F, [-0.7, 0.7]).astype(float),
}
NEW = "bmi,note,YEARS\n27.5,hello,61\n22,,40\n,x,40\n30.25,y,NA\n19,z,55\n"
# Rows that miss something are predicted as others, and their predictions thrown away.
FILLED = np.array([[61, 27.5], [40, 22], [0, 0], [0, 0], [55, 19]])


class Case:
    """A server's recipe with its result, as in one process, and the folder of one site."""

    def __init__(self, path, model):
        self.model, self.y = model, TARGETS[model]
        server = path / "server"
        (server / "sites").mkdir(parents=True)
        text = federation_file_text(["a"], "127.0.0.1:9092", ("age", "bmi"), "ill", model)
        text = text.replace("# centre = [0.0, 0.0]", "centre = [50.0, 25.0]")
        text = text.replace("# scale = [1.0, 1.0]", "scale = [10.0, 4.0]")
        if model in ("softmax-regression", "network"):
            text = text.replace("# classes = 2", "classes = 3")
        text = text.replace('"network"', '"network"\nhidden = [3]')
        (server / "federation.toml").write_text(text)
        (server / "sites" / "a.pub").write_text("a key")
        self.recipe = read_server(server).recipe
        self.file = path / "result.safetensors"
        self.folder = path / "site"
        self.folder.mkdir()
        for name in ("ca.crt", "site.key"):
            (self.folder / name).write_text("")
        text = site_file_text("a", "127.0.0.1:9092", ("age", "bmi"), "ill")
        (self.folder / "site.toml").write_text(text.replace("= 0.33", "= 1.0") + 'age = "YEARS"\n')
        lines = [",".join(map(repr, row)) for row in np.column_stack([X, self.y]).tolist()]
        (self.folder / "data.csv").write_text("\n".join(["YEARS,bmi,ill", *lines]) + "\n")
        self.new = path / "new.csv"
        self.new.write_text(NEW)
        self.site = Site(self.folder, accepts=True)

    def fit(self):
        shard = self.recipe.columns.scale_rows(X), self.y
        found = pt.fit(self.recipe.model, [shard], schedule=pt.schedules.Synchronous(rounds=3), seed=self.recipe.seed)
        replace(found, design=self.recipe.columns.design).save(self.file)
        return found

    def ask(self, kind, payload):
        answer = self.site.answer(kind, {**self.recipe.greeting, "site": 0, "run": "7", "payload": payload})
        assert "payload" in answer, (answer, self.site.problem)
        return answer["payload"]


@pytest.fixture
def make(tmp_path):
    return lambda model="logistic-regression": Case(tmp_path, model)


@pytest.mark.parametrize("model", TARGETS)
def test_a_site_predicts_as_the_servers_result_does(make, model):
    case = make(model)
    found = case.fit()
    case.ask("evaluate", encode_question(Evaluate(found.posterior, found.hyper)))
    # Neither the table nor anything else of the federation is needed.
    (case.folder / "data.csv").unlink()
    (case.folder / "run" / "accepted.json").unlink()
    predicted = predict_rows(case.folder, case.new, level=0.9)
    there = pt.load(case.file)
    whole = [0, 1, 4]
    assert predicted.missing == 2
    assert np.isnan(predicted.values[[2, 3]]).all()
    values = predicted.values[whole]
    if model in ("logistic-regression", "softmax-regression", "network"):
        probabilities, intervals = there.predict_proba(FILLED)[whole], there.predict_interval(FILLED, 0.9)[whole]
        if probabilities.shape[1] == 2:
            assert predicted.names == ("probability", "low", "high")
            assert_array_equal(values, np.column_stack([probabilities[:, 1], intervals[:, 1]]))
        else:
            assert predicted.names[:4] == ("probability 0", "low 0", "high 0", "probability 1")
            assert_array_equal(values[:, ::3], probabilities)
            assert_array_equal(values.reshape(3, 3, 3)[:, :, 1:], intervals)
            assert np.all((intervals >= 0) & (intervals <= 1))
    else:
        assert predicted.names == ("mean", "low", "high")
        wanted = np.column_stack([there.predict(FILLED), there.predict_interval(FILLED, 0.9)])
        assert_array_equal(values, wanted[whole])
    assert np.all(values[:, 1::3] <= values[:, 2::3])


def test_intervals_are_those_of_the_formulas(make):
    """Exact for a probability; by draws for what is observed with noise."""
    found = make().fit()
    Z = np.column_stack([RNG.normal(size=(5, 2)), np.ones(5)])
    q = found.posterior
    m, s = Z @ q.location, np.sqrt(np.sum((Z @ q.covariance) * Z, axis=1))
    low, high = expit(m - 1.959964 * s), expit(m + 1.959964 * s)
    intervals = found.predict_interval(Z[:, :2])
    assert_allclose(intervals[:, 1], np.column_stack([low, high]), atol=1e-4)
    assert_allclose(intervals[:, 0], 1 - np.column_stack([high, low]), atol=1e-4)
    model = pt.models.LinearRegression(features=2, noise=0.5)
    y = F + 0.5 * RNG.normal(size=60)
    fitted = pt.fit(model, [((X - [50, 25]) / [10, 4], y)], schedule=pt.schedules.Synchronous(rounds=2))
    m = Z @ fitted.posterior.location
    spread = np.sqrt(np.sum((Z @ fitted.posterior.covariance) * Z, axis=1) + 0.25)
    wanted = m[:, None] + spread[:, None] * stats.norm.ppf([0.1, 0.9])
    assert_allclose(fitted.predict_interval(Z[:, :2], 0.8, draws=20_000), wanted, atol=0.03)
    with pytest.raises(InputError, match="level: expected a number between 0 and 1"):
        fitted.predict_interval(Z[:, :2], 95)


def test_the_latest_posterior_is_cavity_times_factor_and_the_first_tells_nothing(make):
    case = make()
    model = case.recipe.model
    ledger = Ledger(prior_of(model, model.hyper), 1)
    found = case.fit()
    (first,) = ledger.dispatch([0], model.hyper)
    case.ask("refine", encode_task(first))
    with pytest.raises(InputError, match="no posterior has come yet"):
        predict_rows(case.folder, case.new)
    later = replace(first, version=3, cavity=found.cavity(0), factor=found.posterior / found.cavity(0))
    case.ask("refine", encode_task(later))
    latest = read_posterior(case.folder)
    assert (latest.version, latest.run) == (3, "7")
    assert_allclose(latest.posterior.location, found.posterior.location, rtol=1e-10)
    assert (case.folder / "run" / FILE).stat().st_mode & 0o777 == 0o600
    only = replace(first, version=4, start=found.prior, message_only=True)
    case.ask("refine", encode_task(only))
    latest = read_posterior(case.folder)
    assert latest.version == 4
    assert_allclose(latest.posterior.location, found.prior.location)


def test_what_cannot_be_predicted_is_said(make, tmp_path):
    case = make()
    found = case.fit()
    runner = CliRunner()

    def fails(words, table=None, file=case.new):
        if table is not None:
            file.write_text(table)
        with pytest.raises(InputError, match=words):
            predict_rows(case.folder, file)

    told = runner.invoke(app, ["predict", str(case.folder), str(case.new)])
    assert isinstance(told.exception, InputError)
    assert "no posterior has come yet" in str(told.exception)
    case.ask("evaluate", encode_question(Evaluate(found.posterior, found.hyper)))
    fails(r"has no column 'YEARS', 'bmi': it has to have YEARS, bmi", "AGE,BMI\n1,2\n")
    fails(r"new.csv:3: bmi is not a number", "YEARS,bmi\n1,2\n1,high\n")
    fails("has infinite numbers", "YEARS,bmi\n1,inf\n")
    fails("has a header and no rows", "YEARS,bmi\n")
    fails("No such file", file=tmp_path / "nowhere.csv")
    # Names of the federation are understood too, and rows that all miss something are no error.
    case.new.write_text("age,bmi\n61,27.5\n")
    one = predict_rows(case.folder, case.new).values
    case.new.write_text("YEARS,bmi\n61,27.5\n")
    assert_array_equal(predict_rows(case.folder, case.new).values, one)
    case.new.write_text("YEARS,bmi\n,27.5\n")
    assert predict_rows(case.folder, case.new).to_csv() == "row,probability,low,high\n1,,,\n"


def test_files_that_are_not_what_was_kept_are_refused(make):
    case = make()
    found = case.fit()
    case.ask("evaluate", encode_question(Evaluate(found.posterior, found.hyper)))
    path = case.folder / "run" / FILE
    arrays, about = read_arrays(path)
    written = path.read_bytes()
    for changed, error in (
        (written[:-3], CorruptStorage),
        (b"", CorruptStorage),
        (written.replace(b"age", b"agf"), CorruptStorage),
    ):
        path.write_bytes(changed)
        with pytest.raises(error):
            predict_rows(case.folder, case.new)
    about.pop("format")
    flat = {name: np.zeros_like(array) for name, array in arrays.items()}
    for parts, words, error in (
        ((flat, about), "is not proper", CorruptStorage),
        (({name: array[:1] for name, array in arrays.items()}, about), "expected float64 of shape", CorruptStorage),
        ((arrays, {**about, "model_digest": "0" * 64}), "another version of Partita", RunMismatch),
        ((arrays, {**about, "recipe_digest": "0" * 64}), "not the one that it names", CorruptStorage),
        ((arrays, {**about, "hyper": {}}), "other hyperparameters", CorruptStorage),
        ((arrays, {**about, "recipe": "{"}), "recipe", pt.errors.PartitaError),
    ):
        write_arrays(path, *parts)
        with pytest.raises(error, match=words):
            predict_rows(case.folder, case.new)


def test_the_command_writes_csv_or_json(make, tmp_path):
    case = make()
    found = case.fit()
    case.ask("evaluate", encode_question(Evaluate(found.posterior, found.hyper)))
    runner = CliRunner()
    command = ["predict", str(case.folder), str(case.new), "--level", "0.5"]
    shown = runner.invoke(app, command)
    lines = shown.stdout.splitlines()
    assert lines[0] == "row,probability,low,high"
    assert [line.split(",")[0] for line in lines[1:]] == ["1", "2", "3", "4", "5"]
    assert lines[3] == "3,,,"
    assert "rows without a prediction, because they miss something: 2 of 5" in shown.stderr
    assert "evaluated at the end of a run" in shown.stderr
    out = tmp_path / "out.csv"
    assert runner.invoke(app, [*command, "--out", str(out)]).stdout == ""
    assert out.read_text() == shown.stdout
    *rows, summary = map(json.loads, runner.invoke(app, [*command, "--json"]).stdout.splitlines())
    assert [row["row"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[2]["probability"] is None
    assert repr(rows[0]["probability"]) == lines[1].split(",")[1]
    assert (summary["event"], summary["missing"], summary["level"], summary["version"]) == ("summary", 2, 0.5, None)
