"""What survives: kills, full disks, other runs, flipped bytes; done for real, not simulated."""

import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest

import partita as pt
from partita.errors import CorruptStorage, InputError, RunMismatch, StorageError
from partita.fitting import finish, prepare
from partita.foundation.archives import read_arrays, write_arrays
from partita.foundation.descriptions import describe
from partita.server.journals import read_history
from partita.server.schedules import Asynchronous, Sequential, Synchronous
from partita.server.storage import INLINE, Journal
from partita.wire.tasks import Update

MODEL = pt.models.LogisticRegression(features=2)
SPEEDS = (50.0, 3.0, 2.0, 1.0)


class Counting(pt.engines.InProcess):
    """The real engine, counting the tasks that reach it."""

    tasks = 0

    def submit(self, tasks, at):
        self.tasks += len(tasks)
        pt.engines.InProcess.submit(self, tasks, at)


def make_shards(seed=0, sites=4, rows=8):
    generator = np.random.default_rng(seed)
    features = [generator.normal(size=(rows, 2)) for _ in range(sites)]
    return [(X, (X[:, 0] + generator.logistic(size=rows) > 0).astype(float)) for X in features]


RUNS = {
    "sequential": {"schedule": Sequential(passes=3)},
    "synchronous": {"schedule": Synchronous(rounds=8)},
    "participation": {"schedule": Synchronous(rounds=8, participation=0.5)},
    "asynchronous": {"schedule": Asynchronous(updates=20), "speeds": SPEEDS},
    "mini-batches": {
        "schedule": Synchronous(rounds=8),
        "solver": pt.solvers.FixedPoint(steps=2, batch_size=3),
    },
    "hyper": {"schedule": Synchronous(rounds=8), "hyper": pt.LearnHyper()},
    "hyper-asynchronous": {"schedule": Asynchronous(updates=20), "speeds": SPEEDS, "hyper": pt.LearnHyper()},
    "shared": {"schedule": Asynchronous(updates=20), "speeds": SPEEDS, "custody": "shared"},
}
every_run = pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)


def fit(run_dir=None, shards=None, speeds=None, model=MODEL, engine=None, **settings):
    engine = engine or Counting(speeds)
    settings = {"schedule": Synchronous(rounds=5), **settings}
    return pt.fit(model, shards or make_shards(), engine=engine, run_dir=run_dir, **settings)


class InterruptedRunError(Exception):
    pass


def interrupt_at(fold):
    def callback(event):
        if event.fold == fold:
            raise InterruptedRunError

    return callback


def without_timings(history):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in history]


@contextmanager
def database(run_dir):
    """The journal as anybody could open it."""
    with closing(sqlite3.connect(run_dir / "journal.sqlite")) as connection, connection:
        yield connection


@contextmanager
def largest_file(size):
    """The operating system refuses to let any file of this process grow further."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def finished(run_dir):
    fit(run_dir)
    return run_dir


@every_run
def test_the_journal_holds_every_update(run_dir, settings):
    result = fit(run_dir, **settings)
    with database(run_dir) as connection:
        rows = connection.execute("SELECT number, kind FROM arrivals ORDER BY number").fetchall()
    assert rows == [(number, "update") for number in range(1, settings["schedule"].total(4) + 1)]
    assert read_history(run_dir) == result.history


@every_run
def test_keeping_a_journal_changes_nothing(run_dir, settings):
    assert fit(run_dir, **settings).fingerprint == fit(**settings).fingerprint


@every_run
def test_resuming_a_finished_run_computes_nothing(run_dir, settings):
    first = fit(run_dir, **settings)
    engine = Counting(settings.get("speeds"))
    again = fit(run_dir, engine=engine, resume=True, **settings)
    assert engine.tasks == 0
    assert (again.fingerprint, again.history) == (first.fingerprint, first.history)
    assert (again.log_evidence, again.hyper) == (first.log_evidence, first.hyper)


@every_run
@pytest.mark.parametrize("fold", [1, 5])
def test_an_interrupted_run_ends_as_if_it_had_not_been(run_dir, settings, fold):
    expected = fit(**settings)
    with pytest.raises(InterruptedRunError):
        fit(run_dir, callbacks=[interrupt_at(fold)], **settings)
    with pytest.raises(InterruptedRunError):
        fit(run_dir, resume=True, callbacks=[interrupt_at(fold + 2)], **settings)
    result = fit(run_dir, resume=True, **settings)
    assert result.fingerprint == expected.fingerprint
    assert without_timings(result.history) == without_timings(expected.history)
    assert (result.log_evidence, result.hyper) == (expected.log_evidence, expected.hyper)


@every_run
def test_no_fold_is_computed_twice(run_dir, settings):
    first, second = Counting(settings.get("speeds")), Counting(settings.get("speeds"))
    with pytest.raises(InterruptedRunError):
        fit(run_dir, engine=first, callbacks=[interrupt_at(4)], **settings)
    with database(run_dir) as connection:
        (done,) = connection.execute("SELECT count(*) FROM arrivals").fetchone()
    fit(run_dir, engine=second, resume=True, **settings)
    assert second.tasks == settings["schedule"].total(4) - done


def test_rows_of_history_that_were_lost_come_back_on_resume(run_dir):
    """A kill between the commit of a fold and that of its row."""
    with pytest.raises(InterruptedRunError):
        fit(run_dir, callbacks=[interrupt_at(2)])
    result = fit(run_dir, resume=True)
    assert [row["fold"] for row in read_history(run_dir)] == [1, 2, 3, 4, 5]
    assert without_timings(read_history(run_dir)) == without_timings(result.history)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (Synchronous(rounds=5), Synchronous(rounds=10)),
        (Synchronous(rounds=5, participation=0.5), Synchronous(rounds=10, participation=0.5)),
        (Sequential(passes=2), Sequential(passes=4)),
    ],
)
def test_resume_extends_a_run(run_dir, short, long):
    fit(run_dir, schedule=short)
    extended, expected = fit(run_dir, schedule=long, resume=True), fit(schedule=long)
    assert extended.fingerprint == expected.fingerprint
    assert without_timings(extended.history) == without_timings(expected.history)


def test_an_extended_asynchronous_run_loses_nothing(run_dir):
    """What was under way at the end of the short run had no successor yet, so only the start is the same."""
    short = fit(run_dir, schedule=Asynchronous(updates=9), speeds=SPEEDS)
    long = fit(run_dir, schedule=Asynchronous(updates=20), speeds=SPEEDS, resume=True)
    sites = [row["site"] for row in long.history]
    assert len(sites) == 20
    assert sites[:9] == [row["site"] for row in short.history]


def test_a_run_is_not_cut_short(run_dir):
    fit(run_dir, schedule=Synchronous(rounds=5))
    with pytest.raises(RunMismatch, match="more updates"):
        fit(run_dir, schedule=Synchronous(rounds=4), resume=True)
    assert fit(run_dir, schedule=Synchronous(rounds=5), resume=True).history[-1]["fold"] == 5


OTHERS = {
    "model": {"model": pt.models.LogisticRegression(features=2, prior_scale=2.0)},
    "shards": {"shards": make_shards(seed=1)},
    "seed": {"seed": 1},
    "solver": {"solver": pt.solvers.FixedPoint(steps=2)},
    "schedule": {"schedule": Synchronous(rounds=5, participation=0.5)},
    "damping": {"damping": 0.5},
    "expectation": {"expectation": pt.expectations.GaussHermite(points=11)},
    "hyper": {"hyper": pt.LearnHyper()},
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_run_is_refused_and_what_differs_is_named(finished, name):
    with pytest.raises(RunMismatch, match=rf"journal.sqlite.*another run; it differs in {name}"):
        fit(finished, resume=True, **OTHERS[name])


def test_a_refusal_does_not_keep_the_run_locked(finished):
    with pytest.raises(RunMismatch):
        fit(finished, seed=1, resume=True)
    assert len(fit(finished, resume=True).history) == 5


def one_parameter(log_prob):
    return pt.Model(pt.families.MeanField(np.zeros(1), np.ones(1)), log_prob)


def test_another_likelihood_is_another_run():
    """As after editing it in a notebook: the same name, another formula."""
    first = one_parameter(lambda theta, y: -0.5 * (y - theta[0]) ** 2)
    second = one_parameter(lambda theta, y: -5.0 * (y - theta[0]) ** 2)
    assert describe(first) == describe(first)
    assert describe(first) != describe(second)


def test_a_folder_with_a_run_is_not_overwritten(finished):
    before = (finished / "journal.sqlite").read_bytes()
    with pytest.raises(RunMismatch, match="resume=True"):
        fit(finished)
    assert (finished / "journal.sqlite").read_bytes() == before


def test_settings_that_cannot_be_used_leave_no_run_behind(run_dir):
    with pytest.raises(InputError, match="speeds"):
        fit(run_dir, speeds=(1.0,))
    assert len(fit(run_dir).history) == 5


@pytest.mark.parametrize("column", ["payload", "digest"])
@pytest.mark.parametrize("number", [1, 7, 20])
def test_a_flipped_byte_is_found_and_its_place_is_named(finished, column, number):
    with database(finished) as connection:
        query = f"SELECT {column} FROM arrivals WHERE number = ?"
        blob = bytearray(connection.execute(query, (number,)).fetchone()[0])
        blob[len(blob) // 2] ^= 1
        connection.execute(f"UPDATE arrivals SET {column} = ? WHERE number = ?", (bytes(blob), number))
    with pytest.raises(CorruptStorage, match=rf"journal.sqlite: update {number} "):
        fit(finished, resume=True)


@pytest.mark.parametrize("column", ["site", "version"])
def test_a_changed_number_is_found(finished, column):
    with database(finished) as connection:
        connection.execute(f"UPDATE arrivals SET {column} = {column} + 1 WHERE number = 7")
    with pytest.raises(CorruptStorage, match=r"journal\.sqlite: update 7 "):
        fit(finished, resume=True)


@pytest.mark.parametrize("name", RUNS)
def test_a_missing_update_is_found(run_dir, name):
    fit(run_dir, **RUNS[name])
    with database(run_dir) as connection:
        connection.execute("DELETE FROM arrivals WHERE number = 3")
    with pytest.raises(CorruptStorage, match=r"journal\.sqlite"):
        fit(run_dir, resume=True, **RUNS[name])


@pytest.mark.parametrize("last", [12, 14])
def test_a_tail_that_was_never_written_is_computed_again(finished, last):
    """Between rounds, and in the middle of one."""
    expected = fit().fingerprint
    with database(finished) as connection:
        connection.execute("DELETE FROM arrivals WHERE number > ?", (last,))
    (finished / "lock").write_text(f"{last:20d}")
    assert fit(finished, resume=True).fingerprint == expected


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_a_truncated_journal_is_refused(finished, share):
    path = finished / "journal.sqlite"
    os.truncate(path, int(share * path.stat().st_size))
    with pytest.raises(CorruptStorage, match=r"journal\.sqlite"):
        fit(finished, resume=True)


@pytest.mark.parametrize(
    "content",
    [b"not a database" * 100, b"\0" * 5000, random.Random(0).randbytes(5000)],
    ids=["text", "zeros", "noise"],
)
def test_garbage_is_refused(run_dir, content):
    run_dir.mkdir()
    (run_dir / "journal.sqlite").write_bytes(content)
    with pytest.raises(CorruptStorage, match=r"journal\.sqlite"):
        fit(run_dir, resume=True)
    with pytest.raises(CorruptStorage, match=r"journal\.sqlite"):
        read_history(run_dir)


def test_bytes_flipped_in_the_file_never_change_a_result_unnoticed(finished):
    expected, path = fit().fingerprint, finished / "journal.sqlite"
    intact, found = path.read_bytes(), 0
    for place in range(100, len(intact), 1499):
        path.write_bytes(intact[:place] + bytes([intact[place] ^ 255]) + intact[place + 1 :])
        try:
            assert fit(finished, resume=True).fingerprint == expected
        except StorageError:
            found += 1
    assert found > 5


def test_no_such_run(tmp_path):
    with pytest.raises(StorageError, match="no such run"):
        read_history(tmp_path)


@pytest.mark.parametrize("place", ["file", "file/below", "file/deep/below"])
def test_a_folder_that_cannot_be_made(tmp_path, place):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="file"):
        fit(tmp_path / place)


def test_a_folder_that_cannot_be_written():
    """/proc takes no files, not even from root."""
    with pytest.raises(StorageError, match="/proc/run"):
        fit("/proc/run")


def test_a_run_that_is_under_way_is_not_touched(run_dir):
    attempts = []

    def try_again(event):
        with pytest.raises(StorageError, match="another process"):
            fit(run_dir, resume=True)
        attempts.append(event.fold)

    result = fit(run_dir, callbacks=[try_again])
    assert attempts == [1, 2, 3, 4, 5]
    assert result.fingerprint == fit().fingerprint


def test_a_full_database_is_not_acknowledged_and_can_be_resumed(run_dir):
    settings = {"schedule": Synchronous(rounds=50)}
    run, shards = prepare(MODEL, make_shards(), options=settings)
    run.engine.open(run.job(), shards)
    journal = run.journal(run_dir, resume=False)
    journal._database.execute("PRAGMA max_page_count = 12")
    with closing(journal), pytest.raises(StorageError, match=r"journal.sqlite.*full") as caught:
        finish(run, (), journal)
    assert not isinstance(caught.value, CorruptStorage)
    folds = len(read_history(run_dir))
    assert 0 < folds < 50
    assert (
        fit(run_dir, resume=True, engine=pt.engines.InProcess(), **settings).fingerprint == fit(**settings).fingerprint
    )


@pytest.mark.parametrize("size", [60_000, 100_000, 200_000])
def test_a_failing_disk_loses_no_acknowledged_update(run_dir, size):
    seen, settings = [], {"schedule": Synchronous(rounds=50)}
    expected = fit(**settings)
    with largest_file(size), pytest.raises(StorageError, match=r"journal\.sqlite"):
        fit(run_dir, callbacks=[lambda event: seen.append(event.fold)], **settings)
    with database(run_dir) as connection:
        (stored,) = connection.execute("SELECT count(*) FROM arrivals").fetchone()
    assert stored >= 4 * len(seen) > 0
    result = fit(run_dir, resume=True, **settings)
    assert result.fingerprint == expected.fingerprint


def test_a_disk_that_is_full_from_the_start_is_not_called_corrupt(run_dir):
    with largest_file(4096), pytest.raises(StorageError) as caught:
        fit(run_dir)
    assert not isinstance(caught.value, CorruptStorage)
    assert fit(run_dir, resume=True).fingerprint == fit().fingerprint


SCRIPT = """
import sys
import partita as pt
from partita.foundation.compilation import cache_compilations

cache_compilations(sys.argv[2])
X, y = pt.datasets.load("breast-cancer")
shards = pt.datasets.split((pt.datasets.standardised(X), y), sites=4)
result = pt.fit(
    pt.models.LogisticRegression(features=30),
    shards,
    schedule=pt.schedules.Asynchronous(updates=200, max_staleness=5),
    engine=pt.engines.InProcess(speeds=[20, 9, 3, 1]),
    run_dir=sys.argv[1],
    resume=True,
)
sys.stdout.write(result.fingerprint)
"""


def start(run_dir, cache):
    command = [sys.executable, "-c", SCRIPT, str(run_dir), str(cache)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def output(process):
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return text


def updates_of(run_dir):
    """How far a run has come, read beside whoever writes it."""
    try:
        with closing(sqlite3.connect(f"file:{run_dir}/journal.sqlite?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT count(*) FROM arrivals").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


def stop_at(process, run_dir, updates, delay):
    """Freeze a run a moment after it stored that many updates."""
    deadline = time.monotonic() + 60
    while updates_of(run_dir) < updates and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(process.pid, signal.SIGSTOP)


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_as_if_it_had_not_been(tmp_path):
    """And while another process is alive, nobody else gets in."""
    run_dir, cache, seen = tmp_path / "killed", tmp_path / "cache", [0]
    expected = output(start(tmp_path / "whole", cache))
    generator = random.Random(0)
    for updates in (0, 60, 120):
        process = start(run_dir, cache)
        stop_at(process, run_dir, updates, generator.uniform(0, 0.02))
        if updates:
            with pytest.raises(StorageError, match="another process"):
                fit(run_dir, resume=True)
        kill(process)
        seen.append(updates_of(run_dir))
    assert seen == sorted(seen)
    assert 120 <= seen[-1] < 200
    assert output(start(run_dir, cache)) == expected
    with database(run_dir) as connection:
        rows = connection.execute("SELECT number FROM arrivals ORDER BY number").fetchall()
    assert rows == [(number,) for number in range(1, 201)]


def make_data(name, generator):
    X = generator.normal(size=(12, 2))
    if name in ("latent-dirichlet-allocation", "poisson-factorisation"):
        return 1.0 + generator.poisson(2.0, size=(12, 2))
    if not pt.models.REGISTRY[name].takes_target:
        return X
    if name == "poisson-regression":
        return X, generator.poisson(2.0, size=12).astype(float)
    if name == "linear-regression":
        return X, X[:, 0] + generator.normal(size=12)
    return X, generator.integers(0, 3 if name == "softmax-regression" else 2, size=12).astype(float)


MODELS = {
    **{name: (name, {}) for name in pt.models.REGISTRY},
    "softmax-regression": ("softmax-regression", {"classes": 3}),
    "network": ("network", {"layers": [2, 3, 2]}),
    "known noise": ("linear-regression", {"noise": 0.5, "intercept": False}),
    "mean-field": ("logistic-regression", {"posterior": "mean-field"}),
}


def fitted(name="logistic-regression", settings=(), rounds=2, **options):
    generator = np.random.default_rng(0)
    kind = pt.models.REGISTRY[name]
    suggested = {key: value for key, (value, _) in kind.suggested.items()}
    sizes = {"network": {}, "latent-dirichlet-allocation": {"words": 2}}.get(name, {"features": 2})
    by_file = name == "sparse-process"
    model = (
        kind.for_data(np.ones((1, 2)), None, **suggested)
        if by_file
        else kind(**{**sizes, **suggested, **dict(settings)})
    )
    shards = [make_data(name, generator) for _ in range(2)]
    return pt.fit(model, shards, schedule=Synchronous(rounds=rounds), **options)


def same(first, second):
    leaves = [jax.tree.leaves(tree) for tree in (first, second)]
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(*leaves, strict=True))


def assert_same_result(loaded, result):
    names = ("posterior", "prior", "factors")
    assert all(same(getattr(loaded, name), getattr(result, name)) for name in names)
    assert type(loaded.posterior) is type(result.posterior)
    names = ("history", "log_evidence", "expected_log_probs", "hyper", "seed", "fingerprint")
    assert all(getattr(loaded, name) == getattr(result, name) for name in names)


@pytest.mark.parametrize(("name", "settings"), MODELS.values(), ids=MODELS)
def test_every_model_comes_back_as_it_was_saved(tmp_path, name, settings):
    result, X = fitted(name, settings), np.random.default_rng(1).normal(size=(5, 2))
    result.save(tmp_path / "result")
    loaded = pt.load(tmp_path / "result")
    assert_same_result(loaded, result)
    assert type(loaded.model) is type(result.model)
    assert_same_result(pt.load(tmp_path / "result", model=result.model), result)
    if result.model.takes_target:
        np.testing.assert_array_equal(loaded.predict(X), result.predict(X))
    assert same(loaded.sample(0, 3), result.sample(0, 3))


def test_learned_hyperparameters_and_a_given_prior_come_back(tmp_path):
    first = fitted(hyper=pt.LearnHyper())
    model = first.model.with_prior(first.posterior)
    second = pt.fit(model, make_shards(sites=2), schedule=Synchronous(rounds=2))
    for result in (first, second):
        result.save(tmp_path / "result")
        assert_same_result(pt.load(tmp_path / "result"), result)
    assert same(pt.load(tmp_path / "result").model.given_prior, first.posterior)


def test_a_model_with_code_is_asked_for(tmp_path):
    model = one_parameter(lambda theta, y: -0.5 * (y - theta[0]) ** 2)
    result = pt.fit(model, [np.ones(3), np.zeros(2)], schedule=Synchronous(rounds=2))
    result.save(tmp_path / "result")
    with pytest.raises(InputError, match="model="):
        pt.load(tmp_path / "result")
    assert_same_result(pt.load(tmp_path / "result", model=model), result)
    with pytest.raises(RunMismatch, match="another model"):
        pt.load(tmp_path / "result", model=MODEL)


def affine(params, X):
    return X @ params["weights"] + params["bias"]


NETWORKS = {
    "a module": lambda: pt.models.Network(eqx.nn.MLP(2, 2, 3, 1, key=jax.random.key(0))),
    "a function": lambda: pt.models.Network(affine, params={"weights": np.ones((2, 2)), "bias": np.zeros(2)}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_with_code_is_asked_for(tmp_path, name):
    model, generator = NETWORKS[name](), np.random.default_rng(0)
    shards = [make_data("network", generator) for _ in range(2)]
    solver = pt.solvers.Gradient("sgd", steps=1)
    settings = {"schedule": Synchronous(rounds=2), "expectation": pt.expectations.MonteCarlo(1)}
    result = pt.fit(model, shards, solver=solver, **settings)
    result.save(tmp_path / "result")
    with pytest.raises(InputError, match="model="):
        pt.load(tmp_path / "result")
    loaded = pt.load(tmp_path / "result", model=model)
    assert_same_result(loaded, result)
    np.testing.assert_array_equal(loaded.predict_proba(shards[0][0]), result.predict_proba(shards[0][0]))
    with pytest.raises(RunMismatch, match="another model"):
        pt.load(tmp_path / "result", model=MODEL)


def test_a_network_with_other_layers_is_another_model(tmp_path):
    fitted(*MODELS["network"]).save(tmp_path / "result")
    with pytest.raises(RunMismatch, match="another model"):
        pt.load(tmp_path / "result", model=pt.models.Network([2, 4, 2], activation="tanh"))


@pytest.fixture(scope="module")
def saved():
    return fitted()


@pytest.fixture
def file(saved, tmp_path):
    saved.save(tmp_path / "result")
    return tmp_path / "result"


@pytest.mark.parametrize("mask", [0x01, 0x20, 0xFF])
def test_flipped_bytes_are_found(file, mask):
    intact = file.read_bytes()
    for place in range(0, len(intact), 97):
        file.write_bytes(intact[:place] + bytes([intact[place] ^ mask]) + intact[place + 1 :])
        with pytest.raises(StorageError, match=re.escape(str(file))):
            pt.load(file)


def test_truncated_files_are_found(file):
    intact = file.read_bytes()
    for size in [0, 1, 7, 8, 9, *range(10, len(intact), 97), len(intact) - 1]:
        file.write_bytes(intact[:size])
        with pytest.raises(CorruptStorage, match=re.escape(str(file))):
            pt.load(file)


def test_longer_files_are_found(file):
    file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(CorruptStorage):
        pt.load(file)


def test_another_format_is_named(file):
    arrays, about = read_arrays(file)
    write_arrays(file, arrays, {**about, "format": 2})
    with pytest.raises(RunMismatch, match="format 2, this version reads 1"):
        pt.load(file)


def test_a_stranger_s_file_is_refused(tmp_path):
    from safetensors.numpy import save_file

    save_file({"weights": np.ones(3)}, tmp_path / "other")
    with pytest.raises(CorruptStorage, match="not written by Partita"):
        pt.load(tmp_path / "other")


def test_missing_files_and_folders_are_storage_errors(tmp_path):
    with pytest.raises(StorageError, match="no such file"):
        pt.load(tmp_path / "nothing")
    with pytest.raises(StorageError, match=re.escape(str(tmp_path))):
        pt.load(tmp_path)


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(saved, file):
    before = file.read_bytes()
    with largest_file(100), pytest.raises(StorageError, match=re.escape(str(file))):
        replace(saved, seed=7).save(file)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("place", ["folder", "file/below"])
def test_a_save_to_an_impossible_place_leaves_nothing(saved, tmp_path, place):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=place):
        saved.save(tmp_path / place)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


def test_values_that_are_not_finite_can_be_saved(saved, tmp_path):
    history = [{**row, "metric": float("nan")} for row in saved.history]
    replace(saved, history=history).save(tmp_path / "result")
    assert [row["metric"] for row in pt.load(tmp_path / "result").history] == [None] * len(history)


def test_metrics_from_jax_are_stored(run_dir):
    result = fit(run_dir, callbacks=[lambda event: {"norm": jax.numpy.sum(event.posterior.location**2)}])
    norms = [row["norm"] for row in read_history(run_dir)]
    assert norms == pytest.approx([float(row["norm"]) for row in result.history])


FORBIDDEN = re.compile(r"(?<!allow_)pickle|allow_pickle=(?!False)|joblib|marshal|shelve|dill|\beval\(|\bexec\(")


def test_nothing_stored_or_sent_can_run_code():
    package = Path(pt.__file__).parent
    sources = sorted(package.rglob("*.py"))
    assert len(sources) > 20
    code = {path: re.sub(r'""".*?"""|#.*?$', "", path.read_text(), flags=re.DOTALL | re.MULTILINE) for path in sources}
    found = {path.relative_to(package).as_posix(): FORBIDDEN.findall(text) for path, text in code.items()}
    # One line runs code: that of a file at the site itself, whose digest its person has approved.
    assert {name: words for name, words in found.items() if words} == {"foundation/own_code.py": ["exec("]}


WIDE = pt.models.Network([64, 70, 10])


def wide(run_dir, resume=False, rounds=4):
    X, y = pt.datasets.load("digits")
    shards = [((X[i:300:3] / 16).astype(np.float32), y[i:300:3]) for i in range(3)]
    return pt.fit(WIDE, shards, schedule=pt.schedules.Synchronous(rounds=rounds), run_dir=run_dir, resume=resume)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A run whose updates are kept beside the database."""
    run_dir = tmp_path_factory.mktemp("large")
    result = wide(run_dir)
    assert (run_dir / "payloads").stat().st_size > 12 * INLINE
    return run_dir, result


def copied(large, tmp_path):
    shutil.copytree(large[0], tmp_path / "run")
    return tmp_path / "run"


def test_large_updates_come_back_to_the_last_bit_whatever_lies_behind_them(large, tmp_path):
    run_dir = copied(large, tmp_path)
    with (run_dir / "payloads").open("ab") as stream:
        stream.write(b"never acknowledged" * 5000)
    assert wide(run_dir, resume=True).fingerprint == large[1].fingerprint
    assert (run_dir / "payloads").stat().st_size == (large[0] / "payloads").stat().st_size
    assert wide(run_dir, resume=True, rounds=5).fingerprint == wide(tmp_path / "whole", rounds=5).fingerprint


def test_large_updates_that_are_not_what_was_written_are_refused(large, tmp_path):
    run_dir = copied(large, tmp_path)
    with (run_dir / "payloads").open("r+b") as stream:
        stream.seek(100_000)
        byte = stream.read(1)[0]
        stream.seek(100_000)
        stream.write(bytes([byte ^ 1]))
    with pytest.raises(CorruptStorage, match=r"payloads: update 3 \(site 2\) is not what was written"):
        wide(run_dir, resume=True)
    os.truncate(run_dir / "payloads", 100_000)
    with pytest.raises(CorruptStorage, match=r"payloads: has 100000 bytes, and \d+ were acknowledged"):
        wide(run_dir, resume=True)
    (run_dir / "payloads").unlink()
    with pytest.raises(CorruptStorage, match="payloads: has 0 bytes"):
        wide(run_dir, resume=True)


def test_places_where_no_payload_can_be_are_refused(large, tmp_path):
    for number, column in enumerate(("place = -5", "size = -1")):
        run_dir = copied(large, tmp_path / str(number))
        with closing(sqlite3.connect(run_dir / "journal.sqlite")) as connection, connection:
            connection.execute(f"UPDATE arrivals SET {column} WHERE number = 4")
        with pytest.raises(CorruptStorage, match="update 4"):
            wide(run_dir, resume=True)


def test_payloads_that_cannot_be_read_are_not_called_corrupt(tmp_path):
    like = pt.families.MeanField.from_moments(np.zeros(INLINE), 1.0)
    with Journal(tmp_path, {}, like, resume=False) as journal:
        journal.append([Update(0, 0, like, 0.0)])
        assert [arrival.site for arrival in journal.recorded()] == [0]
        # A folder, of which nothing can be read, in the place of the open file.
        folder = os.open(tmp_path, os.O_RDONLY)
        os.dup2(folder, journal._payloads)
        os.close(folder)
        with pytest.raises(StorageError, match="payloads: could not be read") as raised:
            list(journal.recorded())
    assert not isinstance(raised.value, CorruptStorage)


def test_a_folder_that_cannot_be_is_refused():
    model, shards = pt.models.LinearRegression(features=1, noise=1.0), [(np.ones((3, 1)), np.ones(3))]
    with pytest.raises(pt.errors.InputError, match="run_dir: expected the path of a folder"):
        pt.fit(model, shards, run_dir="a\0b")
