"""What is compiled, and how often; and where compiled programs are kept, and where they are not."""

import os
import stat
import subprocess
import sys
import warnings
from contextlib import contextmanager

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import partita as pt
from partita.foundation import compilation
from partita.foundation.compilation import cache_compilations, check_unshared, default_folder, trim
from partita.foundation.runtime import precision
from partita.predictive import _expected_response
from partita.shards import capacities, pad_rows, rounded_up

BACKEND = "/jax/core/compile/backend_compile_duration"
SIZES = (1, 2, 3, 31, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 257, 299, 300)

generator = np.random.default_rng(0)
X = generator.normal(size=(300, 3))
y = X @ [1.0, -2.0, 0.5] + 0.3 * generator.normal(size=300)
labels = (y > 0).astype(float)


@contextmanager
def counting():
    """A list that grows with every program that is compiled, or taken from a cache."""
    found, listening = [], [True]

    def hear(event: str, seconds: float, **_) -> None:
        if listening[0] and event == BACKEND:
            found.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(hear)
    yield found
    listening[0] = False


@pytest.fixture(scope="module")
def logistic():
    return pt.fit(pt.models.LogisticRegression(3), [(X, labels)], schedule=pt.schedules.Synchronous(rounds=2))


def test_small_algebra_of_the_server_is_not_compiled():
    """A run compiles what sites do, which is refining and evaluating, and nothing else."""
    with counting() as compiled:
        model = pt.models.LogisticRegression(4, prior_scale=1.234)
        rows = [(np.column_stack([X, y]), labels)] * 2
        result = pt.fit(model, rows, schedule=pt.schedules.Synchronous(rounds=3))
        _ = result.posterior.location, result.posterior.scale, result.log_evidence, result.contributions()
    assert len(compiled) == 2


def test_predicting_for_other_numbers_of_rows_compiles_a_handful_of_programs(logistic):
    with counting() as compiled:
        for rows in SIZES:
            assert logistic.predict_proba(X[:rows]).shape == (rows, 2)
    assert len(compiled) <= 4


def test_predictions_with_deviations_too():
    result = pt.fit(pt.models.LinearRegression(3), [(X, y)], schedule=pt.schedules.OnePass())
    with counting() as compiled:
        for rows in SIZES:
            mean, std = result.predict(X[:rows], return_std=True)
            assert mean.shape == std.shape == (rows,)
    assert len(compiled) <= 8


def test_predictions_do_not_depend_on_padding(logistic):
    for rows in (1, 5, 100):
        with precision(np.float64):
            design = logistic.model.design(None, X[:rows])
            alone = np.asarray(_expected_response.quick(logistic.model, logistic.posterior, design, 256))
        assert_allclose(logistic.predict_proba(X[:rows]), alone, rtol=1e-12)


def test_streams_of_many_batch_sizes_compile_a_handful_of_programs():
    with counting() as compiled:
        state = pt.models.LogisticRegression(3, prior_scale=2.345)
        for rows in (3, 20, 33, 50, 70, 100, 130, 180, 250, 300):
            state = pt.partial_fit(state, (X[:rows], labels[:rows]))
    # 64, 128, 256 and 512 rows, refined and evaluated; the first batch has the model's own prior, which is two more.
    assert len(compiled) <= 10


def test_a_process_predicts_for_other_numbers_of_rows():
    stream = pt.StreamingGPRegressor(steps=2, points_per_batch=5).fit(X[:40], y[:40])
    stream.predict(X[:10])
    with counting() as compiled:
        for rows in (1, 2, 30, 60, 64):
            mean, std = stream.predict(X[:rows], return_std=True)
            assert_allclose(mean, stream.predict(X[:64])[:rows], rtol=1e-10)
            assert std.shape == (rows,)
    assert not compiled


def test_sizes():
    assert [rounded_up(rows) for rows in (1, 64, 65, 1024, 1025)] == [64, 64, 128, 1024, 1280]
    assert len({rounded_up(rows) for rows in range(1, 301)}) == 4
    assert pad_rows(X[:65]).shape == (128, 3)
    assert np.all(pad_rows(X[:65])[65:] == X[0])
    # Many small sites are not filled up, and a row that is alone stays alone.
    assert capacities([10] * 1000) == [10] * 1000
    assert capacities([1, 1]) == [1, 1]
    assert capacities([10, 12]) == [64, 64]


@pytest.fixture
def settings():
    """What the cache changes of JAX, put back afterwards."""
    names = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    before = {name: jax.config.values[name] for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.usefixtures("settings")
def test_programs_are_kept_in_a_folder_for_the_user_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(compilation.VARIABLE, raising=False)
    assert cache_compilations() == tmp_path / "cache" / "partita" / "jax" == default_folder()
    assert jax.config.values["jax_compilation_cache_dir"] == str(default_folder())
    assert stat.S_IMODE(default_folder().stat().st_mode) == 0o700


@pytest.mark.usefixtures("settings")
def test_the_cache_is_turned_off_by_a_variable(tmp_path, monkeypatch):
    monkeypatch.setenv(compilation.VARIABLE, "off")
    assert cache_compilations(tmp_path) is None
    assert jax.config.values["jax_compilation_cache_dir"] is None


@pytest.mark.usefixtures("settings")
def test_a_folder_that_jax_was_told_of_stays(tmp_path, monkeypatch):
    monkeypatch.delenv(compilation.VARIABLE, raising=False)
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    assert cache_compilations() == tmp_path
    assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path)


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("shared", ["cache", "."])
def test_a_folder_that_others_can_write_to_is_left_alone(tmp_path, monkeypatch, shared):
    monkeypatch.delenv(compilation.VARIABLE, raising=False)
    folder = tmp_path / "house" / "cache"
    folder.mkdir(parents=True)
    (tmp_path / "house" / shared).chmod(0o777)
    with pytest.warns(RuntimeWarning, match="can be written to by other users"):
        assert cache_compilations(folder) is None
    assert jax.config.values["jax_compilation_cache_dir"] is None


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(OSError, match="another user"):
        check_unshared(tmp_path)


def test_what_was_used_least_lately_is_deleted_first(tmp_path):
    for age, name in enumerate("abc"):
        (tmp_path / name).write_bytes(b"x" * 100)
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    (tmp_path / "link").symlink_to("a")
    trim(tmp_path, 250)
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_the_next_process_takes_programs_from_the_cache(tmp_path):
    script = (
        "import sys, jax\n"
        "import partita as pt\n"
        "pt.cache_compilations(sys.argv[1])\n"
        "hits = []\n"
        "jax.monitoring.register_event_listener(\n"
        "    lambda event, **_: hits.append(event) if event == '/jax/compilation_cache/cache_hits' else None)\n"
        "import numpy as np\n"
        "result = pt.fit(pt.models.LinearRegression(1, noise=1.0), [(np.ones((4, 1)), np.arange(4.0))],\n"
        "    schedule=pt.schedules.OnePass())\n"
        "print(len(hits), result.log_evidence)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "PARTITA_C"))}
    run = [sys.executable, "-c", script, str(tmp_path / "programs")]
    first, second = (
        subprocess.run(run, capture_output=True, text=True, check=True, env=environment).stdout.split()
        for _ in range(2)
    )
    assert int(first[0]) == 0 < int(second[0])
    assert first[1] == second[1]


def test_nothing_is_said_where_all_is_well(tmp_path, monkeypatch, settings):
    monkeypatch.delenv(compilation.VARIABLE, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache_compilations(tmp_path / "programs") == tmp_path / "programs"
