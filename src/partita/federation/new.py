"""`partita new-federation`: the folder of a server and one for every site, with keys, certificates and their files."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partita.errors import InputError
from partita.federation.folders import FEDERATION, read_server
from partita.foundation.keys import write_certificates, write_secret, write_site_key
from partita.foundation.locks import private_folder
from partita.foundation.network import split_address
from partita.models import REGISTRY as MODELS
from partita.site.settings import SITE, site_file_text
from partita.wire.naming import check_site_names


def make_federation(
    path: Path, sites: Sequence[str], address: str, features: Sequence[str], target: str | None, model: str
) -> list[Path]:
    """Make the folder of a server and one for every site; what was made, to be told. Not all models have a target."""
    check_site_names(sites)
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
        with private_folder(made):
            _write_federation(made, sites, address, features, target, model)
        if path.exists():
            path.rmdir()
        made.rename(path)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return [path / FEDERATION, *(path / "for-sites" / site for site in sites)]


def _write_federation(
    made: Path, sites: Sequence[str], address: str, features: Sequence[str], target: str | None, model: str
) -> None:
    host, _ = split_address(address)
    write_certificates(made / "keys", list(dict.fromkeys([host, "localhost", "127.0.0.1"])))
    write_secret(made / "keys" / "secret")
    texts = {FEDERATION: federation_file_text(sites, address, features, target, model), "README.md": README}
    for site in sites:
        folder = made / "for-sites" / site
        write_site_key(folder / "site.key", made / "sites" / f"{site}.pub")
        shutil.copyfile(made / "keys" / "ca.crt", folder / "ca.crt")
        texts[f"for-sites/{site}/{SITE}"] = site_file_text(site, address, features, target)
    for name, text in texts.items():
        (made / name).write_text(text, encoding="utf-8")
    read_server(made)


def _toml(value: Any) -> str:
    """Strings and lists of them are written as in JSON, but for its escapes."""
    return json.dumps(value, ensure_ascii=False)


def federation_file_text(
    sites: Sequence[str], address: str, features: Sequence[str], target: str | None, model: str
) -> str:
    """What the file of a new server says."""
    predicted = "# This model predicts nothing." if target is None else f"target = {_toml(target)}"
    suggested = MODELS[model].suggested.items() if model in MODELS else ()
    moves_far = model in MODELS and (MODELS[model].drawn or not MODELS[model].takes_target)
    limited = "# " if moves_far else ""
    held_back = (
        "models like this move by hundreds and more, see `change` in a run's history"
        if moves_far
        else "the first ones of large tables are taken in parts"
    )
    settings = "".join(
        f"# {words[0].upper()}{words[1:]}.\n{key} = {_toml(value)}\n" for key, (value, words) in suggested
    )
    return f"""\
# Sites are told these sections with every task. Their data stay where they are.
[columns]
features = {_toml(list(features))}
{predicted}
# Subtracted from each feature, and what is left divided by: the same numbers at every site.
# centre = {json.dumps([0.0] * len(features))}
# scale = {json.dumps([1.0] * len(features))}
# For models of classes, 0, 1, …: how many.
# classes = 2

[model]
name = {_toml(model)}
{settings}
[schedule]
name = "synchronous"
rounds = 20

# What updates may do before they are held back, or their site is not asked again; see docs/server.md.
[limits]
# Nats by which one update may move the posterior; {held_back}.
{limited}change = 100.0
# Nats by which all updates of one site may move it over the run, each on its own; then the site is quarantined.
{limited}total = 10000.0
strikes = 3
# Updates of others that may have been folded since a site was asked.
staleness = {max(100, 10 * len(sites))}

[server]
address = {_toml(address)}
# Their public keys are sites/NAME.pub. Those that come later: partita invite.
sites = {_toml(list(sites))}
# Begin as soon as so many sites are there; the others may come later. All of them, if left out.
# minimum = {max(1, len(sites) - 1)}
timeout = 600.0
patience = 1800.0

"""


README = """\
# A federation

This folder is the server's. `for-sites/NAME` is the folder of one site: carry it there (it holds that site's private
key) and delete it here.

    pip install '.[flower]'         # in a clone of Partita's repository, here and at every site

At every site: put the table where `site.toml` says, look through its [policy], then

    partita site FOLDER             # until Ctrl-C
    partita site approve FOLDER     # what the server proposes, once: columns, what is computed, what leaves
    partita site audit FOLDER       # what has left

At the server: look through `federation.toml`, then

    partita serve FOLDER            # until the run is finished; Ctrl-C or `partita stop FOLDER` ends it before
    partita resume FOLDER           # go on, also after a crash
    partita status FOLDER           # sites, rounds, bytes; --json for machines
    partita retire FOLDER SITE      # divide a site's factor out; the others refine

The posterior is `run/result.safetensors`: `partita.load` reads it.

What is safe and what is not. Connections are encrypted, and the server answers only who signs with the key of one of
its sites; runs can be started only on the server's own machine, by whoever can read `keys/secret`. A site runs nothing
that the server sends: it answers questions under the one recipe that its person has approved. Factors tell about data:
a federation is not private by itself.
"""
