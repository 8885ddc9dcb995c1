"""Keys of sites: put in each other's place, revoked, and never let in again."""

import json
import shutil

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import partita as pt
from local_fleet import Fleet, make, serve
from partita.cli import app
from partita.errors import ConfigError, CorruptStorage, InputError, StorageError
from partita.federation.folders import read_server
from partita.federation.link import Gate, is_signed
from partita.federation.membership import revoke, rotate
from partita.federation.register import REGISTER, Register
from partita.federation.signatures import Verifier
from partita.foundation.keys import read_own_public_key, read_public_key, write_site_key
from partita.server.journals import read_updates
from partita.site.rotation import FILE, adopt_key, next_key, rotate_key
from partita.site.settings import read_site

pytest.importorskip("flwr")
SITES = ("a", "b", "c")
ROUNDS = {"rounds": ("rounds = 20", "rounds = 2")}


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return make(tmp_path_factory.mktemp("keys") / "server", SITES, **ROUNDS)


@pytest.fixture
def server(tmp_path, once):
    shutil.copytree(once.path, tmp_path / "server")
    return read_server(tmp_path / "server")


def site_of(server, name):
    return server.path / "for-sites" / name


def run(*arguments, code=0):
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def test_a_key_is_put_in_anothers_place_and_its_private_half_stays(server):
    folder = site_of(server, "a")
    before = read_public_key(server.public_key("a"))
    run("site", "rotate", folder)
    told = (folder / FILE).read_text()
    # What is handed on has no private key in it, and the site goes on with the old one.
    assert "PRIVATE" not in told
    assert (folder / "site.key.next").stat().st_mode & 0o777 == 0o600
    assert read_own_public_key(folder / "site.key") == before
    # Again: the same next key.
    assert rotate_key(folder).exists()
    assert json.loads((folder / FILE).read_text())["new"] == json.loads(told)["new"]
    said = run("rotate", server.path, "a", folder / FILE)
    assert "its key is SHA256:" in said
    after = server.members.current()["a"]
    assert after == read_own_public_key(next_key(read_site(folder))) != before
    assert server.members.known_keys("a") == {after: "its key", before: "an earlier key"}
    adopt_key(read_site(folder))
    assert read_own_public_key(folder / "site.key") == after
    assert sorted(path.name for path in folder.iterdir()) == ["ca.crt", "data.csv", "site.key", "site.toml"]


@pytest.mark.parametrize("wrong", ["other old key", "not by old", "not by new", "another site", "again", "a known key"])
def test_a_rotation_that_is_not_the_sites_own_is_refused(server, tmp_path, wrong):
    folder, other = site_of(server, "a"), site_of(server, "b")
    file, name = rotate_key(folder), "a"
    row = json.loads(file.read_text())
    if wrong == "other old key":
        # Whole, and signed by whoever has b's key.
        change_name(other, "a")
        file = rotate_key(other)
    elif wrong in ("not by old", "not by new"):
        key = wrong.replace("not ", "").replace(" ", "_")
        theirs = json.loads(rotate_key(other).read_text())
        file.write_text(json.dumps({**row, key: theirs[key]}))
    elif wrong == "another site":
        name = "b"
    elif wrong == "again":
        rotate(server.path, "a", file)
        adopt_key_of(folder, file)
    else:
        shutil.copy(other / "site.key", folder / "site.key.next")
        file = rotate_key(folder)
    before = server.public_key(name).read_bytes()
    with pytest.raises(InputError):
        rotate(server.path, name, file)
    assert server.public_key(name).read_bytes() == before


def change_name(folder, name):
    text = (folder / "site.toml").read_text()
    (folder / "site.toml").write_text(text.replace(f'name = "{folder.name}"', f'name = "{name}"'))


def adopt_key_of(folder, file):
    """The site goes on, and somebody has kept the file."""
    kept = file.read_bytes()
    adopt_key(read_site(folder))
    file.write_bytes(kept)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"site": 1}', b"[" * 100_000])
def test_files_that_are_no_rotation(server, tmp_path, content):
    file = tmp_path / "rotation.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="is nothing that"):
        rotate(server.path, "a", file)
    with pytest.raises(StorageError):
        rotate(server.path, "a", tmp_path / "missing")


def test_a_revoked_key_opens_nothing_any_more_whatever_is_tried(server, tmp_path):
    folder = site_of(server, "b")
    key = read_public_key(server.public_key("b"))
    file = rotate_key(folder)
    gate = Gate(None, None, 1, "token", server.members.current, 1000)
    assert key in gate.keys().values()
    assert "is revoked and opens nothing any more" in run("revoke", server.path, "b")
    # At once, and after a restart.
    assert key not in gate.keys().values()
    assert key not in read_server(server.path).members.current().values()
    with pytest.raises(InputError, match="its key was revoked"):
        rotate(server.path, "b", file)
    with pytest.raises(InputError, match="its key was revoked"):
        revoke(server.path, "b", False)
    # Nor in the place of another site's, nor under a third name.
    public = server.public_key("b").read_bytes()
    server.public_key("c").write_bytes(public)
    assert set(read_server(server.path).members.current()) == {"a"}
    # A new one, put there by hand, does.
    write_site_key(tmp_path / "new.key", tmp_path / "new.pub")
    server.public_key("b").write_bytes((tmp_path / "new.pub").read_bytes())
    assert set(read_server(server.path).members.current()) == {"a", "b"}


def test_a_revoked_key_as_the_next_one_is_refused(server):
    folder = site_of(server, "a")
    revoke(server.path, "b", False)
    shutil.copy(site_of(server, "b") / "site.key", folder / "site.key.next")
    with pytest.raises(InputError, match="a new one has to be new"):
        rotate(server.path, "a", rotate_key(folder))


def test_a_register_that_cannot_be_read_lets_nobody_in(server):
    assert server.members.current()
    (server.public_keys / REGISTER).write_text("garbage\n")
    with pytest.raises(CorruptStorage, match="line 1"):
        server.members.current()
    assert not is_signed({}, server.members.current)


def test_a_line_that_was_cut_off_is_written_over(server):
    register = Register(server.public_keys)
    revoke(server.path, "b", False)
    with (server.public_keys / REGISTER).open("a") as stream:
        stream.write('{"time": 1.0, "event": "revo')
    assert [entry.event for entry in register.read()] == ["revoked"]
    revoke(server.path, "c", False)
    assert [(entry.event, entry.site) for entry in register.read()] == [("revoked", "b"), ("revoked", "c")]


@pytest.mark.filterwarnings("ignore::partita.errors.QuarantineWarning")
@pytest.mark.parametrize("forget", [False, True])
def test_a_site_whose_key_is_revoked_is_not_asked_again_and_its_factor_stays_or_goes(server, monkeypatch, forget):
    def close(kind, done):
        """Once something of it has been taken."""
        begun = server.has_run and any(site == 1 for _, site, _ in read_updates(server.run))
        if begun and not Register(server.public_keys).read():
            revoke(server.path, "b", forget)

    file = server.path / "federation.toml"
    file.write_text(file.read_text().replace("rounds = 2", "rounds = 5"))
    server = read_server(server.path)
    state = serve(server, Fleet(server, SITES, close), monkeypatch)
    assert state["state"] == "finished", state
    updates = {row["site"]: row["updates"] for row in state["sites"]}
    assert updates["b"] < updates["a"]
    shown = run("status", server.path)
    assert ("b: retired" if forget else "b: quarantined: its key was revoked") in shown
    factor = pt.load(server.result).factors[1]
    assert any(np.any(leaf) for leaf in jax.tree.leaves(factor)) is not forget
    # What came before is still known to be the site's.
    found = {one.words for one in Verifier(server).verdicts() if one.site == "b"}
    assert found == {"signed with a key that was revoked later"}


def test_a_run_goes_on_when_a_site_comes_with_its_next_key(server, monkeypatch):
    """The old connection is gone with what was asked at it: the site is asked again at the new one."""
    folder, fleet = site_of(server, "b"), None

    def take(kind, done):
        if done == 4 and next_key(read_site(folder)).exists() is False and len(fleet.nodes) == 3:
            rotate(server.path, "b", rotate_key(folder))
            adopt_key(read_site(folder))
            fleet.leave("b")
            fleet.come("b")

    fleet = Fleet(server, SITES, take)
    state = serve(server, fleet, monkeypatch)
    assert state["state"] == "finished", state
    found = [one.words for one in Verifier(server).verdicts() if one.site == "b"]
    assert found[0] == "signed with an earlier key"
    assert all(one.fits for one in Verifier(server).verdicts())
