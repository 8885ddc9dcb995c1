"""What a server and its sites agree on: columns, model, solver, schedule. Sites are told it with every message."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from partita._version import __version__
from partita.config import Reader
from partita.errors import ConfigError, InputError, MalformedMessage
from partita.foundation.checks import check_count, is_number
from partita.foundation.foreign import parse_object
from partita.foundation.plain import Row
from partita.models import REGISTRY, AbstractModel
from partita.server.hyper import LearnHyper
from partita.server.schedules import REGISTRY as SCHEDULES
from partita.server.schedules import Schedule
from partita.server.settings import Settings
from partita.server.storage import describe
from partita.solvers import REGISTRY as SOLVERS
from partita.solvers import Solver
from partita.wire.job import Job
from partita.wire.naming import SiteNames

SECTIONS = ("columns", "model", "solver", "schedule", "hyper")
KEYS = ("damping", "seed")


@dataclass(frozen=True)
class Columns:
    """What every site's table has to have, under these names or its own.

    `centre` is subtracted and what is left divided by `scale`, column by column, the same at every site.
    """

    features: tuple[str, ...]
    target: str
    centre: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None
    classes: int = 2

    def __post_init__(self) -> None:
        names = (*self.features, self.target)
        if not self.features or not all(isinstance(name, str) and name for name in names):
            raise InputError("features: expected names of columns")
        if len(set(names)) < len(names):
            raise InputError("features: a column is named twice, or is the target too")
        check_count("", classes=self.classes)
        for name in ("centre", "scale"):
            numbers = getattr(self, name)
            if numbers is not None and (len(numbers) != len(self.features) or not all(map(is_number, numbers))):
                raise InputError(f"{name}: expected {len(self.features)} numbers, one per feature")
        if self.scale is not None and any(number <= 0 for number in self.scale):
            raise InputError("scale: expected positive numbers")

    @property
    def design(self) -> Row:
        """How rows of a site's table become inputs of the model: kept with the result."""
        number = len(self.features)
        return {
            "columns": list(self.features),
            "target": self.target,
            "centre": list(self.centre or [0.0] * number),
            "unit": list(self.scale or [1.0] * number),
        }


@dataclass(frozen=True)
class Recipe:
    """All that has to be the same at the server and at every site."""

    text: str
    columns: Columns
    model_name: str
    model_settings: dict[str, Any]
    solver: Solver | None
    schedule: Schedule
    hyper: LearnHyper | None
    damping: Any
    seed: int

    @classmethod
    def read(cls, reader: Reader, tables: dict[str, Any]) -> "Recipe":
        """From tables of a file, or of a message."""
        own = {name: tables[name] for name in (*SECTIONS, *KEYS) if name in tables}
        reader.sections(own, SECTIONS, KEYS)
        columns = dict(own.get("columns", {}))
        for name in ("features", "target"):
            if name not in columns:
                raise reader.error("columns", name, "is missing: name the columns that every site has")
        for name in ("features", "centre", "scale"):
            if isinstance(columns.get(name), list):
                columns[name] = tuple(columns[name])
            elif name in columns:
                raise reader.error("columns", name, f"expected a list, got {columns[name]!r}")
        model_name, model_settings = reader.model(own.get("model", {}))
        try:
            text = json.dumps(own, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError):
            raise ConfigError(f"{reader.path}: dates and numbers that are not finite cannot be used") from None
        return cls(
            text=text,
            columns=reader.build("columns", Columns, columns),
            model_name=model_name,
            model_settings=model_settings,
            solver=reader.named("solver", SOLVERS, own["solver"], "fixed-point") if "solver" in own else None,
            schedule=reader.named("schedule", SCHEDULES, own.get("schedule", {}), "synchronous"),
            hyper=reader.hyper(own.get("hyper")),
            damping=reader.damping(own.get("damping", "auto")),
            seed=reader.seed(own.get("seed", 0)),
        )

    @classmethod
    def parsed(cls, text: str) -> "Recipe":
        """From what a message carries."""
        try:
            tables = parse_object(text)
        except ValueError as error:
            raise MalformedMessage(f"recipe: cannot be read: {error}") from None
        return cls.read(Reader(Path("the server's settings")), tables)

    @cached_property
    def model(self) -> AbstractModel:
        kind: Any = REGISTRY[self.model_name]
        # Models take their size from data; this is a row as every site has them.
        row, label = np.zeros((1, len(self.columns.features))), np.array([self.columns.classes - 1])
        try:
            return kind.for_data(row, label, **self.model_settings)
        except (InputError, TypeError) as error:
            raise ConfigError(f"[model] {error}") from None

    @property
    def settings(self) -> Settings:
        """How the run is done."""
        return Settings(
            solver=self.solver, schedule=self.schedule, damping=self.damping, hyper=self.hyper, seed=self.seed
        )

    @property
    def job(self) -> Job:
        """What sites need to know before their first task."""
        return self.settings.choose(self.model).job(self.model, SiteNames())

    @cached_property
    def digest(self) -> str:
        """Of everything that decides what a site computes; the same only where the same code builds the same model."""
        return hashlib.sha256(json.dumps(describe(self.job), sort_keys=True).encode()).hexdigest()

    @property
    def greeting(self) -> dict[str, str]:
        """What messages carry, so that a site can build the model and find out whether it is the same one."""
        return {"recipe": self.text, "digest": self.digest, "version": __version__}


def check_names(names: Sequence[str]) -> None:
    """Names of sites are names of folders and keys too."""
    for name in names:
        if (
            not isinstance(name, str)
            or not name
            or len(name) > 40
            or not all(c.isalnum() or c in "-_" for c in name)
            or not name[0].isalnum()
        ):
            raise InputError(f"site {name!r}: use letters, digits, - and _, at most 40 of them")
    if len(set(names)) < len(names):
        raise InputError("sites: a name is there twice")
    if not names:
        raise InputError("sites: expected at least one name")
