"""`partita run CONFIG.toml`: a run described in a file, checked key by key."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from partita import datasets
from partita.errors import ConfigError, InputError
from partita.foundation.csv_files import read_columns
from partita.foundation.foreign import parse_toml
from partita.foundation.plain import Row
from partita.foundation.settings_files import SettingsFile, Table, read_settings_file
from partita.models import AbstractModel
from partita.server.hyper import LearnHyper
from partita.server.rules import as_damping
from partita.server.schedules import REGISTRY as SCHEDULES
from partita.server.schedules import Schedule
from partita.server.settings import Settings
from partita.solvers import Solver
from partita.wire.recipe import ModelChoice, read_seed, read_solver


@dataclass(frozen=True)
class Data:
    """A data set by name, or a CSV file with a header and the column to predict, if the model predicts one; for a
    regression, a file per site.

    Without `test_share` the test part is the published one if there is one, else a random fifth of the rows.
    """

    name: str | None = None
    path: str | None = None
    target: str | None = None
    sites: Any = None
    test_share: float | None = None
    standardise: bool = True


@dataclass(frozen=True)
class Partition:
    """How rows are spread over sites."""

    sites: int = 10
    how: str = "iid"
    concentration: float = 0.3


@dataclass(frozen=True)
class Formula:
    """A regression on tables of sites, and other formulas to compare it with."""

    formula: str
    family: str = "gaussian"
    compare: tuple[str, ...] = ()
    prior_scale: float = 2.5
    held_out: float = 0.0
    weights: str | None = None
    level: float = 0.95


@dataclass(frozen=True)
class Config:
    """A whole run: of a model, or of a regression."""

    data: Data
    partition: Partition
    model: ModelChoice | None
    regression: Formula | None
    solver: Solver | None
    schedule: Schedule | None
    damping: float | str = "auto"
    hyper: LearnHyper | None = None
    seed: int = 0

    @property
    def settings(self) -> Settings:
        """How the run of a model is done."""
        return Settings(
            solver=self.solver, schedule=self.schedule, damping=self.damping, hyper=self.hyper, seed=self.seed
        )


Arrays = tuple[Any, ...]
SECTIONS = ("data", "partition", "model", "regression", "solver", "schedule", "hyper")


def read_config(path: Path, settings: Sequence[str] = ()) -> Config:
    """Read a TOML file, and `section.key=value` settings that take precedence."""
    file, tables = read_settings_file(path)
    for setting in settings:
        _apply_setting(tables, setting)
    file.check_sections(tables, SECTIONS, ("damping", "seed"))
    if "data" not in tables:
        raise ConfigError(f"{path}: [data] is missing: give a name ({', '.join(datasets.NAMES)}) or a path")
    data = file.build("data", Data, tables["data"])
    partition = file.build("partition", Partition, tables.get("partition", {}))
    by_formula = "regression" in tables
    return Config(
        data=data,
        partition=partition,
        model=None if by_formula else ModelChoice.read(file, tables.get("model", {})),
        regression=_read_regression(file, tables) if by_formula else None,
        solver=read_solver(file, tables),
        schedule=None if by_formula and "schedule" not in tables else read_schedule(file, tables),
        hyper=read_hyper(file, tables),
        damping=read_damping(file, tables),
        seed=read_seed(file, tables),
    )


def _apply_setting(tables: Table, setting: str) -> None:
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


def _read_regression(file: SettingsFile, tables: Table) -> Formula:
    """The section [regression], which has what a regression needs, but for its tables."""
    for section in ("partition", "model", "solver", "hyper"):
        if section in tables:
            raise file.error("", section, "does not go with [regression], which has what it needs: leave it out")
    if "formula" not in tables["regression"]:
        raise file.error("", "regression", 'needs a formula, such as formula = "ill ~ age + C(clinic)"')
    if "sites" not in tables["data"]:
        raise file.error("", "data", 'needs the tables of sites, such as sites = "data/*.csv"')
    return file.build("regression", Formula, tables["regression"])


def read_schedule(file: SettingsFile, tables: Table) -> Schedule:
    """The section [schedule] of a file; synchronous rounds, if there is none."""
    return file.build_named("schedule", SCHEDULES, tables.get("schedule", {}), "synchronous")


def read_hyper(file: SettingsFile, tables: Table) -> LearnHyper | None:
    """The section [hyper] of a file; None, where no hyperparameters are learnt."""
    return file.build("hyper", LearnHyper, tables["hyper"]) if "hyper" in tables else None


def read_damping(file: SettingsFile, tables: Table) -> Any:
    """The key `damping` of a file."""
    value = tables.get("damping", "auto")
    try:
        as_damping(value)
    except InputError as error:
        raise file.error("", "damping", str(error).removeprefix("damping: ")) from None
    return value


def load_data(config: Config, folder: Path) -> tuple[Arrays, Arrays, Row | None]:
    """The training and the test part, standardised by the training part; and how that was done, if it was.

    A part is inputs and targets; a file that is read for a model without targets has inputs only.
    """
    predicts = config.model is None or config.model.takes_target
    train, test = _read(config.data, folder, config.seed, predicts)
    if not config.data.standardise:
        return train, test, None
    X = np.asarray(train[0])
    centre, unit = datasets.column_units(X)
    names = feature_names(config, folder) or [f"x{column}" for column in range(X.shape[-1])]
    design = {"columns": names, "centre": centre.tolist(), "unit": unit.tolist()} if X.ndim == 2 else None
    test = (datasets.standardised(test[0], X), *test[1:])
    return (datasets.standardised(X), *train[1:]), test, design


def feature_names(config: Config, folder: Path) -> list[str]:
    """What a file's columns of inputs are called; nothing, where data have no names."""
    if config.data.path is None:
        return []
    return [name for name in datasets.read_header(folder / config.data.path) if name != config.data.target]


def _read(data: Data, folder: Path, seed: int, predicts: bool) -> tuple[Arrays, Arrays]:
    if (data.name is None) == (data.path is None):
        raise ConfigError("[data]: give either a name or a path")
    if data.test_share is not None and not 0 < data.test_share < 1:
        raise ConfigError(f"[data] test_share: expected a number between 0 and 1, got {data.test_share}")
    if data.name in datasets.WITH_SPLIT and data.test_share is None:
        return datasets.load_split(data.name)
    if data.target is not None and not predicts:
        raise ConfigError("[data] target: the model predicts nothing: leave it out")
    whole: Arrays
    if data.name is not None:
        whole = datasets.load(data.name)
    elif not predicts:
        whole = (read_columns(folder / str(data.path))[1],)
    elif data.target is not None:
        whole = datasets.read_csv(folder / str(data.path), data.target)
    else:
        raise ConfigError("[data] target: name the column to predict")
    return datasets.train_test(whole, 0.2 if data.test_share is None else data.test_share, seed)


def build_model(config: Config, X: np.ndarray, y: Any = None) -> AbstractModel:
    """The model, with what follows from the data filled in."""
    assert config.model is not None
    return config.model.build(X, y)
