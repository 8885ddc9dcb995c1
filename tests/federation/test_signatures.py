"""Signed updates: what a site signs, what a server refuses, and what anybody can check afterwards."""

import base64
import json
import shutil
import sqlite3
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from local_fleet import Fleet, make, serve
from partita.cli import app
from partita.federation.folders import read_server
from partita.federation.signatures import SIGNATURES, Signatures, Verifier, name_run
from partita.foundation.keys import is_signed_by, read_public_key, sign, write_site_key
from partita.models import prior_of
from partita.server.journals import read_updates
from partita.wire.messages import decode_update, encode_update
from partita.wire.signing import SIGNATURE, Statement

pytest.importorskip("flwr")
ROUNDS = {"rounds": ("rounds = 20", "rounds = 4")}
SITES = ("a", "b", "c")


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    server = make(tmp_path_factory.mktemp("signed") / "server", SITES, **ROUNDS)
    with pytest.MonkeyPatch.context() as patch:
        assert serve(server, Fleet(server, SITES), patch)["state"] == "finished"
    return server


@pytest.fixture
def served(tmp_path, once):
    shutil.copytree(once.path, tmp_path / "server")
    return read_server(tmp_path / "server")


def verdicts(server):
    return [(one.fits, one.words) for one in Verifier(server).verdicts()]


def lines_of(server):
    return [json.loads(line) for line in (server.run / SIGNATURES).read_text().splitlines()]


def write_lines(server, rows):
    (server.run / SIGNATURES).write_text("".join(json.dumps(row) + "\n" for row in rows))


def verify(server, code):
    done = CliRunner().invoke(app, ["verify", str(server.path)])
    assert done.exit_code == code, done.output
    return done.output


def test_every_update_is_signed_and_anybody_can_check_it(served):
    assert verdicts(served) == [(True, "signed with its key")] * 12
    assert len(read_updates(served.run)) == 12
    assert "all 12 updates of sites are signed by them" in verify(served, 0)
    # With nothing but the line and the public key.
    row = lines_of(served)[0]
    told = Statement.of(
        "refine", row["run"], row["site"], row["recipe"], row["version"], base64.b64decode(row["payload"])
    )
    key = read_public_key(served.public_key(row["site"]))
    assert is_signed_by(key, told.signed, base64.b64decode(row["signature"]))
    assert row["run"] == name_run(served.run)


def refuse_after(server, monkeypatch, change):
    """A run in which what b sends is changed: b's words at the server, and b's updates."""
    fleet = Fleet(server, SITES, change=lambda name, kind, reply: change(kind, reply) if name == "b" else reply)
    state = serve(server, fleet, monkeypatch)
    (site,) = [row for row in state["sites"] if row["site"] == "b"]
    return state, site


def test_a_forged_signature_is_refused_and_nothing_changes(tmp_path, monkeypatch):
    server = make(tmp_path / "server", SITES, minimum=("# minimum = 2", "minimum = 2\ngather = 0.1"), **ROUNDS)
    write_site_key(tmp_path / "other.key", tmp_path / "other.pub")

    def forge(kind, reply):
        return {**reply, SIGNATURE: sign(tmp_path / "other.key", b"whatever")} if kind == "refine" else reply

    state, site = refuse_after(server, monkeypatch, forge)
    assert state["state"] == "finished"
    assert "is not signed by its key" in site["problem"]
    assert site["updates"] == 0
    # Only those of the others are in the journal, and only theirs are kept.
    assert {number for _, number, _ in read_updates(server.run)} == {0, 2}
    assert {row["site"] for row in lines_of(server)} == {"a", "c"}
    verify(server, 0)


@pytest.mark.parametrize("given", ["nothing", "text", "too long"])
def test_an_answer_without_a_signature_is_refused(tmp_path, monkeypatch, given):
    server = make(tmp_path / "server", SITES, minimum=("# minimum = 2", "minimum = 2\ngather = 0.1"), **ROUNDS)
    kinds = {"nothing": {}, "text": {SIGNATURE: "AAAA"}, "too long": {SIGNATURE: b"0" * 10_000}}

    def strip(kind, reply):
        rest = {name: value for name, value in reply.items() if name != SIGNATURE}
        return {**rest, **kinds[given]}

    state, site = refuse_after(server, monkeypatch, strip)
    assert state["state"] == "finished"
    assert "its answer is not signed" in site["problem"]
    assert site["updates"] == 0


def test_a_signature_of_another_task_is_refused(tmp_path, monkeypatch):
    """An answer with its signature, both as the site has sent them, to the task before."""
    server = make(tmp_path / "server", SITES, minimum=("# minimum = 2", "minimum = 2\ngather = 0.1"), **ROUNDS)
    sent = []

    def replay(kind, reply):
        if kind != "refine":
            return reply
        sent.append(reply)
        return sent[0]

    state, site = refuse_after(server, monkeypatch, replay)
    assert state["state"] == "finished"
    assert "is signed for another task" in site["problem"]
    assert site["updates"] == 1
    assert [version for _, number, version in read_updates(server.run) if number == 1] == [0]
    assert "all" in verify(server, 0)


def test_what_was_signed_for_another_run_site_or_recipe_does_not_fit(tmp_path, served, monkeypatch):
    signatures = Signatures(served)
    for row in lines_of(served):
        payload, signature = base64.b64decode(row["payload"]), base64.b64decode(row["signature"])
        assert signatures.check(row["site"], "refine", row["version"], payload, signature) == ""
        for site, kind, version, content in (
            ("c" if row["site"] == "a" else "a", "refine", row["version"], payload),
            (row["site"], "evaluate", row["version"], payload),
            (row["site"], "refine", row["version"] + 1, payload),
            (row["site"], "refine", row["version"], payload[:-1] + b"\x01"),
        ):
            assert "not signed by its key" in signatures.check(site, kind, version, content, signature)
    (served.run / "name.json").unlink()
    other = Signatures(served)
    assert "not signed by its key" in other.check(row["site"], "refine", row["version"], payload, signature)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda row: {**row, "signature": base64.b64encode(b"garbage").decode()}, "its signature does not fit"),
        (lambda row: {**row, "signature": "no base64"}, "its signature does not fit"),
        (lambda row: {**row, "run": "another"}, "its signature does not fit"),
        (lambda row: {**row, "digest": "0" * 64}, "its signature does not fit"),
        (lambda row: {**row, "key": "SHA256:unknown"}, "which is no key of this site"),
        (lambda row: {**row, "payload": base64.b64encode(b"other").decode()}, "its bytes are not what was signed"),
        (lambda row: {**row, "site": "nobody"}, "it is not signed"),
    ],
)
def test_lines_that_were_changed_are_found(served, change, words):
    *rest, last = lines_of(served)
    write_lines(served, [*rest, change(last)])
    found = verdicts(served)
    assert [fits for fits, _ in found[:-1]] == [True] * 11
    assert not found[-1][0]
    assert words in found[-1][1]
    assert "PROBLEM: update 12 of c, for task 9" in verify(served, 1)


def test_another_update_in_the_journal_than_was_signed_is_found(served):
    """Lines of two tasks of one site swapped, each with its own signature: versions are signed."""
    rows = lines_of(served)
    first, later = (next(i for i, row in enumerate(rows) if row["site"] == "a" and row["version"] == v) for v in (0, 9))
    rows[first]["version"], rows[later]["version"] = 9, 0
    write_lines(served, rows)
    assert [fits for fits, _ in verdicts(served)].count(False) == 2


def test_a_journal_from_before_signatures_is_read_and_told(served):
    (served.run / SIGNATURES).unlink()
    assert verdicts(served) == [(False, "it is not signed")] * 12
    assert "a: 4 updates: it is not signed" in verify(served, 1)


def test_a_line_that_a_kill_has_cut_off_is_written_over(tmp_path, served, monkeypatch):
    with (served.run / SIGNATURES).open("a") as stream:
        stream.write('{"site": "a", "run"')
    text = served.path / "federation.toml"
    text.write_text(text.read_text().replace("rounds = 4", "rounds = 5"))
    assert serve(served, Fleet(served, SITES), monkeypatch)["state"] == "finished"
    assert verdicts(served) == [(True, "signed with its key")] * 15


@pytest.mark.parametrize("line", [b"{", b'{"site": "a"}', b"[]", b"\xff\xfe", b"x" * 100_000])
def test_whatever_is_in_the_file_is_told_and_not_crashed_by(served, line):
    (served.run / SIGNATURES).write_bytes(line + b"\n")
    done = CliRunner().invoke(app, ["verify", str(served.path)])
    assert "signatures.jsonl" in str(done.exception)


def test_factors_that_are_sent_are_compared_with_the_journal_number_by_number(served):
    """Also without the bytes that were sent: the journal has the same."""
    write_lines(served, [{**row, "payload": None} for row in lines_of(served)])
    assert verdicts(served) == [(True, "signed with its key")] * 12
    with sqlite3.connect(served.run / "journal.sqlite") as database:
        (payload,) = database.execute("SELECT payload FROM arrivals WHERE number = 5").fetchone()
        # The first bit of the change, behind the header.
        first = 8 + int.from_bytes(payload[:8], "little")
        changed = payload[:first] + bytes([payload[first] ^ 1]) + payload[first + 1 :]
        database.execute("UPDATE arrivals SET payload = ? WHERE number = 5", (changed,))
    assert verdicts(served)[4] == (False, "the journal has other numbers than were signed")
    assert [fits for fits, _ in verdicts(served)].count(True) == 11


def test_messages_are_compared_as_far_as_the_journal_has_what_was_sent(tmp_path, monkeypatch):
    server = make(
        tmp_path / "server", SITES, posterior=("[schedule]", 'posterior = "mean-field"\n[schedule]'), **ROUNDS
    )
    assert serve(server, Fleet(server, SITES), monkeypatch)["state"] == "finished"
    assert verdicts(server) == [(True, "signed with its key")] * 12
    rows = lines_of(server)
    write_lines(server, [{**row, "payload": None} for row in rows])
    assert verdicts(server)[-1] == (True, "signed with its key; its bytes are not kept")
    # A number that the site has sent, and is in the journal as it was.
    write_lines(server, rows)
    with sqlite3.connect(server.run / "journal.sqlite") as database:
        (payload,) = database.execute("SELECT payload FROM arrivals WHERE number = 5").fetchone()
        change = decode_update(1, 3, payload, prior_of(server.recipe.model, server.recipe.model.hyper))
        changed = encode_update(replace(change, expected_log_prob=change.expected_log_prob + 1))
        database.execute("UPDATE arrivals SET payload = ? WHERE number = 5", (changed,))
    assert verdicts(server)[4] == (False, "the journal has other numbers than were signed")
