"""Pages of saved results, estimators and streams: drawn from the history that is in their files."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import partita as pt
from partita.cli import app
from partita.errors import CorruptStorage, StorageError
from partita.foundation.archives import read_arrays, write_arrays
from partita.report import history_report, saved_report
from partita.report.page import build_contents

GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-2, 2, (60, 2))
Y = np.sin(2 * X[:, 0]) + 0.2 * GENERATOR.normal(size=60)
PARTS = np.array_split(np.arange(60), 3)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("streams") / "stream.safetensors"
    model = pt.StreamingGPRegressor(steps=2, quiet=True)
    for part in PARTS:
        model.partial_fit(
            X[part], Y[part], callbacks=[lambda _: {"rmse": np.sqrt(np.mean((model.predict(X) - Y) ** 2))}]
        )
    model.save(path)
    return path, model


def test_a_stream_is_drawn_over_its_batches(saved):
    path, model = saved
    drawn = build_contents(saved_report(path))
    assert [axis["name"] for axis in drawn["axes"]] == ["batch", "seconds"]
    assert drawn["against"] == "batch"
    columns = drawn["curves"][0]["columns"]
    assert sorted(columns["batch"]) == [1, 2, 3]
    for name in ("free_energy", "points", "change", "rmse", "hyper.kernel.lengthscale.1", "hyper.likelihood.noise"):
        assert name in [chart["y"] for chart in drawn["charts"]]
        assert sorted(columns[name]) == sorted(row[name] for row in model.history_)
    assert model.log_evidence_ in columns["log_evidence"]


def test_the_command_line_writes_the_page_of_a_file(saved):
    path, model = saved
    result = CliRunner().invoke(app, ["report", str(path), "--json"])
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout.splitlines()[-1])
    assert (row["batches"], row["log evidence"]) == (3, model.log_evidence_)
    assert "StreamingGPRegressor" in path.with_suffix(".html").read_text()


def test_results_and_estimators_of_sites_are_drawn_over_rounds(tmp_path):
    state = pt.models.LinearRegression(features=2, noise=0.3)
    for part in PARTS:
        state = pt.partial_fit(state, (X[part], Y[part]))
    state.save(tmp_path / "result")
    drawn = build_contents(saved_report(tmp_path / "result"))
    assert drawn["against"] == "round"
    assert sorted(drawn["curves"][0]["columns"]["round"]) == [1, 2, 3]
    pt.PartitionedRegressor(quiet=True).fit(X, Y).save(tmp_path / "estimator")
    assert saved_report(tmp_path / "estimator").title == "PartitionedRegressor estimator"


def test_files_without_a_history_or_with_another_say_so(saved, tmp_path):
    arrays, about = read_arrays(saved[0])
    write_arrays(tmp_path / "old", arrays, {name: value for name, value in about.items() if name != "history"})
    with pytest.raises(StorageError, match="has no history"):
        saved_report(tmp_path / "old")
    write_arrays(tmp_path / "wrong", arrays, {**about, "history": [{"fold": "first"}]})
    with pytest.raises(CorruptStorage, match="wrong"):
        saved_report(tmp_path / "wrong")
    with pytest.raises(CorruptStorage, match="wrong"):
        pt.StreamingGPRegressor.load(tmp_path / "wrong")


def test_any_history_makes_a_page():
    result = pt.fit(pt.models.LinearRegression(features=2, noise=0.3), [(X, Y)])
    assert history_report("run", result.history, result.log_evidence).table[0]["log evidence"] == result.log_evidence
