"""The paper's experiments with streams, small: rows, pictures, data, and the exact process they are compared with."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy.special import log_ndtr
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

import partita as pt
from partita.errors import InputError
from partita.foundation.runtime import precision
from partita.gp.beliefs import exponentials
from partita.gp.sparse import Batch, Factor, Step
from partita.studies.paper import banana, frozen, robot_arm, streaming_1d
from partita.studies.paper.frozen import FrozenClassifier
from partita.studies.paper.pictures import beliefs, frames, surfaces


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
    assert len(beliefs(rows).figure.data) == 3


@pytest.mark.slow
def test_frozen_beliefs_start_as_a_sparse_process_and_stay():
    """Of one batch they are what terms find in another way; a second one leaves them alone."""
    first, second, _ = banana.parts(banana.load(quick=True)[0], banana.SETTINGS[0])
    model = FrozenClassifier(4, "ml", 100, 0).partial_fit(*first)
    gp, points, jitter = frozen.GP, model.pseudo_points_, frozen.JITTER
    nothing = Factor(np.zeros_like(points), np.zeros(4), np.zeros((1, 4)), np.zeros((1, 4, 4)))
    step = Step(nothing, Batch(first[0], first[1][None], np.ones(len(first[1]))), points, np.ones(4), jitter, True)
    with precision(np.float64):
        params = exponentials(model.unravel(model.location_))
        improve = jax.jit(lambda state: gp.improve_terms(*state, lambda terms: gp.free_energy(params, step, terms)))
        state = (gp.first_terms(step.batch), np.ones(()))
        for _ in range(30):
            state = improve(state)
        best = float(jax.jit(lambda terms: gp.free_energy(params, step, terms)[0])(state[0]))
        factor, own = gp.absorb(params, step, state[0])
        mean, covariance = gp.predict_jointly(params, factor, points, jitter)
        free = frozen.Free(model.location_, model.location_, own.shift[0], np.linalg.cholesky(own.precision[0]))
        none = frozen.Beliefs(np.empty((0, 2)), np.empty(0), np.empty((0, 0)))
        value, beliefs = frozen.bound(params, none, points, free, *first)
    assert float(value) == pytest.approx(best, abs=1e-6)
    np.testing.assert_allclose(beliefs.mean, mean[0], rtol=1e-4)
    np.testing.assert_allclose(beliefs.covariance, covariance[0], rtol=1e-3, atol=1e-4)
    assert model.log_evidence_ < best
    before = model.beliefs_
    after = model.partial_fit(*second).beliefs_
    np.testing.assert_allclose(after.mean[:4], before.mean, atol=1e-8)
    np.testing.assert_allclose(after.covariance[:4, :4], before.covariance, atol=1e-8)
    assert len(after.mean) == 8


def dense_kl(mean, covariance, prior):
    """KL(N(mean, covariance) || N(0, prior))."""
    solved = np.linalg.solve(prior, np.column_stack([covariance, mean]))
    logs = np.linalg.slogdet(prior)[1] - np.linalg.slogdet(covariance)[1]
    return 0.5 * (np.trace(solved[:, :-1]) + mean @ solved[:, -1] - len(mean) + logs)


def test_a_point_for_hyperparameters_has_the_bound_of_the_paper():
    """E[log p(y | f)] - KL(q(a, b) || p(a, b | new)) + KL(q(a) || p(a | old)), by dense algebra."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(7, 2)), rng.integers(0, 2, 7).astype(float)
    old_points, new_points = rng.normal(size=(3, 2)), rng.normal(size=(2, 2))
    old, new = (
        {"kernel.variance": np.array(v), "kernel.lengthscale": np.array(s)}
        for v, s in ((2.0, [0.9, 1.3]), (0.5, [0.4, 0.8]))
    )
    root = rng.normal(size=(3, 3)) / 3
    a = frozen.Beliefs(old_points, rng.normal(size=3), root @ root.T + 0.1 * np.eye(3))
    free = frozen.Free(np.zeros(3), np.zeros(3), rng.normal(size=2), np.tril(rng.normal(size=(2, 2))))
    with precision(np.float64):
        value, both = jax.tree.map(np.asarray, frozen.bound(new, a, new_points, free, X, y))
        ours = value + frozen.recall(new, old, a)

    def kernel(params, A, B):
        gaps = (A[:, None] - B) / params["kernel.lengthscale"]
        return params["kernel.variance"] * np.exp(-0.5 * np.sum(gaps**2, axis=-1))

    K, k = kernel(new, both.points, both.points), kernel(new, both.points, X)
    project = np.linalg.solve(K, k)
    m = project.T @ both.mean
    v = new["kernel.variance"] - np.sum(k * project, axis=0) + np.sum(project * (both.covariance @ project), axis=0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    logs = log_ndtr((2 * y - 1)[:, None] * (m[:, None] + np.sqrt(v)[:, None] * nodes))
    expected = np.sum(logs @ weights / weights.sum())
    told = dense_kl(both.mean, both.covariance, K) - dense_kl(a.mean, a.covariance, kernel(old, old_points, old_points))
    assert ours == pytest.approx(expected - told, abs=1e-4)


def test_ten_rows_do_not_make_a_point_forget():
    """Without what the old values say of hyperparameters, the variance trebles here (and falls 300-fold on banana)."""
    first, second, _ = banana.parts(banana.load(quick=True)[0], banana.SETTINGS[1])
    model = FrozenClassifier(6, "ml", 600, 0).partial_fit(*first)
    before = model.hyperparameter_draws(1)["variance"].item()
    after = model.partial_fit(*second).hyperparameter_draws(1)["variance"].item()
    assert 0.5 < after / before < 2


def test_the_second_batch_of_the_failure_has_ten_rows():
    data = banana.load(quick=True)[0]
    sizes = [len(y) for _, y in banana.parts(data, banana.SETTINGS[1])]
    assert sizes == [40, 10, 70]
    assert [len(y) for _, y in banana.parts(data, banana.SETTINGS[0])] == [40, 40, 40]


def test_a_stream_in_one_dimension():
    rows = rows_of(streaming_1d.cells(["private"], 1)[0])
    assert set(streaming_1d.KEYS) < set(rows[0])
    assert rows[-1]["smse"] < 0.15 < rows[0]["smse"]
    points = [row["points"] for row in rows]
    assert points[0] == 5
    assert np.all(np.diff(points) > 0)
    assert points[-1] <= 25
    assert len(frames(rows, streaming_1d.truth).figure.data) == 6 * 5


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
