"""Variational continual learning: coresets, heads, and the study's rows."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import partita as pt
from partita.datasets.coresets import hold_out, k_centre, random_rows
from partita.models import prior_of
from partita.studies.images import Images
from partita.studies.pages import KEYS
from partita.studies.paper import vcl
from partita.studies.runner import Watch, run_study

TINY = {"hidden": (12,), "coreset": 20, "rows": 150, "steps": 200, "kept_rows": 150, "kept_steps": 200, "samples": 8}


@pytest.fixture(scope="module")
def images():
    return Images.load("digits")


@pytest.fixture
def tiny(monkeypatch):
    plans = {name: replace(plan, tasks=2, batch_size=64, prior_scale=0.5, **TINY) for name, plan in vcl.QUICK.items()}
    monkeypatch.setattr(vcl, "QUICK", plans)
    return plans


def farthest_first(X, number, first):
    chosen = [first]
    for _ in range(number - 1):
        nearest = [min(np.linalg.norm(row - X[c]) for c in chosen) for row in X]
        chosen.append(int(np.argmax(nearest)))
    return chosen


def test_k_centre_picks_what_brute_force_picks():
    X = np.random.default_rng(0).normal(size=(60, 3))
    assert k_centre(X, 12, first=5).tolist() == farthest_first(X, 12, 5)


def test_k_centre_finds_an_outlier_and_every_cluster():
    centres = np.array([[0.0, 0], [10, 0], [0, 10], [100, 100]])
    X = np.repeat(centres, [40, 30, 20, 1], axis=0) + np.random.default_rng(0).normal(0, 0.1, (91, 2))
    chosen = k_centre(X, 4)
    assert sorted(np.searchsorted([40, 70, 90], chosen, "right")) == [0, 1, 2, 3]


def test_k_centre_takes_no_row_twice_where_rows_are_equal():
    assert len(set(k_centre(np.ones((9, 2), np.float32), 6))) == 6


def test_coreset_rows_are_held_out():
    X, y = np.arange(30.0)[:, None], np.arange(30)
    rows = random_rows(X, 7, np.random.default_rng(0))
    coreset, rest = hold_out((X, y), rows)
    assert coreset[1].tolist() == rows.tolist()
    assert len(set(rows)) == 7
    assert sorted([*coreset[1], *rest[1]]) == list(range(30))
    assert np.array_equal(rest[0][:, 0], rest[1])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["vcl-random-coreset", "vcl-k-centre-coreset"])
def test_the_stream_never_sees_a_coreset(images, tiny, method, monkeypatch):
    seen = []

    def learn(state, data, new, solver, seed):
        seen.append(data)
        return real(state, data, new, solver, seed)

    real = vcl.learn
    monkeypatch.setattr(vcl, "learn", learn)
    (cell,) = (c for c in vcl.cells(True, 1, images, [method]) if c.setting == "split")
    assert len(list(cell.run())) == 2
    (first, kept, second, all_kept) = ([row.tobytes() for row in data[0]] for data in seen)
    assert [len(first), len(set(kept)), len(second), len(set(all_kept))] == [130, 20, 130, 40]
    assert not set(all_kept) & {*first, *second}
    assert set(kept) < set(all_kept)


def test_repeated_coresets_weigh_as_much_as_they_are():
    parts = [(np.full((2, 1), k), np.full(2, k)) for k in range(3)]
    X, y, weights = vcl.repeat(parts, 14)
    assert X.shape == (14, 1)
    assert np.bincount(y, weights).tolist() == pytest.approx([2, 2, 2])
    assert vcl.repeat(parts, 1)[2].tolist() == [1] * 6


def test_permuted_tasks_have_pixels_of_their_own_and_split_tasks_digits(images):
    first, again, other = (vcl.task(images, "permuted", n, 0)[0] for n in (0, 0, 1))
    assert np.array_equal(first[0], again[0])
    assert not np.array_equal(first[0], other[0])
    assert np.array_equal(np.sort(first[0], axis=1), np.sort(other[0], axis=1))
    train, test = vcl.task(images, "split", 3, 0, rows=50)
    assert len(train[1]) == 50
    assert set(train[1]) == set(test[1]) == {6, 7}


def head(density, number):
    """Location and scale of one head's weights."""
    columns = slice(2 * number, 2 * number + 2)
    return [np.asarray(a)[..., columns] for part in (density.location, density.scale) for a in part[-1]]


def assert_equal(first, second):
    for a, b in zip(first, second, strict=True):
        assert np.allclose(a, b, rtol=1e-4, atol=1e-7)


def test_heads_that_saw_no_data_keep_what_they_were(images, tiny):
    plan = tiny["split"]
    model = vcl.learner(plan, 64, seed=0)
    prior = prior_of(model, model.hyper)
    tasks = [vcl.task(images, "split", n, 0, plan.rows)[0] for n in range(2)]
    first = vcl.learn(model, tasks[0], [0], plan.solver(plan.steps), 0)
    for number in range(1, 5):
        assert_equal(head(first.posterior, number), head(prior, number))
    second = vcl.learn(first, tasks[1], [1], plan.solver(plan.steps), 1)
    for number in range(2, 5):
        assert_equal(head(second.posterior, number), head(prior, number))
    # Its own first task is what a head learns from, not a draw of the prior.
    assert not np.allclose(head(second.posterior, 1)[0], head(prior, 1)[0])
    assert first.model.score(second.predict_proba(tasks[1][0], 8), tasks[1][1])["error"] < 0.3
    # What an old head is changed by is the noise of steps with no gradient: far less than its scale.
    location, _, scale, _ = head(first.posterior, 0)
    assert np.max(np.abs(head(second.posterior, 0)[0] - location) / scale) < 0.2


def test_the_same_tasks_without_a_new_head_start_from_the_posterior():
    model = pt.models.Network([3, 4, 2])
    prior = pt.families.MeanField.from_moments(model.network.start(7), np.float32(0.3))
    for new, fresh in (([0], True), ([1], False), ([], False)):
        start = vcl.start_of(model, prior, new)
        same = [np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (start, prior)), strict=True)]
        assert all(same) is not fresh


def test_rows_have_all_keys_and_every_method_learns(images, tiny):
    cells = vcl.cells(True, 1, images)
    assert [(c.setting, c.method) for c in cells] == [(s, m) for s in vcl.SETTINGS for m in vcl.METHODS]
    assert len({cell.path for cell in cells}) == len(cells)
    for cell in cells:
        rows = [{"method": cell.method, "setting": cell.setting, "seed": cell.seed, **row} for row in cell.run()]
        assert all(set(row) == set(KEYS) for row in rows)
        assert [row["round"] for row in rows] == [1, 2]
        assert [row["messages"] for row in rows] == [2, 4]
        assert rows[1]["bytes"] == 2 * rows[0]["bytes"]
        assert (rows[0]["free_energy"] is None) == (cell.method == "coreset-only")
        assert cell.method == "coreset-only" or rows[0]["error"] < {"permuted": 0.5, "split": 0.1}[cell.setting]
        assert cell.work > 0


def test_a_stopped_study_runs_only_what_is_missing(images, tiny, tmp_path):
    cells = [c for c in vcl.cells(True, 2, images, ["coreset-only"]) if c.setting == "split"]
    begun = []

    class Stopping(Watch):
        def begin(self, cell):
            begun.append(cell.seed)

        def row(self, cell, row):
            if cell.seed == 1 and len(begun) == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(cells, tmp_path, lambda: 1.0, Stopping())
    rows = run_study(cells, tmp_path, lambda: 1.0, Stopping())
    assert begun == [0, 1, 1]
    assert [(row["seed"], row["round"]) for row in rows] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert run_study(cells, tmp_path, lambda: 1.0, Stopping()) == rows
    assert begun == [0, 1, 1]


def test_an_unknown_method_is_named(images):
    with pytest.raises(pt.errors.InputError, match="'ewc' is not known"):
        vcl.cells(True, 1, images, ["vcl", "ewc"])
