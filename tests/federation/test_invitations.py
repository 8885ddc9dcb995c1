"""Sites that are invited: who may be, and that they become part of the run while it goes on."""

import shutil
import time

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import partita as pt
from local_fleet import Fleet, make, serve, table, write_data
from partita.cli import app
from partita.errors import InputError, StorageError
from partita.federation.folders import read_server
from partita.federation.membership import invite, revoke
from partita.federation.signatures import Verifier
from partita.federation.state import Requests, read_run_names, request
from partita.federation.status import read_status
from partita.server import storage
from partita.server.journals import read_notices
from partita.site.settings import read_site

pytest.importorskip("flwr")
ROUNDS = {"rounds": ("rounds = 20", "rounds = 40")}
SITES = ("a", "b")


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return make(tmp_path_factory.mktemp("invitations") / "server", SITES, **ROUNDS)


@pytest.fixture
def server(tmp_path, once):
    shutil.copytree(once.path, tmp_path / "server")
    return read_server(tmp_path / "server")


class Growing(Fleet):
    """A fleet to which more sites come, each once so many tasks were answered; tasks are slow until they are there."""

    def __init__(self, server, names, later):
        super().__init__(server, names, self._wait)
        self._server_folder, self._later, self._waits, self._about = server, dict(later), set(), set()
        self._change = self._note

    def _note(self, name, kind, reply):
        self._about.add(name)
        return reply

    def _wait(self, kind, done):
        for name, at in list(self._later.items()):
            if done >= at:
                del self._later[name]
                if name not in self._server_folder.members.names:
                    invite(self._server_folder.path, name)
                    write_data(self._server_folder.path / "for-sites" / name)
                self.come(name)
                self._waits.add(name)
        if kind == "refine" and self._waits - self._about:
            time.sleep(0.05)


NO_NAMES = [
    "",
    "a",
    "b",
    "../d",
    "d/e",
    "d e",
    ".d",
    "d\n",
    "d\x1b[2J",
    "d" * 41,
    "-d",
    "__d",
    "d.e",
    "n\u043erth",
    "\u00e9",
    "\u0663",
]


@pytest.mark.parametrize("name", NO_NAMES)
def test_names_that_cannot_be_or_are_there_are_refused(server, name):
    before = sorted(server.path.rglob("*"))
    with pytest.raises(InputError):
        invite(server.path, name)
    assert [path for path in sorted(server.path.rglob("*")) if path.name != "register.lock"] == before


def test_a_site_is_invited_once_and_has_all_that_the_others_have(server):
    done = CliRunner().invoke(app, ["invite", str(server.path), "d"])
    assert done.exit_code == 0, done.exception
    folder = server.path / "for-sites" / "d"
    given = {path.name for path in (folder.parent / "a").iterdir()}
    assert {path.name for path in folder.iterdir()} == given - {"data.csv"}
    assert (folder / "site.key").stat().st_mode & 0o777 == 0o600
    settings = read_site(folder)
    assert (settings.name, settings.server) == ("d", server.server.address)
    assert server.members.names == ("a", "b", "d")
    assert "d" in server.members.current()
    with pytest.raises(InputError, match="there is one of that name already"):
        invite(server.path, "d")
    # Nor a name whose key was revoked.
    revoke(server.path, "d", False)
    assert "d" not in read_server(server.path).members.current()
    with pytest.raises(InputError, match="there is one of that name already"):
        invite(server.path, "d")


def test_what_an_earlier_attempt_has_left_is_told(server):
    (server.path / "sites" / "d.pub").write_text("half a key")
    with pytest.raises(InputError, match="is in the way"):
        invite(server.path, "d")


def test_requests_wait_for_a_site_that_has_not_joined(server):
    invite(server.path, "d")
    request(server, "d", "retired")
    requests = Requests(server)
    assert requests(["a", "b"]) == []
    assert requests(["a", "b"]) == []
    assert [(notice.site, notice.kind) for notice in requests(["a", "b", "d"])] == [(2, "retired")]


def fit_whole(names):
    shards = [table(name) for name in names]
    return pt.fit(pt.models.LogisticRegression(features=2), shards, schedule=pt.schedules.Synchronous(rounds=80))


def test_invited_sites_join_and_the_run_ends_where_one_with_all_of_them_does(server, monkeypatch):
    fleet = Growing(server, SITES, {"d": 6, "e": 20})
    state = serve(server, fleet, monkeypatch)
    assert state["state"] == "finished", state
    assert read_run_names(server) == ("a", "b", "d", "e")
    updates = {row["site"]: row["updates"] for row in state["sites"]}
    assert 40 == updates["a"] > updates["d"] > updates["e"] > 5, updates
    found, whole = pt.load(server.result), fit_whole("abde")
    np.testing.assert_allclose(found.posterior.location, whole.posterior.location, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.posterior.precision, whole.posterior.precision, rtol=1e-6, atol=1e-6)
    assert all(one.fits for one in Verifier(server).verdicts())
    assert [row["site"] for row in read_status(server)["sites"]] == list("abde")
    # Again: the journal is replayed, and nothing is asked.
    digest, done = found.fingerprint, fleet.done
    assert serve(server, Fleet(server, "abde"), monkeypatch)["state"] == "finished"
    assert pt.load(server.result).fingerprint == digest
    assert fleet.done == done


@pytest.mark.parametrize("after", [3, 5])
def test_a_server_that_is_stopped_while_a_site_joins_goes_on_with_it(server, monkeypatch, after):
    """At the notice itself, and at what follows: each fold leads to the posterior that the journal says."""
    left = [after]

    def stop(place):
        if place == "after commit" and any(one.kind == "joined" for one in read_notices(server.run)):
            left[0] -= 1
            if left[0] == 0:
                raise StorageError("stopped here")

    monkeypatch.setattr(storage, "failpoint", stop)
    fleet = Growing(server, SITES, {"d": 6})
    state = serve(server, fleet, monkeypatch)
    assert (state["state"], "stopped here" in state["reason"]) == ("failed", True)
    monkeypatch.setattr(storage, "failpoint", None)
    assert [one.reason for one in read_notices(server.run) if one.kind == "joined"] == ["d"]
    state = serve(server, Fleet(server, "abd"), monkeypatch)
    assert state["state"] == "finished", state
    assert [one.reason for one in read_notices(server.run) if one.kind == "joined"] == ["d"]
    found = pt.load(server.result)
    np.testing.assert_allclose(found.posterior.location, fit_whole("abd").posterior.location, rtol=1e-6, atol=1e-6)
    assert len(found.factors) == 3


def test_a_site_that_joins_and_cannot_work_any_more_is_away(server, monkeypatch):
    """And one that was invited and never comes holds up nobody."""
    invite(server.path, "never")
    fleet = Growing(server, SITES, {"d": 6})
    fleet._change = lambda name, kind, reply: fleet._note(
        name, kind, {"error": "broken"} if name == "d" and kind == "refine" else reply
    )
    state = serve(server, fleet, monkeypatch)
    assert state["state"] == "finished", state
    rows = {row["site"]: row for row in state["sites"]}
    assert rows["d"]["updates"] == 0
    assert "broken" in rows["d"]["problem"]
    assert rows["never"]["problem"] == "has not been here yet"
    found = pt.load(server.result)
    assert len(found.factors) == 3
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(found.factors[2]))
    np.testing.assert_allclose(found.posterior.location, fit_whole("ab").posterior.location, rtol=1e-6, atol=1e-6)
