"""A site's own file, site.toml: who it is, whom it answers and how far, where its data are, which column is which."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from partita.errors import ConfigError
from partita.foundation.checks import is_number
from partita.foundation.files import is_file
from partita.foundation.network import split_address
from partita.foundation.settings_files import read_settings_file
from partita.site.policy import KINDS, Policy

SITE = "site.toml"
KEYS = ("name", "server", "data", "certificate", "key")


@dataclass(frozen=True)
class SiteSettings:
    """What a site's file says, with paths in its folder."""

    path: Path
    name: str
    server: str
    data: Path
    certificate: Path
    key: Path
    columns: dict[str, str]
    policy: Policy
    # What numbers of a column are multiplied by, by the federation's name of it.
    units: dict[str, float] = field(default_factory=dict)


def read_site(path: Path) -> SiteSettings:
    """A site's folder, with every complaint naming file, line and key."""
    # What is there, but is no file, is for whoever reads it to tell.
    if not os.path.lexists(path / SITE):
        raise ConfigError(f"{path}: has no {SITE}: ask whoever runs the server for yours")
    file, tables = read_settings_file(path / SITE)
    file.check_sections(tables, ("columns", "units", "policy"), KEYS)
    for key in KEYS:
        if not isinstance(tables.get(key), str):
            raise file.error("", key, "is missing, or not in quotes")
    names, units = tables.get("columns", {}), tables.get("units", {})
    split_address(tables["server"])
    base = path.resolve()
    settings = SiteSettings(
        path=base,
        name=tables["name"],
        server=tables["server"],
        data=base / tables["data"],
        certificate=base / tables["certificate"],
        key=base / tables["key"],
        columns=file.convert("columns", names, dict.fromkeys(names, str)),
        policy=file.build("policy", Policy, tables.get("policy", {})),
        units=file.convert("units", units, dict.fromkeys(units, float)),
    )
    for name, factor in settings.units.items():
        if not (is_number(factor) and factor > 0):
            raise file.error("units", name, f"expected a positive number, got {factor}")
    for key in ("certificate", "key"):
        if not is_file(getattr(settings, key)):
            raise file.error("", key, f"no such file: {getattr(settings, key)}")
    return settings


def site_file_text(site: str, address: str, features: Sequence[str], target: str | None) -> str:
    """What the file of a new site says. Strings are written as in JSON, but for its escapes."""
    columns = [*features, *([] if target is None else [target])]
    quoted = [json.dumps(one, ensure_ascii=False) for one in (site, address, *columns)]
    return f"""\
name = {quoted[0]}
server = {quoted[1]}
# A CSV file with a header, which never leaves this machine; for formulas and programs, Parquet too.
data = "data.csv"
certificate = "ca.crt"
key = "site.key"

# What this site is willing to answer, whatever the server asks.
[policy]
# Columns of your table, the target among them, and models, that may be used; whatever you approve, if left out. What
# models are called is in what you are shown before you approve.
# columns = [{", ".join(quoted[2:])}]
# models = ["logistic-regression", "bernoulli regression"]
# What may leave: the number of rows, updates, log likelihoods; and where formulas and programs need it, levels of
# columns, counts, means and squares, products, what a program is made of, numbers of groups.
answers = {json.dumps(KINDS)}
compression = true
fewest_rows = 10
fewest_per_cell = 3
most_parameters = 10000
most_parameters_per_row = 0.33
most_tasks = 1000
most_questions = 50

# Only where your numbers are in other units: what they are multiplied by, by the federation's names of columns.
[units]
# {quoted[2]} = 0.001

# Only where your names of columns differ from the federation's:
[columns]
# {quoted[2] if columns else "age"} = "YOUR_NAME"
"""
