"""What holds of files, pages and terminals when they meet strangers, by number as in `docs/server.md`."""

import csv
import dataclasses
import http.client
import io
import json
import os
import random
import re
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import tomllib
import urllib.parse
from contextlib import ExitStack, closing
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

import partita as pt
from partita import telemetry
from partita.cli import app
from partita.config import read_config
from partita.errors import ConfigError, CorruptStorage, InputError, MalformedUpdate, RunMismatch, StorageError
from partita.federation.folders import ServerFolder, ServerSettings
from partita.federation.metrics import serve_metrics
from partita.federation.state import read_state, write_state
from partita.foundation import archives
from partita.foundation.compilation import cache_compilations
from partita.foundation.files import read_json
from partita.foundation.logs import open_log
from partita.foundation.loopback import MOST_CONNECTIONS
from partita.foundation.text import clean
from partita.launch import write_run_report
from partita.models import prior_of
from partita.report import write_report
from partita.report.follower import Follower
from partita.report.live import serve_page
from partita.report.measures import write_measures
from partita.report.terminal import make_table
from partita.server import storage
from partita.server.rules.chain import Chain
from partita.server.schedules import Asynchronous, Synchronous
from partita.site.tables import read_sites
from partita.studies.faults import torn_payloads
from partita.wire.messages import Notice, decode_update

ROOT = Path(__file__).parents[2]
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(40, 2))
Y = (X[:, 0] + 0.5 * GENERATOR.normal(size=40) > 0).astype(float)
SHARDS = [(X[i::4], Y[i::4]) for i in range(4)]
MODEL = pt.models.LogisticRegression(features=2)


def fit(folder=None, rounds=3, shards=SHARDS, resume=False, **others):
    return pt.fit(MODEL, shards, schedule=Synchronous(rounds=rounds), run_dir=folder, resume=resume, **others)


def execute(folder, *queries):
    with closing(sqlite3.connect(folder / "journal.sqlite")) as database, database:
        for query in queries:
            database.execute(query)


# 26: resumed by another version, other code, other data


def test_26_a_patched_rule_is_noticed_at_the_first_fold_that_differs(tmp_path, monkeypatch):
    fit(tmp_path)
    apply, seen, folds = Chain.apply, [], iter(range(100))

    def patched(self, proposal):
        number = next(folds)
        share = 1.0 if number < 1 else 0.5
        applied = apply(self, proposal)
        return dataclasses.replace(applied, changes=applied.changes**share)

    monkeypatch.setattr(Chain, "apply", patched)
    with pytest.raises(RunMismatch, match="fold 2 leads to another posterior.*what differs is code"):
        fit(tmp_path, rounds=5, resume=True, callbacks=[lambda event: seen.append(event.fold)])
    assert seen == [1]
    monkeypatch.undo()
    assert fit(tmp_path, rounds=5, resume=True).fingerprint == fit(rounds=5).fingerprint


def test_26_what_changed_beside_the_code_is_named(tmp_path, monkeypatch):
    fit(tmp_path)
    monkeypatch.setattr(storage, "made_with", lambda: {"jax": "0.0.1"})
    monkeypatch.setattr(storage, "posterior_digest", lambda posterior: b"other")
    with pytest.raises(RunMismatch, match=r"what differs is .*jax \(.* there, 0.0.1 here\)"):
        fit(tmp_path, resume=True)


def test_26_another_version_is_refused_before_anything_is_done(tmp_path, monkeypatch):
    fit(tmp_path)
    monkeypatch.setattr(storage, "__version__", "9.9.9")
    with pytest.raises(RunMismatch, match=r"version \(.* there, 9.9.9 here\)"):
        fit(tmp_path, resume=True)


def test_26_other_data_are_refused_and_their_site_is_named(tmp_path):
    fit(tmp_path)
    others = [*SHARDS[:2], (SHARDS[2][0] + 1e-9, SHARDS[2][1]), SHARDS[3]]
    with pytest.raises(RunMismatch, match=r"differs in shards\[2\] \(") as caught:
        fit(tmp_path, shards=others, resume=True)
    assert "shards[1]" not in str(caught.value)


def test_26_a_journal_of_an_earlier_format_is_refused_in_words_and_can_still_be_reported(tmp_path):
    result = fit(tmp_path)
    execute(tmp_path, "UPDATE meta SET value = '2' WHERE key = 'format'", "DROP TABLE posteriors")
    with pytest.raises(RunMismatch, match="format 2, .* go on with the version that wrote it"):
        fit(tmp_path, resume=True)
    assert storage.read_history(tmp_path) == json.loads(json.dumps(result.history))


def test_26_every_fold_is_witnessed_and_a_changed_digest_is_noticed(tmp_path):
    settings = {"schedule": Asynchronous(updates=9), "run_dir": tmp_path}
    pt.fit(MODEL, SHARDS, **settings)
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as database:
        folds = [fold for (fold,) in database.execute("SELECT fold FROM posteriors")]
    assert folds == list(range(1, 10))
    execute(tmp_path, "UPDATE posteriors SET digest = x'00' WHERE fold = 7")
    with pytest.raises(RunMismatch, match="fold 7 leads"):
        pt.fit(MODEL, SHARDS, **settings, resume=True)


# 27: control characters, markup, megabytes in texts from sites, tables and files

ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e"
EVIL = f"[/b]x {ESCAPES}[bold]:bomb:<img src=x onerror=alert(1)>"


def is_plain(text):
    return all(character.isprintable() or character == "\n" for character in text)


@given(text=st.text(st.characters(), max_size=60), most=st.integers(1, 40), lines=st.booleans())
def test_27_clean_text_is_printable_short_and_stays_what_it_is(text, most, lines):
    cleaned = clean(text, most, lines)
    assert len(cleaned) <= most
    assert is_plain(cleaned)
    assert lines or "\n" not in cleaned
    assert clean(cleaned, most, lines) == cleaned
    if text.isprintable() and len(text) <= most:
        assert cleaned == text


def shown_on(terminal, show):
    stream = io.StringIO()
    show(Console(file=stream, force_terminal=terminal, width=300, color_system=None))
    return stream.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_27_tables_and_progress_show_what_is_there_and_obey_nothing(terminal, monkeypatch):
    monkeypatch.setattr(telemetry, "FIRST_LINE", 0.0)
    table = shown_on(terminal, lambda console: console.print(make_table(EVIL, [{EVIL: EVIL, "number": 1.0}])))

    def progress(console):
        with telemetry.Progress(EVIL, console) as bar:
            bar.show(1, 2, EVIL)
            bar.say(EVIL)

    for text in (table, shown_on(terminal, progress)):
        assert "[/b]x" in text
        assert "owned" in text
        assert ":bomb:" in text
        assert not any(bad in text for bad in ("\x1b]", "\x07", "\x1b[2J\u202e", "\u202e"))


def test_27_a_level_with_markup_does_not_end_a_fit(tmp_path):
    generator = np.random.default_rng(1)
    for site in ("north", "south"):
        with (tmp_path / f"{site}.csv").open("w", newline="", encoding="utf-8") as stream:
            rows = csv.writer(stream)
            rows.writerow(["y", "arm"])
            rows.writerows(
                [f"{value:.3f}", ("A", EVIL)[place % 2]] for place, value in enumerate(generator.normal(size=20))
            )
    (tmp_path / "r.toml").write_text(
        '[data]\nsites = "*.csv"\n[regression]\nformula = "y ~ arm"\n[schedule]\nrounds = 3\n'
    )
    done = CliRunner().invoke(app, ["run", str(tmp_path / "r.toml"), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert "[/b]x" in done.output
    assert is_plain(done.output)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<img src=x" not in page
    assert "\x1b" not in page


def test_27_errors_and_notices_quote_no_escapes_and_not_without_end():
    for error in (InputError(f"level {EVIL}"), MalformedUpdate(3, EVIL * 1000), StorageError("a" * 10**6)):
        assert is_plain(str(error))
        assert len(str(error)) <= 4000
    notice = Notice(0, "away", EVIL * 1000)
    assert is_plain(notice.reason)
    assert len(notice.reason) <= 1000


def test_27_a_dtype_with_a_name_of_12_kb_is_told_in_a_line():
    header = json.dumps(
        {"change.0": {"dtype": "\x1b]0;" + "F" * 12_000, "shape": [1], "data_offsets": [0, 8]}}
    ).encode()
    payload = len(header).to_bytes(8, "little") + header + bytes(8)
    with pytest.raises(MalformedUpdate) as caught:
        decode_update(0, 0, payload, prior_of(MODEL, MODEL.hyper))
    assert is_plain(str(caught.value))
    assert len(str(caught.value)) < 500


def test_27_a_log_is_one_short_line_for_each_event(tmp_path):
    log = open_log(tmp_path / "run", "log")
    log.warning("site", extra={"row": {"problem": EVIL * 10_000, "names": [EVIL]}})
    (line,) = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert len(line) < 5000
    assert is_plain(json.loads(line)["problem"] + json.loads(line)["names"][0])


def test_27_what_sites_say_is_clean_in_every_face_of_a_server_s_state(tmp_path):
    folder = ServerFolder(tmp_path, None, None, ServerSettings(sites=("north",)))
    write_state(folder, {"state": "running", "sites": [{"site": "north", "problem": EVIL * 1000}], "reason": EVIL})
    state = read_state(folder)
    assert is_plain(state["reason"] + state["sites"][0]["problem"])
    assert len(state["sites"][0]["problem"]) <= 1000


# 28: other users on the machine


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder):
    return {path.relative_to(folder.parent).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


def test_28_files_of_a_run_are_for_their_owner_alone_whatever_the_umask(tmp_path, open_umask, monkeypatch):
    monkeypatch.setattr(storage, "INLINE", 10)
    found, seen = tmp_path / "runs" / "one", {}
    result = fit(found, callbacks=[lambda event: seen.update(modes(found))])
    result.save(found / "result.safetensors")
    write_report(found / "report.html", Follower(found).report())
    write_measures(found, result, (X, Y))
    log = open_log(found, "log")
    log.info("something")
    seen |= modes(found)
    wanted = {"journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm", "payloads", "lock", "log.jsonl"}
    assert {f"one/{name}" for name in (*wanted, "result.safetensors", "report.html", "measures.json")} <= seen.keys()
    assert set(seen.values()) == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (found, found.parent)} == {0o700}


def test_28_a_journal_that_others_could_read_is_closed_to_them_on_resume(tmp_path):
    fit(tmp_path)
    names = ("journal.sqlite", "payloads", "lock")
    for name in names:
        (tmp_path / name).chmod(0o666)
    fit(tmp_path, rounds=4, resume=True)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in names} == {0o600}


@pytest.mark.parametrize("link", ["symbolic", "dangling", "hard"])
@pytest.mark.parametrize("name", ["payloads", "lock", "journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm"])
def test_28_planted_links_are_refused_and_their_targets_stay(tmp_path, name, link):
    target, folder = tmp_path / "precious", tmp_path / "run"
    folder.mkdir()
    if link != "dangling":
        target.write_bytes(b"precious")
    (folder / name).hardlink_to(target) if link == "hard" else (folder / name).symlink_to(target)
    with pytest.raises(StorageError, match=f"{name}: .*delete it"):
        fit(folder, resume=True)
    assert target.read_bytes() == b"precious" if link != "dangling" else not target.exists()


def test_28_a_planted_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "payloads")
    with pytest.raises(StorageError, match="payloads: is a link, or something else that is no file"):
        fit(tmp_path)


def test_28_logs_and_states_follow_no_link(tmp_path):
    target = tmp_path / "precious"
    target.write_text("precious")
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("log.jsonl", "result.safetensors", "report.html"):
        (folder / name).symlink_to(target)
    with pytest.raises(OSError, match="is a link"):
        open_log(folder, "log")
    fit(folder).save(folder / "result.safetensors")
    write_report(folder / "report.html", Follower(folder).report())
    assert target.read_text() == "precious"
    assert not (folder / "result.safetensors").is_symlink()


def test_28_compiled_programs_which_are_run_again_lie_where_nobody_else_can_write(tmp_path, open_umask):
    before = jax.config.jax_compilation_cache_dir
    try:
        cache_compilations(tmp_path / "cache" / "jax")
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("cache", "cache/jax")} == {0o700}


# 29: malicious result, journal, configuration, table


def saved(folder, change=lambda arrays, about: None):
    path = folder / "result.safetensors"
    fit(rounds=1).save(path)
    arrays, about = archives.read_arrays(path)
    arrays = {name: array.copy() for name, array in arrays.items()}
    change(arrays, about)
    archives.write_arrays(path, arrays, about)
    return path


def flip(name):
    def change(arrays, about):
        arrays[name] *= -1

    return change


def put(name, value):
    def change(arrays, about):
        arrays[name].flat[0] = value

    return change


def say(**said):
    def change(arrays, about):
        about.update(said)

    return change


def reshape(arrays, about):
    arrays["posterior.1"] = arrays["posterior.1"][:1]


HUGE = {"name": "logistic-regression", "features": 10**9, "posterior": "full"}
RESULTS = {
    "improper posterior": (flip("posterior.1"), "the posterior is no proper Gaussian"),
    "improper prior": (flip("prior.1"), "the prior is no proper Gaussian"),
    "nan posterior": (put("posterior.0", np.nan), "posterior: has numbers that are not finite"),
    "infinite factor": (put("factors.1", np.inf), "factors: has numbers that are not finite"),
    "another shape": (reshape, r"posterior: expected float64 of shape \(3, 3\), got float64 of shape \(1, 3\)"),
    "a billion features": (say(model=HUGE), "prior: expected float64 of shape"),
    "no model": (say(model={}), "no result that Partita writes"),
    "a model that is none": (say(model=[1]), "use its own load"),
    "settings that are none": (say(model={"name": "logistic-regression", "wings": 2}), "no result that Partita writes"),
    "another family": (say(family="Gamma"), "holds a Gamma"),
    "history that is none": (say(history=7), "no result that Partita writes"),
    "hyperparameters that are none": (say(hyper={"noise": "loud"}), "no result that Partita writes"),
    "evidence that is none": (say(log_evidence="much"), "no result that Partita writes"),
}


@pytest.mark.parametrize(("change", "complaint"), RESULTS.values(), ids=RESULTS)
def test_29_a_crafted_result_is_a_typed_error(tmp_path, change, complaint):
    with pytest.raises(StorageError, match=complaint):
        pt.load(saved(tmp_path, change))


def test_29_an_honest_result_is_still_read(tmp_path):
    assert pt.load(saved(tmp_path)).fingerprint == fit(rounds=1).fingerprint


def test_29_a_stream_with_numbers_that_are_none_is_refused(tmp_path):
    path, inputs = tmp_path / "stream", np.linspace(0, 1, 8)[:, None]
    pt.StreamingGPRegressor(points_per_batch=3, steps=1).partial_fit(inputs, inputs[:, 0]).save(path)
    arrays, about = archives.read_arrays(path)
    archives.write_arrays(path, {**arrays, "factor.shift": arrays["factor.shift"] * np.nan}, about)
    with pytest.raises(CorruptStorage, match="factor.shift: has numbers that are not finite"):
        pt.StreamingGPRegressor.load(path)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\x00" * 8, b"{}", bytes([255]) * 64])
def test_29_a_result_that_is_no_archive_is_a_typed_error(tmp_path, content):
    path = tmp_path / "result"
    path.write_bytes(content)
    with pytest.raises(CorruptStorage):
        pt.load(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StorageError, match="is not a regular file"):
        pt.load(path)


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS fold, '{}' AS row FROM n"
JOURNALS = {
    "an endless view": ("DROP TABLE history", f"CREATE VIEW history AS {ENDLESS}"),
    "a view of arrivals": ("ALTER TABLE arrivals RENAME TO a", "CREATE VIEW arrivals AS SELECT * FROM a"),
    "rows that are no JSON": ("UPDATE history SET row = '{'",),
    "rows nested without end": (f"UPDATE history SET row = '{'[' * 100_000}'",),
    "rows that are lists": ("UPDATE history SET row = '[]'",),
    "rows with words for numbers": ("""UPDATE history SET row = json_set(row, '$.round', 'x')""",),
    "numbers beyond all": ("""UPDATE history SET row = replace(row, '"round": 1.0', '"round": 1e999')""",),
    "no version": ("""UPDATE history SET row = json_set(row, '$.version', 0)""",),
    "a site that cannot be": ("""UPDATE history SET row = json_set(row, '$.site', -1)""",),
    "rows of megabytes": ("UPDATE history SET row = row || printf('%.*c', 2000000, 'x')",),
}


@pytest.mark.parametrize("queries", JOURNALS.values(), ids=JOURNALS)
def test_29_a_crafted_journal_is_a_typed_error_and_hangs_nothing(tmp_path, queries):
    fit(tmp_path)
    execute(tmp_path, *queries)
    with pytest.raises(StorageError):
        write_run_report(tmp_path)
    with serve_page(Follower(tmp_path)) as url:
        assert status(url) == 200


def test_29_a_journal_with_a_trigger_or_of_another_shape_is_not_resumed(tmp_path):
    fit(tmp_path)
    execute(tmp_path, "CREATE TRIGGER t AFTER INSERT ON arrivals BEGIN DELETE FROM history; END")
    with pytest.raises(CorruptStorage, match="is not the journal of a run: t is"):
        fit(tmp_path, rounds=5, resume=True)


def test_29_a_tree_whose_branches_meet_again_is_no_journal(tmp_path):
    """One page that is a table's leaf many times over: a small file with more rows than anybody can read."""
    result = fit(tmp_path)
    path = tmp_path / "journal.sqlite"
    rows = [json.dumps({**result.history[-1], "fold": fold}) for fold in range(100, 2000)]
    execute(tmp_path, *[f"INSERT INTO history VALUES ({100 + n}, '{row}')" for n, row in enumerate(rows)])
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.execute("PRAGMA journal_mode=DELETE")
        (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'history'").fetchone()
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    page = (root - 1) * size
    assert data[page] == 5  # an inner page of a table
    cells = int.from_bytes(data[page + 3 : page + 5], "big")
    places = [page + int.from_bytes(data[page + 12 + 2 * n : page + 14 + 2 * n], "big") for n in range(cells)]
    for place in places[1:]:
        data[place : place + 4] = data[places[0] : places[0] + 4]
    path.write_bytes(data)
    with pytest.raises(CorruptStorage, match="history: what follows .* is not what was written"):
        storage.read_history(tmp_path)


def test_29_arrivals_that_nobody_could_have_sent_are_refused(tmp_path):
    fit(tmp_path)

    def forge(kind, site):
        digest = storage._digest(13, kind, site, -1, b"why")
        row = f"(13, '{kind}', {site}, -1, x'{b'why'.hex()}', NULL, NULL, x'{digest.hex()}')"
        execute(tmp_path, "DELETE FROM arrivals WHERE number = 13", f"INSERT INTO arrivals VALUES {row}")
        with pytest.raises(CorruptStorage, match="update 13: "):
            fit(tmp_path, rounds=5, resume=True)

    forge("promoted", 0)
    forge("away", 99)
    forge("away", -1)
    forge("update", 0)


CONFIGS = {
    "nested without end": ("x = " + "[" * 20_000, "nested too deeply"),
    "megabytes": ("# " + "x" * 2_000_000, "is too large: 2000002 bytes, at most 1000000 are read"),
    "no text": ("\udcff", "is not UTF-8 text"),
}


@pytest.mark.parametrize(("text", "complaint"), CONFIGS.values(), ids=CONFIGS)
def test_29_a_crafted_configuration_is_a_typed_error(tmp_path, text, complaint):
    path = tmp_path / "run.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=complaint):
        read_config(path)


def test_29_pipes_are_not_waited_for(tmp_path):
    for name in ("run.toml", "table.csv", "state"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_config(tmp_path / "run.toml")
    with pytest.raises(InputError, match="is not a regular file"):
        pt.datasets.read_csv(tmp_path / "table.csv", "y")
    with pytest.raises(InputError, match="is not a regular file"):
        read_sites([tmp_path / "table.csv"])
    with pytest.raises(OSError, match="is not a regular file"):
        read_json(tmp_path / "state")


NOTES = {
    "measures.json": ['{"fold": 3, "scores": [], "calibration": null}', '{"fold": 3, "scores": {"error": []}}', "[]"],
    "regression.json": ['{"fold": 3}', "[" * 50_000, '{"fold": 3, "log evidence": "x"}'],
}


@pytest.mark.parametrize("name", NOTES)
def test_29_crafted_notes_beside_a_run_are_typed_errors(tmp_path, name):
    fit(tmp_path).save(tmp_path / "result.safetensors")
    for text in NOTES[name]:
        (tmp_path / name).write_text(text)
        with pytest.raises(CorruptStorage, match=name):
            write_run_report(tmp_path)


# 30: slow or many clients of the live page and of metrics


class Metrics:
    """Metrics of a folder in which nothing runs."""

    def __init__(self, folder):
        self.server = serve_metrics(ServerFolder(folder, None, None, ServerSettings(sites=("north",))), 0)

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        return self.server.url + "metrics"

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


PAGES = {"page": lambda folder: serve_page(Follower(folder)), "metrics": Metrics}


def status(url, host=None):
    parts = urllib.parse.urlsplit(url)
    with closing(http.client.HTTPConnection(parts.netloc, timeout=30)) as connection:
        connection.request("GET", parts.path, headers={"Host": host or parts.netloc})
        return connection.getresponse().status


@pytest.mark.parametrize("kind", PAGES)
def test_30_a_hundred_slow_senders_keep_nobody_out(tmp_path, kind):
    with PAGES[kind](tmp_path) as url, ExitStack() as opened:
        parts = urllib.parse.urlsplit(url)
        before = threading.active_count()
        for _ in range(100):
            slow = opened.enter_context(socket.create_connection((parts.hostname, parts.port)))
            slow.sendall(b"GET / HTTP/1.1\r\nHost: ")
        assert [status(url) for _ in range(3)] == [200] * 3
        assert threading.active_count() <= before + MOST_CONNECTIONS + 5


def test_30_listeners_that_ask_are_kept_when_those_come_who_do_not(tmp_path):
    with serve_page(Follower(tmp_path)) as url, ExitStack() as opened:
        parts = urllib.parse.urlsplit(url)
        listener = opened.enter_context(closing(http.client.HTTPConnection(parts.netloc, timeout=30)))
        listener.request("GET", "/events")
        stream = listener.getresponse()
        for _ in range(60):
            opened.enter_context(socket.create_connection((parts.hostname, parts.port)))
        assert status(url) == 200
        # Something that was said after all of them had come.
        assert all(stream.readline() for _ in range(9))


@pytest.mark.parametrize("kind", PAGES)
def test_30_another_host_is_refused(tmp_path, kind):
    with PAGES[kind](tmp_path) as url:
        port = urllib.parse.urlsplit(url).port
        assert [status(url, host) for host in ("evil.example", f"evil.example:{port}", "127.0.0.1")] == [403] * 3
        assert status(url, f"localhost:{port}") == 200


# 31: kills around large payloads beside the database


class DeathError(BaseException):
    """The server is not there any more."""


@pytest.mark.parametrize("place", torn_payloads.PLACES)
def test_31_deaths_around_large_payloads_leave_what_was_acknowledged(tmp_path, monkeypatch, place):
    """All writes are short, the last may be torn; `make soak` has 200 kills of processes."""
    clean_run, write, chance, left = fit(rounds=5).fingerprint, os.pwrite, random.Random(0), [0]

    def reached(where):
        left[0] -= where == place
        if where == place and left[0] == 0:
            raise DeathError

    def write_less(handle, data, offset):
        if len(data) <= 20:
            return write(handle, data, offset)
        written = write(handle, data[: chance.randint(1, len(data))], offset)
        reached(torn_payloads.TORN)
        return written

    monkeypatch.setattr(storage, "INLINE", 100)
    monkeypatch.setattr(storage, "failpoint", reached)
    monkeypatch.setattr(os, "pwrite", write_less)
    for tail, hits in (("is garbage", 2), ("is cut", 1), ("stays", 1)):
        left[0] = hits
        with pytest.raises(DeathError):
            fit(tmp_path, rounds=5, resume=True)
        end = torn_payloads.last_acknowledged(tmp_path, most=20)
        with (tmp_path / "payloads").open("r+b") as stream:
            if tail == "is cut":
                stream.truncate(end + (os.fstat(stream.fileno()).st_size - end) // 2)
            elif tail == "is garbage":
                stream.seek(end)
                stream.write(b"garbage" * 500)
    assert fit(tmp_path, rounds=5, resume=True).fingerprint == clean_run
    assert (tmp_path / "payloads").stat().st_size == torn_payloads.last_acknowledged(tmp_path, most=20) > 1000


@pytest.mark.slow
def test_31_processes_killed_around_large_payloads_end_as_if_they_had_not_been():
    command = [sys.executable, "-m", "partita", "study", "torn-payloads", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 kills")


# 32: what listens, what is installed

LISTENING = """
import os, sys
from pathlib import Path
import numpy as np
import partita as pt

def addresses():
    # Of every socket that this process or one that it has started listens on.
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            pass
    own, before = {os.getpid()}, 0
    while len(own) > before:
        before = len(own)
        own |= {child for child, parent in parents.items() if parent in own}
    links = set()
    for process in own:
        for link in Path(f"/proc/{process}/fd").glob("*"):
            try:
                links.add(os.readlink(link))
            except OSError:
                pass
    texts = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    lines = [line.split() for text in texts for line in text.splitlines()[1:]]
    return {line[1].rpartition(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in links}

found = set()
X = np.ones((4, 1))
pt.fit(
    pt.models.LinearRegression(features=1, noise=1.0), [(X, X[:, 0]), (X, X[:, 0])],
    schedule=pt.schedules.Synchronous(rounds=2), engine=pt.engines.Ray(actors=1),
    callbacks=[lambda event: found.update(addresses())],
)
print(*sorted(found))
"""
# 127.0.0.1, and the same as IPv6 writes it.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


@pytest.mark.engines
def test_32_a_cluster_that_is_begun_here_listens_to_this_machine_only(tmp_path):
    pytest.importorskip("ray")
    done = subprocess.run([sys.executable, "-c", LISTENING], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = set(done.stdout.split())
    assert found
    assert found <= LOOPBACK


def locked(name):
    """Versions and hashes by package, of a file that pip reads."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        package, *hashes = line.split()
        name, equals, version = package.partition("==")
        assert equals, f"{line}: is not pinned"
        found[name] = (version, hashes)
    return found


@pytest.mark.parametrize("name", ["run", "dev", "engines", "release"])
def test_32_everything_that_is_installed_is_pinned_by_hash(name):
    packages = locked(name)
    for package, (_, hashes) in packages.items():
        assert hashes, package
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), package
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    pins = {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in pins.items()}
    assert {package: pins.get(package, version) for package, (version, _) in packages.items()} == {
        package: version for package, (version, _) in packages.items()
    }


def test_32_what_is_pinned_is_what_the_project_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def asked(requirements):
        names = [re.match(r"[\w.-]+", requirement)[0].lower() for requirement in requirements]
        return {re.sub(r"[-_.]+", "-", name) for name in names} - {"partita"}

    extras = project["optional-dependencies"]
    assert asked(project["dependencies"]) | {"setuptools"} <= locked("run").keys()
    assert locked("run").keys() <= locked("dev").keys() <= locked("engines").keys()
    assert asked(extras["dev"]) | asked(extras["formulas"]) | asked(extras["arviz"]) <= locked("dev").keys()
    assert asked(extras["ray"]) | asked(extras["flower"]) <= locked("engines").keys()


def test_32_make_installs_nothing_whose_hash_is_not_known():
    lines = (ROOT / "Makefile").read_text().replace("\\\n", " ").splitlines()
    installs = [line for line in lines if "$(PIP)" in line]
    assert len(installs) == 2
    for part in (part for line in installs for part in line.split("&&")):
        assert "--require-hashes" in part or "--no-deps --no-build-isolation -e ." in part
    # Only the search for newer versions goes without.
    assert [line.split()[0] for line in lines if "pip install" in line] == [".venv-lock/bin/python"]


def test_29_a_rollback_journal_beside_ours_is_refused_before_sqlite_sees_it(tmp_path):
    """SQLite would roll it back, and delete the file that it names."""
    shards = [(np.ones((3, 1)), np.arange(3.0))]
    model = pt.models.LinearRegression(features=1, noise=1.0)
    pt.fit(model, shards, schedule=pt.schedules.OnePass(), run_dir=tmp_path)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    name = str(victim).encode()
    magic = bytes.fromhex("d9d505f920a163d7")
    tail = (1).to_bytes(4, "big") + name + len(name).to_bytes(4, "big") + sum(name).to_bytes(4, "big") + magic
    (tmp_path / "journal.sqlite-journal").write_bytes(magic.ljust(512, b"\0") + tail)
    with pytest.raises(CorruptStorage, match=r"journal\.sqlite-journal: does not belong to a run"):
        pt.fit(model, shards, schedule=pt.schedules.OnePass(), run_dir=tmp_path, resume=True)
    assert victim.read_text() == "mine"
