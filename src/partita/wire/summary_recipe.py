"""A recipe that fits nothing: sites are asked what their columns hold, and for counts in cells that they agree on."""

from dataclasses import dataclass
from typing import Self

from partita.errors import InputError
from partita.foundation.checks import check_count, import_extra
from partita.foundation.settings_files import SettingsFile, Table
from partita.models import AbstractModel
from partita.wire import questions as q
from partita.wire.agreed import Agreed
from partita.wire.base_recipe import BaseRecipe, refuse_beyond, write_text
from partita.wire.recipe import read_seed

# What a policy calls it, in the place of a model.
NAME = "summary"


@dataclass(frozen=True)
class Wanted:
    """The section [summary] of a federation's file: what `pt.summary` takes beside tables.

    Args:
        columns: that are summed up.
        by: a column of levels by which all others are broken down.
        categorical: columns of numbers that are levels.
        cross: pairs of columns of levels whose rows are counted together.
        fewest_per_cell: fewer rows are never counted by themselves.
    """

    columns: tuple[str, ...]
    by: str | None = None
    categorical: tuple[str, ...] = ()
    cross: tuple[tuple[str, str], ...] = ()
    fewest_per_cell: int = 3

    def __post_init__(self) -> None:
        check_count("", fewest_per_cell=self.fewest_per_cell)
        if not self.columns or len(set(self.columns)) < len(self.columns):
            raise InputError("columns: expected names of columns, each once")
        if any(first == second for first, second in self.pairs):
            raise InputError("cross: expected pairs of different columns")
        for name in self.categorical:
            if name not in self.names:
                raise InputError(f"categorical: {name!r} is none of the columns")

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The pairs of columns; in a file, they are lists."""
        return tuple((first, second) for first, second in self.cross)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are read."""
        pairs = (name for pair in self.pairs for name in pair)
        return tuple(dict.fromkeys((*self.columns, *([] if self.by is None else [self.by]), *pairs)))


@dataclass(frozen=True)
class SummaryRecipe(BaseRecipe):
    """Table 1 of the sites' tables."""

    wanted: Wanted

    @classmethod
    def read(cls, file: SettingsFile, tables: Table) -> Self:
        """Read a recipe from sections of a federation's file."""
        for section in ("columns", "model", "regression", "program", "solver", "hyper"):
            if section in tables:
                raise file.error("", section, "does not go with [summary], which fits nothing: leave it out")
        import_extra("polars", "polars", "formulas")
        if "columns" not in tables["summary"]:
            raise file.error("summary", "columns", 'is missing: such as columns = ["age", "sex"]')
        return cls(
            text=write_text(file, tables, waits=True, once=False),
            wanted=file.build("summary", Wanted, tables["summary"]),
            solver=None,
            seed=read_seed(file, tables),
            learns_hyper=False,
            waits=True,
            once=False,
        )

    @property
    def name(self) -> str:
        return NAME

    @property
    def reads(self) -> tuple[str, ...]:
        return self.wanted.names

    @property
    def questions(self) -> tuple[str, ...]:
        return tuple(kind.name for kind in (q.About, q.Outline, q.Tabulate))

    def begin(self, agreed: Agreed | None) -> AbstractModel | None:
        if agreed is not None:
            raise refuse_beyond("there is nothing to fit")
        return None

    def check_question(self, question: q.Question) -> None:
        wanted = self.wanted
        match question:
            case q.Outline():
                if (question.names, question.categorical) != (wanted.names, wanted.categorical):
                    raise refuse_beyond("other columns")
                self._check_fewest(question.fewest)
            case q.Tabulate():
                names = [cut.name for cut in question.columns]
                if len(set(names)) < len(names) or not set(names) <= set(wanted.names):
                    raise refuse_beyond("other columns")
                if (question.by, question.crosses) != (wanted.by, wanted.pairs):
                    raise refuse_beyond("another breakdown, or other pairs of columns")
                self._check_fewest(question.fewest)

    def _check_fewest(self, fewest: int) -> None:
        if fewest < self.wanted.fewest_per_cell:
            raise refuse_beyond(f"cells of fewer than {self.wanted.fewest_per_cell} rows")
