"""`partita new-federation`: the folder of a server and one for every site, with keys, certificates and their files."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.designs.language import parse
from partita.designs.responses import find_response
from partita.errors import InputError
from partita.federation.folders import read_server
from partita.federation.greeting import FEDERATION
from partita.foundation.checks import import_extra
from partita.foundation.keys import write_certificates, write_secret, write_site_key
from partita.foundation.locks import private_folder
from partita.foundation.network import split_address
from partita.foundation.own_code import digest_file
from partita.models import REGISTRY as MODELS
from partita.site.settings import SITE, site_file_text
from partita.wire.naming import check_site_names


@dataclass(frozen=True)
class Plan:
    """What a new federation computes: the sections of its file that sites are told, those that say how it is run, and
    the columns that are read."""

    recipe: str
    rounds: str
    columns: tuple[str, ...]
    # A file with a program, which every site gets, to be read and approved there.
    program: Path | None = None


def make_federation(
    path: Path, sites: Sequence[str], address: str, features: Sequence[str], target: str | None, model: str
) -> list[Path]:
    """Make the folder of a server and one for every site; what was made, to be told. Not all models have a target."""
    return make_planned(path, sites, address, plan_model(features, target, model, sites))


def make_planned(path: Path, sites: Sequence[str], address: str, plan: Plan) -> list[Path]:
    """The same for what a plan says."""
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
            _write_federation(made, sites, address, plan)
        if path.exists():
            path.rmdir()
        made.rename(path)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return [path / FEDERATION, *(path / "for-sites" / site for site in sites)]


def _write_federation(made: Path, sites: Sequence[str], address: str, plan: Plan) -> None:
    host, _ = split_address(address)
    write_certificates(made / "keys", list(dict.fromkeys([host, "localhost", "127.0.0.1"])))
    write_secret(made / "keys" / "secret")
    texts = {FEDERATION: _file_text(sites, address, plan), "README.md": README}
    for site in sites:
        folder = made / "for-sites" / site
        write_site_key(folder / "site.key", made / "sites" / f"{site}.pub")
        shutil.copyfile(made / "keys" / "ca.crt", folder / "ca.crt")
        texts[f"for-sites/{site}/{SITE}"] = site_file_text(site, address, plan.columns, None)
        if plan.program is not None:
            shutil.copyfile(plan.program, folder / plan.program.name)
    if plan.program is not None:
        shutil.copyfile(plan.program, made / plan.program.name)
    for name, text in texts.items():
        (made / name).write_text(text, encoding="utf-8")
    read_server(made)


def _toml(value: Any) -> str:
    """Strings and lists of them are written as in JSON, but for its escapes."""
    return json.dumps(value, ensure_ascii=False)


def federation_file_text(
    sites: Sequence[str], address: str, features: Sequence[str], target: str | None, model: str
) -> str:
    """What the file of a federation with a model of the registry says."""
    return _file_text(sites, address, plan_model(features, target, model, sites))


def plan_model(features: Sequence[str], target: str | None, model: str, sites: Sequence[str]) -> Plan:
    """A model of the registry, and columns of numbers."""
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
    recipe = f"""\
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
{settings}"""
    rounds = f"""\
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
staleness = {_find_staleness(sites)}
"""
    return Plan(recipe, rounds, (*features, *([] if target is None else [target])))


def plan_formula(formula: str, family: str, sites: Sequence[str]) -> Plan:
    """A regression by a formula."""
    import_extra("formulaic", "formulaic", "formulas")
    parsed = parse(formula)
    recipe = f"""\
[regression]
formula = {_toml(formula)}
family = {_toml(find_response(family).name)}
# Standard deviation under the prior of coefficients of columns in units of their deviation.
prior_scale = 2.5
# A column of whole numbers, how many equal observations each row stands for.
# weights = "n"
"""
    group = () if parsed.group is None else (parsed.group,)
    columns = dict.fromkeys((*parsed.inputs, *group, *parsed.targets))
    return Plan(recipe, _open_rounds(sites), tuple(columns))


def plan_summary(columns: Sequence[str], by: str | None, cross: Sequence[Sequence[str]]) -> Plan:
    """A summary of columns, which fits nothing."""
    more = "" if by is None else f"by = {_toml(by)}\n"
    more += f"cross = {_toml([list(pair) for pair in cross])}\n" if cross else ""
    recipe = f"""\
[summary]
columns = {_toml(list(columns))}
{more}# Columns of numbers that are levels.
# categorical = []
# Fewer rows are never counted by themselves; sites may ask for more.
fewest_per_cell = 3
"""
    pairs = (name for pair in cross for name in pair)
    return Plan(recipe, "", tuple(dict.fromkeys([*columns, *([] if by is None else [by]), *pairs])))


def plan_program(
    program: str | Path, columns: Mapping[str, str | list[str]], local: Mapping[str, str], sites: Sequence[str]
) -> Plan:
    """A program by its entry, or in a file.

    Args:
        program: `package.module:name`, or the path of a file that calls it `model`.
        columns: for each of its arguments a column, or a list of columns.
        local: for the plate of groups, the argument that names them.
        sites: their names.
    """
    code = (
        f"file = {_toml(program.name)}\nsha256 = {_toml(digest_file(program))}\n# What it is called in the file.\n"
        'function = "model"'
        if isinstance(program, Path)
        else f"entry = {_toml(program)}"
    )
    data = "".join(f"{_toml(argument)} = {_toml(names)}\n" for argument, names in columns.items())
    plates = "".join(f"{_toml(plate)} = {_toml(argument)}\n" for plate, argument in local.items())
    recipe = f"[program]\n{code}\n\n[program.columns]\n{data}" + (f"\n[program.local]\n{plates}" if local else "")
    names = [name for one in columns.values() for name in ([one] if isinstance(one, str) else one)]
    if not names:
        raise InputError("columns: expected a column, or a list of columns, for each argument of the program")
    return Plan(
        recipe, _open_rounds(sites), tuple(dict.fromkeys(names)), program if isinstance(program, Path) else None
    )


def _open_rounds(sites: Sequence[str]) -> str:
    return f"""\
# Without a schedule: synchronous rounds until nothing moves, two where one is exact; as in one process.
# [schedule]
# name = "synchronous"
# rounds = 20

# What updates may do before they are held back, or their site is not asked again; see docs/server.md.
[limits]
# Nats by which one update may move the posterior, and all of one site over the run. With them, first updates of large
# tables are taken in parts: give a [schedule] with rounds enough then.
# change = 100.0
# total = 10000.0
strikes = 3
# Updates of others that may have been folded since a site was asked.
staleness = {_find_staleness(sites)}
"""


def _find_staleness(sites: Sequence[str]) -> int:
    return max(100, 10 * len(sites))


def _file_text(sites: Sequence[str], address: str, plan: Plan) -> str:
    return f"""\
# Sites are told these sections with every task. Their data stay where they are.
{plan.recipe}
{plan.rounds}
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
                                    # (a program in a file of its own, such as model.py: read it before)
    partita site audit FOLDER       # what has left

At the server: look through `federation.toml`, then

    partita serve FOLDER            # until the run is finished; Ctrl-C or `partita stop FOLDER` ends it before
    partita resume FOLDER           # go on, also after a crash
    partita status FOLDER           # sites, rounds, bytes; --json for machines
    partita retire FOLDER SITE      # divide a site's factor out; the others refine

The posterior is `run/result.safetensors`: `partita.load` reads it; that of a formula, `partita.Regression.load`.

What is safe and what is not. Connections are encrypted, and the server answers only who signs with the key of one of
its sites; runs can be started only on the server's own machine, by whoever can read `keys/secret`. A site runs nothing
that the server sends: it answers questions under the one recipe that its person has approved. Factors tell about data:
a federation is not private by itself.
"""
