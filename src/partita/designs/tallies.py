"""What summaries of tables are made of, in plain values that both sides share: outlines of columns, and their cuts."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from partita.errors import InputError

Kind = Literal["numbers", "whole numbers", "two values", "levels", "dates", "nothing"]
KINDS = get_args(Kind)
# Kinds of columns whose values are numbers, and may be looked at as such.
NUMERIC = ("numbers", "whole numbers", "two values")
# The most levels of a column that are told apart, and the most characters of one; columns, and edges of one.
MOST_LEVELS, LONGEST_LEVEL, MOST_COLUMNS, MOST_EDGES = 50, 200, 1000, 1000
# Shares of a column's numbers that lie below its knots, about; the first and the last are near its ends.
SHARES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True)
class ColumnOutline:
    """What a column is like at one site, before it is summed up.

    Args:
        name: of the column.
        kind: what its values are.
        knots: rough quantiles of numbers, each the mean of several neighbours and rounded; none, if there are too few.
        levels: the most frequent levels, without those that few rows have.
    """

    name: str
    kind: Kind
    knots: tuple[float, ...] = ()
    levels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"kind: expected one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.knots and (len(self.knots) != len(SHARES) or not np.all(np.diff(self.knots) >= 0)):
            raise InputError(f"knots: expected {len(SHARES)} numbers in order")
        if len(self.levels) > MOST_LEVELS or len(set(self.levels)) < len(self.levels):
            raise InputError(f"levels: expected at most {MOST_LEVELS}, each once")


@dataclass(frozen=True)
class Cut:
    """How the rows of a column are sorted into cells, the same at every site.

    With levels there is a cell for each, one for all others, and one for rows that miss it. With edges there is a cell
    below the first, between two, and above the last one; rows that miss it are counted by themselves.

    Args:
        name: of the column.
        levels: of a column of categories; None, of one of numbers.
        edges: of a column of numbers, in order; a number that is an edge lies above it.
        whole: whether all numbers are whole.
    """

    name: str
    levels: tuple[str, ...] | None = None
    edges: tuple[float, ...] = ()
    whole: bool = False

    def __post_init__(self) -> None:
        if self.levels is not None and (len(set(self.levels)) < len(self.levels) or self.edges):
            raise InputError(f"column {self.name!r}: expected levels, each once, or edges")
        if len(self.edges) > MOST_EDGES or not np.all(np.diff(self.edges) > 0):
            raise InputError(f"column {self.name!r}: expected at most {MOST_EDGES} edges in order")

    @property
    def cells(self) -> int:
        """How many cells there are."""
        return len(self.edges) + 1 if self.levels is None else len(self.levels) + 2
