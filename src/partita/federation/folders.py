"""What lies where: the folder of a server, the folders of its sites, and what their files say."""

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from partita.config import Reader, read_tables
from partita.errors import ConfigError, InputError, StorageError
from partita.federation.keys import write_certificates, write_secret, write_site_key
from partita.federation.recipe import KEYS, SECTIONS, Recipe, check_names
from partita.foundation.checks import check_count, check_one_of, check_positive
from partita.foundation.files import is_file, make_folder, open_private
from partita.server.rules.limits import Limits
from partita.site.policy import Policy
from partita.wire.messages import Compression

FEDERATION, SITE = "federation.toml", "site.toml"


@dataclass(frozen=True)
class ServerSettings:
    """Where the server listens, and how long it waits.

    Args:
        address: host:port, one for all.
        sites: their names, in the order in which the run counts them.
        minimum: sites that have to be there before the run begins; all of them, if not given.
        timeout: seconds that a site may take for one task.
        patience: seconds without any answer, after which the run stops, to be resumed.
        gather: seconds that are waited for all sites once the minimum is there.
        compression: "float16" halves what is sent of float32 densities, and keeps three digits of them.
    """

    address: str = "127.0.0.1:9092"
    sites: tuple[str, ...] = ()
    minimum: int | None = None
    timeout: float = 600.0
    patience: float = 1800.0
    gather: float = 60.0
    compression: Compression = "none"

    def __post_init__(self) -> None:
        check_positive("", timeout=self.timeout, patience=self.patience, gather=self.gather)
        if self.minimum is not None:
            check_count("", minimum=self.minimum)
            if self.minimum > len(self.sites):
                raise InputError(f"minimum: {self.minimum}, and there are {len(self.sites)} sites")
        if self.patience <= self.timeout:
            raise InputError(f"patience: expected more than the timeout, {self.timeout:g} s, got {self.patience:g}")
        check_one_of("", get_args(Compression), compression=self.compression)
        split_address(self.address)
        check_names(self.sites)


@dataclass(frozen=True)
class ServerFolder:
    """A server's folder, read."""

    path: Path
    recipe: Recipe
    limits: Limits
    server: ServerSettings

    @property
    def sites(self) -> tuple[str, ...]:
        return self.server.sites

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def requests(self) -> Path:
        return self.run / "requests"

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    def public_key(self, site: str) -> Path:
        return self.path / "sites" / f"{site}.pub"

    @property
    def result(self) -> Path:
        return self.run / "result.safetensors"

    @property
    def has_run(self) -> bool:
        return (self.run / "journal.sqlite").exists()


@dataclass(frozen=True)
class SiteSettings:
    """A site's own file: who it is, whom it answers and how far, where its data are, which of its columns is which."""

    path: Path
    name: str
    server: str
    data: Path
    certificate: Path
    key: Path
    columns: dict[str, str]
    policy: Policy


def read_server(path: Path) -> ServerFolder:
    """A server's folder, with every complaint naming file, line and key."""
    reader, tables = _tables(path, FEDERATION, "partita new-federation makes one")
    reader.sections(tables, (*SECTIONS, "limits", "server"), KEYS)
    server = dict(tables.get("server", {}))
    if not isinstance(server.get("sites"), list):
        raise reader.error("server", "sites", 'expected a list of names, such as ["a", "b"]')
    folder = ServerFolder(
        path=path.resolve(),
        recipe=Recipe.read(reader, tables),
        limits=reader.build("limits", Limits, tables.get("limits", {})),
        server=reader.build("server", ServerSettings, {**server, "sites": tuple(server["sites"])}),
    )
    # Said now rather than when all sites have come.
    _ = folder.recipe.model
    for site in folder.sites:
        if not is_file(folder.public_key(site)):
            raise reader.error("server", "sites", f"{site}: its public key is missing: {folder.public_key(site)}")
    return folder


def read_site(path: Path) -> SiteSettings:
    reader, tables = _tables(path, SITE, "ask whoever runs the server for yours")
    reader.sections(tables, ("columns", "policy"), ("name", "server", "data", "certificate", "key"))
    for key in ("name", "server", "data", "certificate", "key"):
        if not isinstance(tables.get(key), str):
            raise reader.error("", key, "is missing, or not in quotes")
    columns = tables.get("columns", {})
    for key, value in columns.items():
        if not isinstance(value, str):
            raise reader.error("columns", key, f"expected your name of that column, in quotes, got {value!r}")
    split_address(tables["server"])
    base = path.resolve()
    settings = SiteSettings(
        path=base,
        name=tables["name"],
        server=tables["server"],
        data=base / tables["data"],
        certificate=base / tables["certificate"],
        key=base / tables["key"],
        columns=columns,
        policy=reader.build("policy", Policy, tables.get("policy", {})),
    )
    for key in ("certificate", "key"):
        if not is_file(getattr(settings, key)):
            raise reader.error("", key, f"no such file: {getattr(settings, key)}")
    return settings


def _tables(path: Path, name: str, help: str) -> tuple[Reader, dict[str, Any]]:
    # What is there, but is no file, is for whoever reads it to tell.
    if not os.path.lexists(path / name):
        raise ConfigError(f"{path}: has no {name}: {help}")
    return read_tables(path / name)


def split_address(address: str) -> tuple[str, int]:
    found = re.fullmatch(r"([A-Za-z0-9.-]+):([0-9]{1,5})", address)
    if found is None or not 0 < int(found[2]) < 65536:
        raise InputError(f"address: expected host:port, a name or an IPv4 address, got {address!r}")
    return found[1], int(found[2])


@contextmanager
def private(folder: Path) -> Iterator[None]:
    """Make a folder that is its owner's alone, as is what this process, and those it starts, write meanwhile."""
    before = os.umask(0o077)
    try:
        make_folder(folder)
        # One that an earlier version has made may be open to everybody.
        folder.chmod(0o700)
        yield
    finally:
        os.umask(before)


@contextmanager
def held(path: Path, patience: float = 1.0) -> Iterator[None]:
    """Hold a place for this process, whose number is in the file; whoever comes second is told, or waits a while."""
    make_folder(path.parent)
    until = time.monotonic() + patience
    # Whoever can open the file can hold it.
    handle = _opened(path, os.O_RDWR | os.O_CREAT)
    try:
        while not _locked(handle, fcntl.LOCK_EX):
            if time.monotonic() > until:
                number = _process(handle)
                raise StorageError(f"{path.parent}: process {number} is at work here: stop it first")
            time.sleep(0.2)
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def holder(path: Path) -> int | None:
    """The number of the process that holds a place, if one does."""
    try:
        handle = _opened(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        # Shared: those who only look do not take each other for holders.
        return None if _locked(handle, fcntl.LOCK_SH) else _process(handle)
    finally:
        os.close(handle)


def _opened(path: Path, flags: int) -> int:
    try:
        return open_private(path, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from None


def _process(handle: int) -> int:
    """The number in a file that a process holds; 0, if there is none."""
    digits = os.pread(handle, 20, 0)
    return int(digits) if digits.isdigit() else 0


def _locked(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def new_federation(
    path: Path, sites: Sequence[str], address: str, features: Sequence[str], target: str, model: str
) -> list[Path]:
    """Make the folder of a server and one for every site; what was made, to be told."""
    check_names(sites)
    path = path.resolve()
    if '"' in str(path) or "\\" in str(path):
        raise InputError(f"{path}: use a folder without quotes and backslashes in its name")
    if path.exists() and any(path.iterdir()):
        raise InputError(f"{path}: is not empty: use another folder")
    made = path.with_name(f".{path.name}.new")
    if made.is_symlink() or made.is_file():
        raise InputError(f"{made}: is in the way: delete it")
    shutil.rmtree(made, ignore_errors=True)
    try:
        with private(made):
            _write_federation(made, sites, address, features, target, model)
        if path.exists():
            path.rmdir()
        made.rename(path)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return [path / FEDERATION, *(path / "for-sites" / site for site in sites)]


def _write_federation(
    made: Path, sites: Sequence[str], address: str, features: Sequence[str], target: str, model: str
) -> None:
    host, _ = split_address(address)
    write_certificates(made / "keys", list(dict.fromkeys([host, "localhost", "127.0.0.1"])))
    write_secret(made / "keys" / "secret")
    texts = {FEDERATION: _federation_text(sites, address, features, target, model), "README.md": README}
    for site in sites:
        folder = made / "for-sites" / site
        write_site_key(folder / "site.key", made / "sites" / f"{site}.pub")
        shutil.copyfile(made / "keys" / "ca.crt", folder / "ca.crt")
        texts[f"for-sites/{site}/{SITE}"] = _site_text(site, address, features, target)
    for name, text in texts.items():
        (made / name).write_text(text, encoding="utf-8")
    read_server(made)


def _toml(value: Any) -> str:
    """Strings and lists of them are written as in JSON, but for its escapes."""
    return json.dumps(value, ensure_ascii=False)


def _federation_text(sites: Sequence[str], address: str, features: Sequence[str], target: str, model: str) -> str:
    return f"""\
# Sites are told these sections with every task. Their data stay where they are.
[columns]
features = {_toml(list(features))}
target = {_toml(target)}
# Subtracted from each feature, and what is left divided by: the same numbers at every site.
# centre = {json.dumps([0.0] * len(features))}
# scale = {json.dumps([1.0] * len(features))}
# For models of classes, 0, 1, …: how many.
# classes = 2

[model]
name = {_toml(model)}

[schedule]
name = "synchronous"
rounds = 20

# What updates may do before they are held back, or their site is not asked again; see docs/server.md.
[limits]
# Nats by which one update may move the posterior; the first ones of large tables and of networks are taken in parts.
change = 100.0
# Nats by which all updates of one site may move it over the run, each on its own; then the site is quarantined.
total = 10000.0
strikes = 3
# Updates of others that may have been folded since a site was asked.
staleness = {max(100, 10 * len(sites))}

[server]
address = {_toml(address)}
# Their public keys are sites/NAME.pub. All sites are listed before the run begins.
sites = {_toml(list(sites))}
# Begin as soon as so many sites are there; the others may come later. All of them, if left out.
# minimum = {max(1, len(sites) - 1)}
timeout = 600.0
patience = 1800.0

"""


def _site_text(site: str, address: str, features: Sequence[str], target: str) -> str:
    example = _toml(features[0] if features else target)
    return f"""\
name = {_toml(site)}
server = {_toml(address)}
# A CSV file with a header, which never leaves this machine.
data = "data.csv"
certificate = "ca.crt"
key = "site.key"

# What this site is willing to answer, whatever the server asks.
[policy]
fewest_rows = 10
most_parameters = 10000
most_tasks = 1000
most_questions = 50

# Only where your names of columns differ from the federation's:
[columns]
# {example} = "YOUR_NAME"
"""


README = """\
# A federation

This folder is the server's. `for-sites/NAME` is the folder of one site: carry it there (it holds that site's private
key) and delete it here.

    pip install '.[flower]'         # in a clone of Partita's repository, here and at every site

At every site: put the table where `site.toml` says, look through its [policy], then

    partita site FOLDER             # until Ctrl-C
    partita accept FOLDER           # what the server proposes, once: columns, model, solver

At the server: look through `federation.toml`, then

    partita serve FOLDER            # until the run is finished; Ctrl-C or `partita stop FOLDER` ends it before
    partita resume FOLDER           # go on, also after a crash
    partita status FOLDER           # sites, rounds, bytes; --json for machines
    partita retire FOLDER SITE      # divide a site's factor out; the others refine

The posterior is `run/result.safetensors`: `partita.load` reads it.

What is safe and what is not. Connections are encrypted, and the server answers only who signs with the key of one of
its sites; runs can be started only on the server's own machine, by whoever can read `keys/secret`. A site runs nothing
that the server sends: it answers questions under the one recipe that its person has accepted. Factors tell about data:
a federation is not private by itself.
"""
