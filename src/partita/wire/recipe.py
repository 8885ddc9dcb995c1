"""What a server and its sites have to agree on: columns, model, solver. Sites are told it with every message."""

import inspect
import json
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from typing import Annotated, Any, Self, get_type_hints

import numpy as np
from msgspec import Meta

from partita.errors import ConfigError, InputError
from partita.foundation.checks import check_count, is_number
from partita.foundation.plain import Row
from partita.foundation.settings_files import SettingsFile, Table, without_name
from partita.models import REGISTRY as MODELS
from partita.models import AbstractModel
from partita.solvers import REGISTRY as SOLVERS
from partita.solvers import Solver
from partita.wire.agreed import Agreed
from partita.wire.base_recipe import BaseRecipe, write_text
from partita.wire.job import Job
from partita.wire.questions import About, Evaluate, Question

# More classes than anybody's labels have.
MOST_CLASSES = 1_000_000
# Settings of models that follow from the data, or that a file cannot hold.
DERIVED = ("features", "words", "classes", "layers", "params", "given_prior")
Seed = Annotated[int, Meta(ge=0, lt=2**32)]


@dataclass(frozen=True)
class Columns:
    """What every site's table has to have, under these names or its own.

    `centre` is subtracted and what is left divided by `scale`, column by column, the same at every site. Models that
    predict nothing have no target.
    """

    features: tuple[str, ...]
    target: str | None = None
    centre: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None
    classes: int = 2

    def __post_init__(self) -> None:
        if not self.features or not all(self.names):
            raise InputError("features: expected names of columns")
        if len(set(self.names)) < len(self.names):
            raise InputError("features: a column is named twice, or is the target too")
        check_count("", classes=self.classes)
        if self.classes > MOST_CLASSES:
            raise InputError(f"classes: expected at most {MOST_CLASSES:,}, got {self.classes}")
        for name in ("centre", "scale"):
            numbers = getattr(self, name)
            if numbers is not None and (len(numbers) != len(self.features) or not all(map(is_number, numbers))):
                raise InputError(f"{name}: expected {len(self.features)} numbers, one per feature")
        if self.scale is not None and any(number <= 0 for number in self.scale):
            raise InputError("scale: expected positive numbers")

    @classmethod
    def read(cls, file: SettingsFile, table: Table) -> Self:
        """The section [columns] of a file."""
        if "features" not in table:
            raise file.error("columns", "features", "is missing: name the columns that every site has")
        return file.build("columns", cls, table)

    @property
    def names(self) -> tuple[str, ...]:
        """All that is read, the target last if there is one."""
        return self.features if self.target is None else (*self.features, self.target)

    @property
    def design(self) -> Row:
        """How rows of a site's table become inputs of the model: kept with the result."""
        number = len(self.features)
        return {
            "columns": list(self.features),
            **({} if self.target is None else {"target": self.target}),
            "centre": list(self.centre or [0.0] * number),
            "unit": list(self.scale or [1.0] * number),
        }

    def scale_rows(self, rows: np.ndarray) -> np.ndarray:
        """Features of a site's table as inputs of the model."""
        design = self.design
        return np.asarray((rows - np.asarray(design["centre"])) / np.asarray(design["unit"]))


@dataclass(frozen=True)
class ModelChoice:
    """A model by its name, and what a file says of it; its size follows from data."""

    name: str
    settings: Table

    @classmethod
    def read(cls, file: SettingsFile, table: Table) -> Self:
        """The section [model] of a file."""
        name = file.read_name("model", MODELS, table)
        kind: Any = MODELS[name]
        hints, sizes = get_type_hints(kind), get_type_hints(kind.for_data)
        known = {field.name: hints[field.name] for field in fields(kind) if field.name not in DERIVED}
        parameters = inspect.signature(kind.for_data).parameters.values()
        asked = {one.name: one for one in parameters if one.kind is one.KEYWORD_ONLY}
        known |= {key: sizes[key] for key in asked}
        needed = {field.name for field in fields(kind) if field.default is MISSING} & (known.keys() - asked.keys())
        needed |= {key for key, one in asked.items() if one.default is one.empty}
        for key in sorted(needed - table.keys()):
            value, words = kind.suggested[key]
            raise file.error("model", key, f"is missing: {words}; {key} = {json.dumps(value)}, for example")
        return cls(name, file.convert("model", without_name(table), known))

    @property
    def takes_target(self) -> bool:
        """Whether there is a column that it predicts."""
        return MODELS[self.name].takes_target

    def build(self, X: np.ndarray, y: Any) -> AbstractModel:
        """The model, with what follows from the data filled in."""
        try:
            model = MODELS[self.name].for_data(X, y, **self.settings)
        except (InputError, TypeError) as error:
            raise ConfigError(f"[model] {error}") from None
        return model


def check_target(file: SettingsFile, columns: Columns, choice: ModelChoice) -> None:
    """Check that there is a column to predict where the model predicts one, and none where it does not."""
    if choice.takes_target and columns.target is None:
        raise file.error("columns", "target", f"is missing: name the column that {choice.name} predicts")
    if not choice.takes_target and columns.target is not None:
        raise file.error("columns", "target", f"is not for {choice.name}, which predicts nothing: leave it out")


def read_solver(file: SettingsFile, tables: Table) -> Solver | None:
    """The section [solver] of a file; None, where the solver is left to be chosen."""
    return file.build_named("solver", SOLVERS, tables["solver"], "fixed-point") if "solver" in tables else None


def read_seed(file: SettingsFile, tables: Table) -> int:
    """The key `seed` of a file."""
    return int(file.convert("", {"seed": tables.get("seed", 0)}, {"seed": Seed})["seed"])


@dataclass(frozen=True)
class Recipe(BaseRecipe):
    """A model of the registry, and columns of numbers that it takes as they are."""

    columns: Columns
    model_choice: ModelChoice

    @classmethod
    def read(cls, file: SettingsFile, tables: Table, waits: bool = True, once: bool = False) -> Self:
        """Read a recipe from sections of a federation's file, which may have more; and from what its schedule does.

        Args:
            file: where the sections come from.
            tables: the sections.
            waits: whether a round waits for all who were asked.
            once: whether every site is asked only once.
        """
        columns = Columns.read(file, tables.get("columns", {}))
        model_choice = ModelChoice.read(file, tables.get("model", {}))
        check_target(file, columns, model_choice)
        return cls(
            text=write_text(file, tables, waits, once),
            columns=columns,
            model_choice=model_choice,
            solver=read_solver(file, tables),
            seed=read_seed(file, tables),
            learns_hyper="hyper" in tables,
            waits=waits,
            once=once,
        )

    @property
    def name(self) -> str:
        return self.model_choice.name

    @property
    def reads(self) -> tuple[str, ...]:
        return self.columns.names

    @property
    def questions(self) -> tuple[str, ...]:
        return (About.name, Evaluate.name)

    @cached_property
    def model(self) -> AbstractModel:
        # Models take their size from data; this is a row as every site has them.
        return self.model_choice.build(np.zeros((1, len(self.columns.features))), np.array([self.columns.classes - 1]))

    def check_question(self, question: Question) -> None:
        """None of its questions names columns or rows."""

    def begin(self, agreed: Agreed | None) -> AbstractModel:
        return self.model

    @cached_property
    def job(self) -> Job:
        """What sites need to know before their first task."""
        return self.job_of(self.model)

    @cached_property
    def digest(self) -> str:
        """Tells whether two sides compute the same."""
        return self.digest_of(self.model)
