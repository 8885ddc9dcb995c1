"""The paper's experiments with streams, small: rows, pictures, data, and the exact process they are compared with."""

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

import partita as pt
from partita.errors import InputError
from partita.studies.paper import banana, robot_arm, streaming_1d
from partita.studies.paper.form_streams import FormClassifier, Search
from partita.studies.paper.pictures import beliefs, frames, spread_by_round, spreads, surfaces
from partita.studies.paper.streams import FORMS


def rows_of(cell):
    rows = [{"method": cell.method, "setting": cell.setting, "seed": cell.seed, **row} for row in cell.run()]
    json.dumps(rows, allow_nan=False)
    return rows


@pytest.fixture(scope="module")
def arm():
    X, Y = pt.datasets.load("simulated-arm")
    return (X[:240], Y[:240]), (X[240:400], Y[240:400])


def test_an_arm_needs_torques_that_physics_says():
    """The second joint's is linear in inertia, coupling, centrifugal force, weight and friction."""
    X, Y = pt.datasets.load("simulated-arm")
    assert (X.shape, Y.shape) == ((3000, 6), (3000, 2))
    a, b, speed, other, push, second = X.T
    terms = [push, second, np.cos(b) * push, np.sin(b) * speed**2, np.cos(a + b), other]
    found, residual, *_ = np.linalg.lstsq(np.stack(terms, axis=1), Y[:, 1])
    np.testing.assert_allclose(found, [1 / 3, 1 / 3, 0.5, 0.5, 9.81 / 2, 0.5], atol=0.05)
    assert residual[0] / len(Y) < (0.021 * Y[:, 1].std()) ** 2
    # What is accelerated is what moves: differences along the path say so too.
    step = 60 / 2999
    np.testing.assert_allclose(np.gradient(a, step)[1:-1], speed[1:-1], atol=0.01)
    np.testing.assert_allclose(np.gradient(speed, step)[1:-1], push[1:-1], atol=0.02)


def test_robot_arm_rows(arm):
    scale = replace(robot_arm.QUICK, batches=3, points=4, memory=80, settings={"hyperparameters": "fixed"})
    cells = robot_arm.cells(arm, scale, None, [0], [1])
    assert [cell.method for cell in cells] == list(robot_arm.METHODS)
    assert len({cell.path for cell in cells}) == 4
    for cell in cells:
        if cell.method not in ("private", "limited-memory"):
            continue
        rows = rows_of(cell)
        assert set(rows[0]) == set(robot_arm.KEYS)
        assert [row["round"] for row in rows] == [1, 2, 3]
        assert rows[-1]["points"] == {"limited-memory": 80}.get(cell.method, 12)
        assert all(row["smse"] > 0 and 0 <= row["coverage"] <= 1 for row in rows)
        assert cell.work > 0


def test_the_paper_has_its_own_schemes_for_the_arm(arm):
    scale = replace(robot_arm.QUICK, batches=2, points=3, memory=80, search=Search(20, 0.05, 1))
    experiment = robot_arm.experiment(quick=True, paper=True, orders=1)
    assert {cell.method for cell in experiment.cells} == set(robot_arm.PAPER_WORDS)
    shorter = robot_arm.experiment(quick=True, paper=True, orders=1, steps=7)
    assert {cell.settings["steps"] for cell in shorter.cells} == {7}
    cells = {cell.method: cell for cell in robot_arm.cells(arm, scale, list(robot_arm.PAPER_WORDS), [0], [1])}
    rows = rows_of(cells["paper-private-vi"])
    assert [row["points"] for row in rows] == [3, 6]
    assert set(rows[0]) == set(robot_arm.KEYS)
    assert rows[0]["smse"] < 2
    longer = replace(scale, search=replace(scale.search, steps=30))
    others = robot_arm.cells(arm, longer, ["paper-private-vi", "private"], [0], [1])
    assert others[1].path != cells["paper-private-vi"].path
    assert others[1].work > cells["paper-private-vi"].work


def test_a_memory_that_is_trained_afresh_forgets_where_it_was(arm):
    (X, Y), _ = arm
    parts = [(X[:50], Y[:50, 0]), (X[50:110], Y[50:110, 0])]
    on, afresh, alone = (robot_arm.LimitedMemory(60, 3, afresh=flag) for flag in (False, True, False))
    for part in parts:
        on.partial_fit(*part)
        afresh.partial_fit(*part)
    alone.partial_fit(*parts[1])
    np.testing.assert_allclose(afresh.free, alone.free)
    assert np.max(np.abs(on.free - afresh.free)) > 1e-3


def test_spreads_are_over_all_orders():
    rows = [
        {"method": "one", "setting": "s", "seed": seed, "round": number, "smse": 0.1 * number + seed}
        for seed in (0, 1)
        for number in range(1, 4 - seed)
    ]
    # The second order has come to its second batch.
    np.testing.assert_allclose(spread_by_round(rows, "smse")["one"], [[1, 2], [0.6, 0.7], [0.1, 0.2], [1.1, 1.2]])
    assert len(spreads(rows, "smse").figure.data) == 2


def test_streams_are_sorted_and_complete(arm):
    batches = robot_arm.sorted_batches(arm[0], 1, 0, 4)
    joined = np.concatenate([X for X, _ in batches])
    assert np.all(np.diff(joined[:, 1]) >= 0)
    assert sorted(np.concatenate([y for _, y in batches])) == sorted(arm[0][1][:, 0])


def test_limited_memory_is_an_exact_process_of_the_latest_rows(arm):
    (X, Y), (X_test, _) = arm
    model = robot_arm.LimitedMemory(60).partial_fit(X[:50], Y[:50, 0]).partial_fit(X[50:110], Y[50:110, 0])
    assert np.array_equal(model.X, X[50:110])
    variance, noise, lengths = np.exp(model.free[0]), np.exp(2 * model.free[1]), np.exp(model.free[2:])
    Z, t = model.inputs.standardise(model.X), model.targets.standardise(model.y)
    reference = GaussianProcessRegressor(variance * RBF(lengths) + WhiteKernel(noise), alpha=0.0, optimizer=None)
    reference.fit(Z, t)
    mean, std = reference.predict(model.inputs.standardise(X_test), return_std=True)
    ours, spread = model.predict(X_test)
    np.testing.assert_allclose(ours, model.targets.restore(mean), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(spread, std * model.targets.scale, rtol=1e-5)
    assert model.log_evidence_ == pytest.approx(reference.log_marginal_likelihood_value_, rel=1e-6)


def test_scores_by_hand():
    y = np.array([0.0, 2.0])
    found = robot_arm.scores(np.array([0.0, 1.0]), np.array([1.0, 0.4]), y)
    assert found["smse"] == pytest.approx(0.5)
    assert found["coverage"] == 0.5
    expected = np.mean(0.5 * np.log(2 * np.pi * np.array([1, 0.16])) + 0.5 * np.array([0, 1 / 0.16]))
    assert found["nlpd"] == pytest.approx(expected)


def test_banana_rows_and_pictures():
    data = banana.load(quick=True)
    scale = banana.Scale(points=4, steps=10, draws=4)
    cells = banana.cells(data, scale, ["batch-ml", "streaming-vi", "nuts"], 1)
    assert [(cell.setting, cell.method) for cell in cells] == [
        (banana.SETTINGS[0], "batch-ml"),
        (banana.SETTINGS[0], "streaming-vi"),
        (banana.SETTINGS[0], "nuts"),
        (banana.SETTINGS[1], "streaming-vi"),
    ]
    rows = rows_of(cells[1])
    assert set(banana.KEYS) < set(rows[0])
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert np.shape(rows[0]["surface"]) == (banana.GRID, banana.GRID)
    assert len(rows[2]["drawn"]["lengthscale"][1]) == 400
    assert len(surfaces(rows).figure.data) == 3 * 4
    # Three batches of three hyperparameters, and beside each what a method says that has one row.
    assert len(beliefs([*rows, {**rows[0], "method": "batch-vi"}]).figure.data) == 3 * 3 * 2


def test_ten_rows_do_not_make_a_point_forget():
    """Without what the old values say of hyperparameters, the variance trebles here (and falls 300-fold on banana)."""
    first, second, _ = banana.parts(banana.load(quick=True)[0], banana.SETTINGS[1])
    model = FormClassifier(FORMS["paper-private-ml"], 6, Search(600, 0.03)).partial_fit(*first)
    before = model.hyperparameter_draws(1)["variance"].item()
    after = model.partial_fit(*second).hyperparameter_draws(1)["variance"].item()
    assert 0.5 < after / before < 2


def test_the_second_batch_of_the_failure_has_ten_rows():
    data = banana.load(quick=True)[0]
    sizes = [len(y) for _, y in banana.parts(data, banana.SETTINGS[1])]
    assert sizes == [40, 10, 70]
    assert [len(y) for _, y in banana.parts(data, banana.SETTINGS[0])] == [40, 40, 40]
    assert [len(y) for _, y in banana.parts(data, banana.SETTINGS[2])] == [40, 1, 79]


def test_the_paper_has_its_own_schemes_for_banana():
    data = banana.load(quick=True)
    known = {cell.method for cell in banana.cells(data, banana.FULL, list(banana.FULL.paper), 1)}
    assert known == {*banana.PAPER_WORDS, "nuts"}
    settings = {
        (cell.method, cell.setting)
        for cell in banana.cells(data, banana.FULL, ["paper-batch-ml", "paper-shared-ml"], 1)
    }
    assert settings == {("paper-batch-ml", banana.SETTINGS[0])} | {
        ("paper-shared-ml", name) for name in banana.SETTINGS
    }
    scale = banana.Scale(points=3, steps=4, draws=4)
    rows = rows_of(banana.cells(data, scale, ["paper-shared-vi"], 1)[0])
    assert [np.shape(row["points"]) for row in rows] == [(9, 2)] * 3
    assert len(rows[0]["drawn"]["lengthscale"][1]) == 400
    assert banana.has_setting("paper-private-ml-now", banana.SETTINGS[2])
    assert not banana.has_setting("streaming-ml", banana.SETTINGS[2])


def test_a_stream_in_one_dimension():
    rows = rows_of(streaming_1d.cells(["private"], 1)[0])
    assert set(streaming_1d.KEYS) < set(rows[0])
    assert rows[-1]["smse"] < 0.15 < rows[0]["smse"]
    points = [row["points"] for row in rows]
    assert points[0] == 5
    assert np.all(np.diff(points) > 0)
    assert points[-1] <= 25
    assert len(frames(rows, streaming_1d.truth).figure.data) == 6 * 5


def test_a_single_row_after_half_of_a_stream():
    sizes = [len(y) for _, y in streaming_1d.make_batches(streaming_1d.SETTINGS[1], np.random.default_rng(0))]
    assert sizes == [75, 1]
    cells = streaming_1d.cells(["paper-private-ml"], 1, Search(30, 0.05, 1))
    assert [cell.setting for cell in cells] == list(streaming_1d.SETTINGS)
    rows = rows_of(cells[1])
    assert [row["points"] for row in rows] == [5, 6]
    assert all(row["noise"] > 0 for row in rows)


def test_files_that_are_missing_or_wrong(tmp_path, monkeypatch):
    monkeypatch.delenv("PARTITA_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("banana", "barrett-wam"):
        with pytest.raises(InputError, match="set PARTITA_DATA"):
            pt.datasets.load_split(name)
    (tmp_path / "barrett_wam.mat").write_bytes(b"not a file of MATLAB")
    with pytest.raises(InputError, match="expected a MATLAB file"):
        pt.datasets.load_split("barrett-wam", tmp_path)
    (tmp_path / "banana").mkdir()
    with pytest.raises(InputError, match="banana_train_x.txt"):
        pt.datasets.load_split("banana", tmp_path)
    for part, rows in (("train", 3), ("test", 2)):
        np.savetxt(tmp_path / "banana" / f"banana_{part}_x.txt", np.ones((rows, 2)), delimiter=",")
        np.savetxt(tmp_path / "banana" / f"banana_{part}_y.txt", np.array([1, -1, 1])[:rows])
    (X, y), (_, y_test) = pt.datasets.load_split("banana", tmp_path)
    assert (X.shape, y.tolist(), y_test.tolist()) == ((3, 2), [1, 0, 1], [1, 0])
