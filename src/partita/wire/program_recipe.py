"""A recipe that is a program: NumPyro's, or a model of somebody's own, by a name or by the digest of a file."""

import inspect
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from partita.errors import InputError
from partita.foundation.own_code import DIGEST, ENTRY, FILE, load_entry, load_file
from partita.foundation.settings_files import SettingsFile, Table
from partita.models import AbstractModel, NumPyroModel, from_numpyro
from partita.wire.agreed import Agreed, check_plate
from partita.wire.base_recipe import BaseRecipe, write_text
from partita.wire.questions import About, Evaluate, Groups, Layout, Question
from partita.wire.recipe import read_seed, read_solver


@dataclass(frozen=True)
class Program:
    """The section [program] of a federation's file.

    Args:
        columns: for each argument of the program a column, or a list of columns for a matrix.
        entry: `package.module:name` of a package that every site has installed.
        file: the name of a file with the program, which lies in the server's folder and in that of every site.
        sha256: its digest, as hexadecimal digits.
        function: what the program is called in the file.
        arguments: their order, for models that take a tuple; a dictionary by argument, if left out.
        local: for the plate of groups, the argument that says what group a row belongs to.
        posterior: of a NumPyro program: "full" covariances, or "mean-field".
    """

    columns: dict[str, str | list[str]]
    entry: str | None = None
    file: str | None = None
    sha256: str | None = None
    function: str = "model"
    arguments: tuple[str, ...] | None = None
    local: dict[str, str] = field(default_factory=dict)
    posterior: str = "full"

    def __post_init__(self) -> None:
        if (self.entry is None) == (self.file is None):
            raise InputError("entry: give either an entry, or a file with its sha256")
        if self.entry is not None and not ENTRY.fullmatch(self.entry):
            raise InputError(f"entry: expected package.module:name, got {self.entry!r}")
        if self.file is not None and not FILE.fullmatch(self.file):
            raise InputError(f"file: expected the name of a file of Python in the folder itself, got {self.file!r}")
        if (self.file is None) != (self.sha256 is None) or not DIGEST.fullmatch(self.sha256 or "0" * 64):
            raise InputError("sha256: expected the digest of the file, 64 hexadecimal digits, and of nothing else")
        if not self.function.isidentifier():
            raise InputError(f"function: expected a name, got {self.function!r}")
        if not self.columns or not all(self.columns.values()):
            raise InputError("columns: expected a column, or a list of columns, for each argument of the program")
        if self.arguments is not None and sorted(self.arguments) != sorted(self.columns):
            raise InputError(f"arguments: expected an order of {', '.join(self.columns)}")
        grouping = list(self.local.values())
        if len(grouping) > 1 or not all(isinstance(self.columns.get(name), str) for name in grouping):
            raise InputError("local: expected one plate of groups, and the argument whose column names them")


@dataclass(frozen=True)
class ProgramRecipe(BaseRecipe):
    """A program, and columns that are its arguments. `folder` is where its file lies on this side."""

    wanted: Program
    folder: Path

    @classmethod
    def read(cls, file: SettingsFile, tables: Table, folder: Path, waits: bool = True, once: bool = False) -> Self:
        """Read a recipe from sections of a federation's file; and from what its schedule does. Nothing is run."""
        for section in ("columns", "model"):
            if section in tables:
                raise file.error("", section, "does not go with [program], which has what it needs: leave it out")
        if "columns" not in tables["program"]:
            raise file.error("program", "columns", 'is missing: such as columns = { X = ["age", "bmi"], y = "ill" }')
        return cls(
            text=write_text(file, tables, waits, once),
            wanted=file.build("program", Program, tables["program"]),
            folder=folder,
            solver=read_solver(file, tables),
            seed=read_seed(file, tables),
            learns_hyper="hyper" in tables,
            waits=waits,
            once=once,
        )

    @property
    def name(self) -> str:
        return str(self.wanted.entry or self.wanted.file)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of the program, in the order in which data are handed over."""
        return tuple(sorted(self.wanted.columns) if self.wanted.arguments is None else self.wanted.arguments)

    @property
    def reads(self) -> tuple[str, ...]:
        columns = self.wanted.columns.values()
        return tuple(dict.fromkeys(name for one in columns for name in ([one] if isinstance(one, str) else one)))

    @property
    def group(self) -> str | None:
        """The argument that says what group a row belongs to."""
        return next(iter(self.wanted.local.values()), None)

    @property
    def questions(self) -> tuple[str, ...]:
        return tuple(kind.name for kind in (About, Layout, Groups, Evaluate))

    @cached_property
    def model(self) -> AbstractModel:
        """The model. The program is loaded here, which runs its code: nothing else does."""
        wanted = self.wanted
        if wanted.file is None:
            found = load_entry(str(wanted.entry))
        else:
            found = load_file(self.folder / wanted.file, str(wanted.sha256), wanted.function)
        if callable(found) and not isinstance(found, AbstractModel) and not inspect.signature(found).parameters:
            found = found()
        if not isinstance(found, AbstractModel):
            found = self._read_program(found)
        if isinstance(found, NumPyroModel):
            check_plate(found)
        return found

    def _read_program(self, found: Any) -> NumPyroModel:
        posterior: Any = self.wanted.posterior
        return from_numpyro(found, self.arguments, posterior, self.wanted.local or None)

    def check_question(self, question: Question) -> None:
        """None of its questions names columns or rows."""

    def begin(self, agreed: Agreed | None) -> AbstractModel:
        return self.model
