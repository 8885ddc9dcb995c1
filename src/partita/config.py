"""`partita run CONFIG.toml`: a run described in a file, checked key by key."""

import dataclasses
import difflib
import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partita import datasets
from partita.errors import ConfigError, InputError
from partita.foundation.checks import is_whole
from partita.foundation.files import MOST_SETTINGS, read_file
from partita.foundation.foreign import parse_toml
from partita.foundation.plain import Row
from partita.foundation.text import clean
from partita.models import REGISTRY as MODELS
from partita.models import AbstractModel
from partita.server.hyper import LearnHyper
from partita.server.rules import as_damping
from partita.server.schedules import REGISTRY as SCHEDULES
from partita.server.schedules import Schedule
from partita.solvers import REGISTRY as SOLVERS
from partita.solvers import Solver


@dataclasses.dataclass(frozen=True)
class Data:
    """A data set by name, or a CSV file with a header and the column to predict; for a regression, a file per site.

    Without `test_share` the test part is the published one if there is one, else a random fifth of the rows.
    """

    name: str | None = None
    path: str | None = None
    target: str | None = None
    sites: Any = None
    test_share: float | None = None
    standardise: bool = True


@dataclasses.dataclass(frozen=True)
class Partition:
    """How rows are spread over sites."""

    sites: int = 10
    how: str = "iid"
    concentration: float = 0.3


@dataclasses.dataclass(frozen=True)
class Formula:
    """A regression on tables of sites, and other formulas to compare it with."""

    formula: str
    family: str = "gaussian"
    compare: tuple[str, ...] = ()
    prior_scale: float = 2.5
    held_out: float = 0.0
    weights: str | None = None
    level: float = 0.95


@dataclasses.dataclass(frozen=True)
class Config:
    """A whole run: of a model, or of a regression."""

    data: Data
    partition: Partition
    model: tuple[str, dict[str, Any]] | None
    regression: Formula | None
    solver: Solver | None
    schedule: Schedule | None
    damping: float | str = "auto"
    hyper: LearnHyper | None = None
    seed: int = 0


SECTIONS = ("data", "partition", "model", "regression", "solver", "schedule", "hyper")
# Characters of a name that is looked for, or guessed at.
MOST_NAME = 200
# Settings of models that follow from the data, or that a file cannot hold.
DERIVED = ("features", "classes", "layers", "params", "given_prior")


def read_config(path: Path, settings: Sequence[str] = ()) -> Config:
    """From a TOML file and `section.key=value` settings that take precedence."""
    reader, tables = read_tables(path)
    for setting in settings:
        _apply_setting(tables, setting)
    return reader.config(tables)


def read_tables(path: Path) -> tuple["Reader", dict[str, Any]]:
    """What a TOML file says, and a reader of it that can name the place."""
    try:
        text = read_file(path, MOST_SETTINGS).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise ConfigError(f"{path}: {reason}") from None
    try:
        return Reader(path, text), parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def _apply_setting(tables: dict[str, Any], setting: str) -> None:
    name, equals, value = setting.partition("=")
    keys = name.strip().split(".")
    if not equals or not all(keys) or len(keys) > 2:
        raise ConfigError(f"--set {setting}: expected section.key=value, for example schedule.rounds=20")
    try:
        parsed = parse_toml(f"value = {value}")["value"]
    except ValueError:
        parsed = value.strip()
    table = tables if len(keys) == 1 else tables.setdefault(keys[0], {})
    if not isinstance(table, dict):
        raise ConfigError(f"--set {setting}: {keys[0]} is not a section")
    table[keys[-1]] = parsed


class Reader:
    """Turns tables into settings; every complaint names the file, the line and the key."""

    def __init__(self, path: Path, text: str = ""):
        self.path, self.lines = path, text.splitlines()

    def config(self, tables: dict[str, Any]) -> Config:
        self.sections(tables, SECTIONS, ("damping", "seed"))
        if "data" not in tables:
            raise ConfigError(f"{self.path}: [data] is missing: give a name ({', '.join(datasets.NAMES)}) or a path")
        by_formula = "regression" in tables
        for section in ("partition", "model", "solver", "hyper") if by_formula else ():
            if section in tables:
                raise self.error("", section, "does not go with [regression], which has what it needs: leave it out")
        return Config(
            data=self.build("data", Data, tables["data"]),
            partition=self.build("partition", Partition, tables.get("partition", {})),
            model=None if by_formula else self.model(tables.get("model", {})),
            regression=self.regression(tables) if by_formula else None,
            solver=self.named("solver", SOLVERS, tables["solver"], "fixed-point") if "solver" in tables else None,
            schedule=self.schedule(tables.get("schedule"), by_formula),
            hyper=self.hyper(tables.get("hyper")),
            damping=self.damping(tables.get("damping", "auto")),
            seed=self.seed(tables.get("seed", 0)),
        )

    def regression(self, tables: dict[str, Any]) -> Formula:
        table = dict(tables["regression"])
        others = table.get("compare", [])
        if not isinstance(others, list) or not all(isinstance(other, str) for other in others):
            raise self.error("regression", "compare", f"expected a list of formulas, got {others!r}")
        if "formula" not in table:
            raise self.error("", "regression", 'needs a formula, such as formula = "ill ~ age + C(clinic)"')
        if "sites" not in tables["data"]:
            raise self.error("", "data", 'needs the tables of sites, such as sites = "data/*.csv"')
        return self.build("regression", Formula, table | {"compare": tuple(others)})

    def schedule(self, table: dict[str, Any] | None, by_formula: bool) -> Schedule | None:
        if table is None and by_formula:
            return None
        return self.named("schedule", SCHEDULES, table or {}, "synchronous")

    def sections(self, tables: dict[str, Any], sections: Sequence[str], keys: Sequence[str] = ()) -> None:
        """Nothing but these, and sections that are sections."""
        self.known("", tables, (*sections, *keys))
        for name in sections:
            if not isinstance(tables.get(name, {}), dict):
                raise self.error("", name, f"expected a section [{name}]")

    def damping(self, value: Any) -> Any:
        try:
            as_damping(value)
        except InputError as error:
            raise self.error("", "damping", str(error).removeprefix("damping: ")) from None
        return value

    def seed(self, value: Any) -> int:
        if not is_whole(value, 0) or value >= 2**32:
            raise self.error("", "seed", f"expected a whole number from 0 to 2**32 - 1, got {value!r}")
        return value

    def model(self, table: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        name = self._name("model", MODELS, table, None)
        rest = {key: value for key, value in table.items() if key != "name"}
        kind: Any = MODELS[name]
        known = {f.name: f.type for f in dataclasses.fields(kind) if f.name not in DERIVED}
        sizes = inspect.signature(kind.for_data).parameters.values()
        known |= {size.name: size.annotation for size in sizes if size.kind is size.KEYWORD_ONLY}
        self.known("model", rest, list(known))
        for key, value in rest.items():
            if "Sequence" in str(known[key]):
                if not isinstance(value, list) or not all(is_whole(item, 1) for item in value):
                    raise self.error("model", key, f"expected a list of whole numbers, got {value!r}")
            else:
                self._typed("model", key, value, known[key])
        return name, rest

    def hyper(self, table: dict[str, Any] | None) -> LearnHyper | None:
        if table is None:
            return None
        if isinstance(table.get("names"), list):
            table = {**table, "names": tuple(map(str, table["names"]))}
        elif "names" in table:
            self._typed("hyper", "names", table["names"], str)
        if "prior" in table and not isinstance(table["prior"], dict):
            raise self.error("hyper", "prior", "expected a section [hyper.prior]")
        return self.build("hyper", LearnHyper, table)

    def named(self, section: str, registry: dict[str, type], table: dict[str, Any], default: str) -> Any:
        name = self._name(section, registry, table, default)
        return self.build(section, registry[name], {key: value for key, value in table.items() if key != "name"})

    def _name(self, section: str, registry: dict[str, type], table: dict[str, Any], default: str | None) -> str:
        name = table.get("name", default)
        if not isinstance(name, str) or name not in registry:
            given = "is missing" if name is None else f"{name!r} is not known"
            raise self.error(section, "name", f"{given}: use one of {', '.join(registry)}{_meant(name, registry)}")
        return name

    def build(self, section: str, kind: type, table: dict[str, Any]) -> Any:
        fields = {field.name: field for field in dataclasses.fields(kind)}
        self.known(section, table, list(fields))
        for key, value in table.items():
            if not isinstance(value, tuple) and "Mapping" not in str(fields[key].type):
                self._typed(section, key, value, fields[key].type)
        try:
            return kind(**table)
        except InputError as error:
            raise ConfigError(f"{self.path}: [{section}] {error}") from None

    def _typed(self, section: str, key: str, value: Any, kind: Any) -> Any:
        """Reject values of an obviously wrong type; the classes themselves check ranges."""
        options = {"int": int, "float": int | float, "bool": bool, "str": str}
        text = getattr(kind, "__name__", str(kind)) if isinstance(kind, type) else str(kind)
        allowed = [options[name] for name in re.findall(r"\b(int|float|bool|str)\b", text)]
        fits = any(isinstance(value, a) and isinstance(value, bool) == (a is bool) for a in allowed)
        if allowed and not fits and "Literal" not in text:
            raise self.error(section, key, f"expected {text}, got {value!r}")
        return value

    def known(self, section: str, table: dict[str, Any], known: Sequence[str]) -> None:
        for key in table:
            if key not in known:
                hint = _meant(key, known) or f": known are {', '.join(known)}"
                raise self.error(section, key, f"is not a known key{hint}")

    def error(self, section: str, key: str, problem: str) -> ConfigError:
        name = f"[{section}] {clean(key)}" if section else clean(key)
        line = self._line(section, key)
        return ConfigError(f"{self.path}{f':{line}' if line else ''}: {name} {problem}")

    def _line(self, section: str, key: str) -> int | None:
        current = ""
        if len(key) > MOST_NAME:
            return None
        for number, line in enumerate(self.lines, 1):
            if header := re.match(r"\s*\[([^\[\]]+)\]", line):
                current = header[1].strip()
                if not section and current == key:
                    return number
            elif current == section and re.match(rf"\s*{re.escape(key)}\s*=", line):
                return number
        return None


def _meant(name: Any, known: Any) -> str:
    close = difflib.get_close_matches(str(name)[:MOST_NAME], list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def load_data(config: Config, folder: Path) -> tuple[tuple, tuple, Row | None]:
    """The training and the test part, standardised by the training part; and how that was done, if it was."""
    train, test = _read(config.data, folder, config.seed)
    if not config.data.standardise:
        return train, test, None
    X = np.asarray(train[0])
    centre, unit = datasets.column_units(X)
    names = feature_names(config, folder) or [f"x{column}" for column in range(X.shape[-1])]
    design = {"columns": names, "centre": centre.tolist(), "unit": unit.tolist()} if X.ndim == 2 else None
    test = (datasets.standardised(test[0], X), test[1])
    return (datasets.standardised(X), train[1]), test, design


def feature_names(config: Config, folder: Path) -> list[str]:
    """What a file's columns of inputs are called; nothing, where data have no names."""
    if config.data.path is None:
        return []
    return [name for name in datasets.read_header(folder / config.data.path) if name != config.data.target]


def _read(data: Data, folder: Path, seed: int) -> tuple[tuple, tuple]:
    if (data.name is None) == (data.path is None):
        raise ConfigError("[data]: give either a name or a path")
    if data.test_share is not None and not 0 < data.test_share < 1:
        raise ConfigError(f"[data] test_share: expected a number between 0 and 1, got {data.test_share}")
    if data.name in datasets.WITH_SPLIT and data.test_share is None:
        return datasets.load_split(data.name)
    if data.name is not None:
        whole = datasets.load(data.name)
    elif data.target is not None:
        whole = datasets.read_csv(folder / str(data.path), data.target)
    else:
        raise ConfigError("[data] target: name the column to predict")
    return datasets.train_test(whole, 0.2 if data.test_share is None else data.test_share, seed)


def build_model(config: Config, X: np.ndarray, y: np.ndarray) -> AbstractModel:
    """The model, with what follows from the data filled in."""
    assert config.model is not None
    name, settings = config.model
    kind: Any = MODELS[name]
    try:
        return kind.for_data(X, y, **settings)
    except (InputError, TypeError) as error:
        raise ConfigError(f"[model] {error}") from None
