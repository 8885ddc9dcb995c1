"""The audit log of a site: what left, in a chain of lines that are on disk before it leaves."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from partita.cli import app
from partita.errors import CorruptStorage, StorageError
from partita.federation.folders import read_server
from partita.federation.new import federation_file_text
from partita.models import prior_of
from partita.server.ledger import Ledger
from partita.site import audit
from partita.site.audit import HEAD, LOG, REFUSED, AuditLog, Reply
from partita.site.gate import CANNOT, Site
from partita.site.settings import site_file_text
from partita.wire.codec import encode_question
from partita.wire.messages import encode_task
from partita.wire.questions import FOREIGN, Evaluate

X = np.random.default_rng(0).normal(size=(30, 2))
Y = (X[:, 0] > 0).astype(float)


@pytest.fixture
def recipe(tmp_path):
    server = tmp_path / "server"
    (server / "sites").mkdir(parents=True)
    text = federation_file_text(["a"], "127.0.0.1:9092", ("age", "bmi"), "ill", "logistic-regression")
    (server / "federation.toml").write_text(text)
    (server / "sites" / "a.pub").write_text("a key")
    return read_server(server).recipe


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    for name in ("ca.crt", "site.key"):
        (folder / name).write_text("")
    (folder / "site.toml").write_text(site_file_text("a", "127.0.0.1:9092", ("age", "bmi"), "ill"))
    rows = [f"{age!r},{bmi!r},{ill!r}" for (age, bmi), ill in zip(X.tolist(), Y.tolist(), strict=True)]
    (folder / "data.csv").write_text("\n".join(["age,bmi,ill", *rows]) + "\n")
    return folder


def ask(site, given, kind, **changes):
    model = given.model
    prior = prior_of(model, model.hyper)
    payload = b""
    if kind == "evaluate":
        payload = encode_question(Evaluate(prior, model.hyper))
    if kind == "refine":
        (task,) = Ledger(prior, 1).dispatch([0], model.hyper)
        payload = encode_task(task)
    return site.answer(kind, {**given.greeting, "site": 0, "run": "77", "payload": payload, **changes})


def read(run):
    rows = []
    return AuditLog(run).read(rows.append), rows


def digest(content):
    return hashlib.sha256(content).hexdigest()


def log_of(run, number):
    log = AuditLog(run)
    for i in range(number):
        log.note(Reply("refine", content=b"x" * i, version=i))
    return log


def test_every_byte_that_leaves_is_in_the_log(recipe, folder):
    site = Site(folder, accepts=True)
    replies = [
        ask(site, recipe, "about"),
        ask(site, recipe, "refine"),
        ask(site, recipe, "refine", compression="float16"),
        ask(site, recipe, "evaluate"),
        ask(site, recipe, "levels"),
        ask(site, recipe, "refine", payload=b"garbage"),
        ask(site, recipe, "about", version="0.0.1"),
        ask(site, recipe, "about", recipe="{"),
        site.answer("refine", {}),
        site.answer(FOREIGN, {}),
    ]
    left = [reply["payload"] if "payload" in reply else reply["error"].encode() for reply in replies]
    summary, rows = read(folder / "run")
    assert summary.problems == []
    assert [(row["size"], row["digest"]) for row in rows] == [(len(one), digest(one)) for one in left]
    assert [row["outcome"] for row in rows] == ["sent"] * 4 + ["refused"] * 6
    assert [row["version"] for row in rows] == [None, 0, 0] + [None] * 7
    assert rows[2]["digest"] != rows[1]["digest"]
    assert {row["run"] for row in rows[:7]} == {"77"}
    assert len({row["recipe"] for row in rows[:7]}) == 1
    assert len(rows[0]["recipe"]) == 64
    assert [row["recipe"] for row in rows[7:]] == [""] * 3
    assert sum(summary.sent_bytes.values()) + summary.refused_bytes == sum(map(len, left))
    assert (folder / "run" / LOG).stat().st_mode & 0o777 == 0o600
    assert (folder / "run" / HEAD).stat().st_mode & 0o777 == 0o600
    # What left is in it by digest, never by content; and nothing of the table is.
    written = (folder / "run" / LOG).read_text()
    assert not any(repr(number) in written for number in X.ravel().tolist())


def test_a_line_is_on_disk_before_its_reply_leaves(recipe, folder, monkeypatch):
    """Whoever is killed in the moment of the flush has sent nothing, and the line is there."""
    order = []
    monkeypatch.setattr(audit.os, "fsync", lambda handle, sync=os.fsync: (sync(handle), order.append("on disk")))
    assert "payload" in ask(Site(folder, accepts=True), recipe, "about")
    assert order
    program = f"""
import os, signal
from pathlib import Path
from partita.site import audit
audit.os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
audit.AuditLog(Path({str(folder / "run")!r})).note(audit.Reply("refine", content=b"abc"))
print("left")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")
    summary, rows = read(folder / "run")
    assert (summary.lines, rows[1]["digest"], summary.problems) == (2, digest(b"abc"), [])
    # However often that happens, the log goes on.
    for _ in range(4):
        assert subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120).returncode < 0
    assert "payload" in ask(Site(folder), recipe, "about")
    summary, _ = read(folder / "run")
    assert summary.problems == []


def test_where_no_line_can_be_written_nothing_leaves(recipe, folder, monkeypatch):
    site = Site(folder, accepts=True)
    assert "payload" in ask(site, recipe, "about")
    before = (folder / "run" / LOG).read_bytes()

    def cut_short(handle, content, write=os.write):
        write(handle, content[:10])
        raise OSError(28, "No space left on device")

    def full(path, content, durable):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(audit.os, "write", cut_short)
        assert ask(site, recipe, "refine") == {"error": CANNOT}
    assert "audit.jsonl: No space left" in site.problem
    assert (folder / "run" / LOG).read_bytes() == before
    with monkeypatch.context() as patch:
        patch.setattr(audit, "replace_file", full)
        assert ask(site, recipe, "refine") == {"error": CANNOT}
    assert (folder / "run" / LOG).read_bytes() == before

    def too_late(path, content, durable, replace=audit.replace_file):
        replace(path, content, durable=durable)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(audit, "replace_file", too_late)
        assert ask(site, recipe, "refine") == {"error": CANNOT}
    assert "payload" in ask(site, recipe, "refine")
    assert read(folder / "run")[0].problems == []


@pytest.mark.parametrize("cut", [1, 2, 50, 250])
def test_a_line_that_a_kill_has_cut_off_is_told_and_the_chain_goes_on(tmp_path, cut):
    log = log_of(tmp_path, 3)
    path = tmp_path / LOG
    content = path.read_bytes()
    # As if the last line had been on its way: what tells of it is one line behind.
    log_of(tmp_path / "two", 2)
    shorter = content[:-cut]
    lines = shorter.split(b"\n")
    path.write_bytes(shorter)
    (tmp_path / HEAD).write_text(json.dumps({"lines": 2, "digest": digest(lines[1])}))
    summary, rows = read(tmp_path)
    assert (len(rows), summary.torn_bytes, summary.problems) == (2, len(lines[2]), [])
    log.note(Reply("about", content=b"12345678"))
    summary, rows = read(tmp_path)
    assert [row["outcome"] for row in rows] == ["sent", "sent", "torn", "sent"]
    assert (rows[2]["size"], rows[2]["digest"]) == (len(lines[2]), digest(lines[2]))
    assert (summary.torn, summary.torn_bytes, summary.problems) == (1, 0, [])
    assert sum(summary.sent.values()) == 3


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_is_changed_or_removed_is_noticed(data, tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    log_of(run, 6)
    path = run / LOG
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    how = data.draw(st.sampled_from(["byte", "line", "end", "swap", "twice", "all", "value"]))
    i = data.draw(st.integers(0, 5))
    if how == "byte":
        # How long lines are depends on the time.
        place = int(data.draw(st.floats(0, 1)) * (len(content) - 1))
        other = content[place] ^ data.draw(st.integers(1, 255))
        path.write_bytes(content[:place] + bytes([other]) + content[place + 1 :])
    elif how == "line":
        path.write_bytes(b"".join(lines[:i] + lines[i + 1 :]))
    elif how == "end":
        path.write_bytes(b"".join(lines[:i]))
    elif how == "swap":
        j = data.draw(st.integers(0, 5).filter(lambda j: j != i))
        lines[i], lines[j] = lines[j], lines[i]
        path.write_bytes(b"".join(lines))
    elif how == "twice":
        path.write_bytes(b"".join([*lines, lines[i]]))
    elif how == "all":
        path.unlink()
    else:
        row = {**json.loads(lines[i]), "size": 7}
        path.write_bytes(b"".join([*lines[:i], json.dumps(row).encode() + b"\n", *lines[i + 1 :]]))
    assert read(run)[0].problems


@settings(max_examples=100, deadline=None)
@given(
    log=st.binary(max_size=300)
    | st.builds(
        lambda row: json.dumps(row).encode() + b"\n",
        st.dictionaries(
            st.sampled_from(
                ["line", "time", "kind", "outcome", "size", "digest", "recipe", "run", "version", "why", "before"]
            ),
            st.none() | st.integers() | st.floats() | st.text(max_size=70) | st.just("sent"),
        ),
    ),
    head=st.none() | st.binary(max_size=60),
)
def test_whatever_is_in_the_files_is_told_and_not_crashed_by(log, head, tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    (run / LOG).write_bytes(log)
    if head is not None:
        (run / HEAD).write_bytes(head)
    summary, _ = read(run)
    assert all(line.isprintable() for line in audit.describe_summary(summary))
    with contextlib.suppress(StorageError):
        AuditLog(run).note(Reply("about"))


def test_a_log_whose_end_was_taken_away_is_not_gone_on_with(recipe, folder):
    site = Site(folder, accepts=True)
    for _ in range(3):
        assert "payload" in ask(site, recipe, "about")
    path = folder / "run" / LOG
    content = path.read_bytes()
    for wrong in (
        content[: content[:-1].rindex(b"\n") + 1],
        b"",
        content.replace(b'"line": 3', b'"line": 4'),
        b"x" * 9000,
    ):
        path.write_bytes(wrong)
        assert ask(site, recipe, "about") == {"error": CANNOT}
        assert site.problem.startswith("CorruptStorage")
        assert path.read_bytes() == wrong
    path.write_bytes(content)
    assert "payload" in ask(site, recipe, "about")
    # Without what tells of the end, lines may be missing there.
    (folder / "run" / HEAD).unlink()
    assert "audit.head is missing" in read(folder / "run")[0].problems[0]


def test_a_line_is_short_whatever_a_server_says(tmp_path):
    evil = "\x1b]0;owned\x07\n" * 10_000
    AuditLog(tmp_path).note(Reply(evil, recipe=evil, run=evil, outcome=REFUSED, why=evil))
    content = (tmp_path / LOG).read_bytes()
    assert len(content) < audit.MOST_LINE
    assert b"\x1b" not in content
    assert content.count(b"\n") == 1
    summary, (row,) = read(tmp_path)
    assert summary.problems == []
    assert len(row["kind"]) <= audit.MOST_WORD


def test_no_link_is_followed(tmp_path):
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / LOG).symlink_to(target)
    with pytest.raises(StorageError, match="is a link"):
        AuditLog(tmp_path).note(Reply("about"))
    with pytest.raises(StorageError):
        read(tmp_path)
    assert target.read_text() == "precious"
    (tmp_path / LOG).unlink()
    (tmp_path / HEAD).write_text("{")
    with pytest.raises(CorruptStorage, match="audit.head"):
        AuditLog(tmp_path).note(Reply("about"))


def test_a_person_is_shown_what_left_and_what_was_refused(recipe, folder):
    runner = CliRunner()
    assert "nothing has left this site yet" in runner.invoke(app, ["site", "audit", str(folder)]).output
    site = Site(folder, accepts=True)
    for kind in ("about", "refine", "refine", "levels"):
        ask(site, recipe, kind)
    shown = runner.invoke(app, ["site", "audit", str(folder)])
    assert shown.exit_code == 0, shown.output
    size = read(folder / "run")[1][1]["size"]
    assert f"left: refine: answers: 2, bytes: {2 * size:,}" in shown.output
    assert "refused: levels: 1, because of: answers" in shown.output
    assert "every line follows from the one before" in shown.output
    *lines, summary = map(json.loads, runner.invoke(app, ["site", "audit", str(folder), "--json"]).output.splitlines())
    assert [row["kind"] for row in lines] == ["about", "refine", "refine", "levels"]
    assert summary["sent"]["refine"] == {"answers": 2, "bytes": 2 * size}
    assert summary["digest"] == digest((folder / "run" / LOG).read_bytes().splitlines()[-1])
    path = folder / "run" / LOG
    path.write_text(path.read_text().replace('"size": 8', '"size": 9'))
    wrong = runner.invoke(app, ["site", "audit", str(folder)])
    assert wrong.exit_code == 1
    assert "PROBLEM: line 2: does not follow from the line before" in wrong.output


def test_commands_of_a_site_and_the_usual_one_without_its_name(folder, monkeypatch):
    called = []
    monkeypatch.setattr("partita.site.process.run_site", lambda path, say, accepts: called.append((path, accepts)))
    runner = CliRunner()
    for words, accepts in (
        ([str(folder)], False),
        ([str(folder), "--accept"], True),
        (["--accept", str(folder)], True),
        (["run", str(folder)], False),
    ):
        assert runner.invoke(app, ["site", *words]).exit_code == 0
        assert called.pop() == (folder, accepts)
    assert runner.invoke(app, ["site"]).exit_code == 2
