"""What is asked of sites beside tasks, and what they answer: frozen values, and both as bounded bytes.

A question that says nothing but its name is no bytes at all, and an answer that is one number is its eight. Anything
else is one message of `wire.messages`: plain values as JSON, numbers as arrays of declared dimensions, densities by
their leaves. Nothing is pickled, and nothing is read beyond the size that is declared here.

| question | asked by | answer |
|---|---|---|
| `About` | federations | that the site can work, and its number of rows |
| `ColumnNames` | fits | names of a frame's columns, whose order is then the same everywhere |
| `Layout` | programs of NumPyro | what a program is made of, found out on a site's rows |
| `Groups` | programs with groups | which groups are at a site, and how many rows the largest has |
| `Digest` | journals | what tells a site's data from others |
| `Evaluate` | the end of a run | E_q[log p(y_m given θ)] |
| `Levels` | formulas | whether columns hold numbers, or which levels they have |
| `Rows` | formulas | numbers of complete rows, of groups, and of rows that miss something |
| `Moments` | formulas, estimators | means of columns, and squares around them |
| `Products` | formulas, estimators | products of columns around agreed middles |
| `Predict` | calibration | sums of what predictions are beside what was observed |
| `Outline` | summaries | what columns hold: kinds, rough ranges, levels that several rows have |
| `Tabulate` | summaries | rows in agreed cells, none of them of a few; means of numbers, and squares around them |
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from partita.designs.columns import Column
from partita.designs.design import Reading
from partita.designs.tallies import ColumnOutline, Cut
from partita.families import Family
from partita.models import Hyper

# The name under which messages of both sides travel in a federation.
RECORD = "partita"


class Question:
    """What a site may be asked. It is known by its name, which is the name of its policy too."""

    name: ClassVar[str]


class Answer:
    """What a site answers."""


@dataclass(frozen=True)
class About(Question):
    """Whether a site can work, and how many rows it has."""

    name: ClassVar[str] = "about"


@dataclass(frozen=True)
class AboutAnswer(Answer):
    rows: float


@dataclass(frozen=True)
class ColumnNames(Question):
    """What the columns of a site's inputs are called, if they are a frame."""

    name: ClassVar[str] = "columns"


@dataclass(frozen=True)
class ColumnNamesAnswer(Answer):
    names: tuple[str, ...] | None


@dataclass(frozen=True)
class Layout(Question):
    """What a model is made of that has to see rows to find that out: asked of one site, for all."""

    name: ClassVar[str] = "layout"


@dataclass(frozen=True)
class LayoutAnswer(Answer):
    """`layout` in plain values; the moments of a Gaussian in the place of the prior, and whether it is the prior."""

    layout: dict[str, Any]
    location: np.ndarray
    scale: np.ndarray
    is_gaussian: bool


@dataclass(frozen=True)
class Groups(Question):
    """Which groups with variables of their own are at a site."""

    name: ClassVar[str] = "groups"


@dataclass(frozen=True)
class GroupsAnswer(Answer):
    codes: np.ndarray
    largest: int


@dataclass(frozen=True)
class Digest(Question):
    """What tells a site's data from others, so that a run is not resumed with other data."""

    name: ClassVar[str] = "digest"


@dataclass(frozen=True)
class DigestAnswer(Answer):
    digest: str


@dataclass(frozen=True)
class Evaluate(Question):
    """E_q[log p(y_m | θ)] of this posterior; given the site's factor, what the solver puts in that place."""

    name: ClassVar[str] = "evaluate"
    posterior: Family
    hyper: Hyper = field(default_factory=dict)
    factor: Family | None = None


@dataclass(frozen=True)
class EvaluateAnswer(Answer):
    value: float


@dataclass(frozen=True)
class Levels(Question):
    """Whether these columns hold numbers, or which levels they have.

    `categorical` ones have levels even if they are numbers. Rows count as often as the column of `weights` says.
    """

    name: ClassVar[str] = "levels"
    names: tuple[str, ...]
    categorical: tuple[str, ...] = ()
    group: str | None = None
    weights: str | None = None


@dataclass(frozen=True)
class LevelsAnswer(Answer):
    """`alike_groups`: how many groups have names that differ by case or blanks only."""

    columns: tuple[Column, ...]
    rows: int
    alike_groups: int


@dataclass(frozen=True)
class Rows(Question):
    """How many rows a formula reads at a site, without those that are held out."""

    name: ClassVar[str] = "rows"
    reading: Reading


@dataclass(frozen=True)
class RowsAnswer(Answer):
    """`digest` is of the targets; `two_valued` says of each column whether it is 0 or 1 in all rows."""

    rows: int
    groups: int | None
    missing: int
    largest_group: int
    digest: str
    two_valued: tuple[bool, ...]


@dataclass(frozen=True)
class Moments(Question):
    """Means of columns and of the target, and squares around them; of a shard `(X, y, weights)`, without a reading."""

    name: ClassVar[str] = "moments"
    reading: Reading | None = None


@dataclass(frozen=True)
class MomentsAnswer(Answer):
    """`total` are sums of squares around the mean, `size` are the largest absolute values."""

    count: float
    mean: np.ndarray
    total: np.ndarray
    size: np.ndarray
    target_mean: np.ndarray
    target_total: np.ndarray
    target_size: np.ndarray


@dataclass(frozen=True)
class Products(Question):
    """Products of these columns with each other, around these middles and in these units."""

    name: ClassVar[str] = "products"
    used: np.ndarray
    centre: np.ndarray
    unit: np.ndarray
    reading: Reading | None = None


@dataclass(frozen=True)
class ProductsAnswer(Answer):
    products: np.ndarray


@dataclass(frozen=True)
class Predict(Question):
    """How predictions with these draws of the posterior compare with what was observed: of rows that were held out, if
    any were, else of the fitted ones.
    """

    name: ClassVar[str] = "predict"
    reading: Reading
    seed: int
    coefficients: np.ndarray
    others: dict[str, np.ndarray]


@dataclass(frozen=True)
class PredictAnswer(Answer):
    rows: int
    sums: dict[str, np.ndarray]


@dataclass(frozen=True)
class Outline(Question):
    """What these columns of a table are like, all of them if none are named; as little of it as can be agreed on.

    `categorical` ones have levels even if they are numbers. Nothing is told of fewer than `fewest` rows.
    """

    name: ClassVar[str] = "outline"
    names: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    fewest: int = 3


@dataclass(frozen=True)
class OutlineAnswer(Answer):
    columns: tuple[ColumnOutline, ...]
    rows: int


@dataclass(frozen=True)
class Tabulate(Question):
    """Rows counted in agreed cells of columns, broken down by another one, and in crossings of two.

    Args:
        columns: how each column is cut; the one of `by` among them.
        by: the column of levels by which all others are broken down.
        crosses: pairs of columns of levels.
        fewest: a cell with fewer rows is counted together with others.
    """

    name: ClassVar[str] = "tabulate"
    columns: tuple[Cut, ...]
    by: str | None = None
    crosses: tuple[tuple[str, str], ...] = ()
    fewest: int = 3


@dataclass(frozen=True)
class TabulateAnswer(Answer):
    """`parts` is the part of each cell of `by`, and `sizes` how many rows each part has; `tallies` are what
    `site.tallies` counts, arrays by name, for each column in order and then for each pair.
    """

    rows: int
    parts: np.ndarray
    sizes: np.ndarray
    tallies: tuple[dict[str, np.ndarray], ...]


# Every question by its name, with the answer that belongs to it.
ANSWERS: dict[type[Question], type[Answer]] = {
    About: AboutAnswer,
    ColumnNames: ColumnNamesAnswer,
    Layout: LayoutAnswer,
    Groups: GroupsAnswer,
    Digest: DigestAnswer,
    Evaluate: EvaluateAnswer,
    Levels: LevelsAnswer,
    Rows: RowsAnswer,
    Moments: MomentsAnswer,
    Products: ProductsAnswer,
    Predict: PredictAnswer,
    Outline: OutlineAnswer,
    Tabulate: TabulateAnswer,
}
QUESTIONS: dict[str, type[Question]] = {kind.name: kind for kind in ANSWERS}
# What a message to a site of a federation may be.
KINDS = frozenset({"refine", *QUESTIONS})
# What a site takes any other message for; nothing of it is read.
FOREIGN = "foreign"
