"""What a site is willing to answer, however the server asks; the limits are in the site's own file."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from partita.errors import InputError, PolicyRefusal
from partita.foundation.checks import check_count, check_one_of, check_positive
from partita.foundation.text import clean

# What a federation's site can answer at all, where its person has approved a recipe that needs it: its number of rows,
# updates, log likelihoods, and what formulas and programs have to know of tables beforehand.
KINDS = (
    "about",
    "refine",
    "evaluate",
    "levels",
    "rows",
    "moments",
    "products",
    "layout",
    "groups",
    "outline",
    "tabulate",
)
# What is not counted: whoever asks how a site is asks again and again.
UNCOUNTED = ("about",)


class Cells(NamedTuple):
    """A column whose values are counted: all of them if they are classes or levels, else if there are two of them."""

    name: str
    values: np.ndarray
    are_classes: bool


@dataclass(frozen=True)
class Policy:
    """The limits of a site, in the section [policy] of its own file.

    Args:
        columns: names in the site's own table that a recipe may use; any, if not given.
        models: which models may be fitted; any, if not given.
        answers: kinds of answers that may leave.
        compression: whether answers may leave in fewer digits, as the server asks for.
        fewest_rows: a site whose table has fewer answers nothing: what it would send tells too much of each.
        fewest_per_cell: the same for rows that have one of two values of a column, or one class of the target.
        most_parameters: natural parameters of the model, which are the numbers that an answer holds.
        most_parameters_per_row: parameters that are learnt, for each row of the table: with about as many as there are
            rows, a fit is a copy of them.
        most_tasks: tasks under one approved recipe; a round is one.
        most_questions: questions beside tasks: what the data's log likelihood is at a posterior that the server sends,
            and what has to be known of tables before a run.
    """

    columns: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    answers: tuple[str, ...] = KINDS
    compression: bool = True
    fewest_rows: int = 10
    fewest_per_cell: int = 3
    most_parameters: int = 10_000
    most_parameters_per_row: float = 0.33
    most_tasks: int = 1000
    most_questions: int = 50

    def __post_init__(self) -> None:
        counts = ("fewest_rows", "fewest_per_cell", "most_parameters", "most_tasks", "most_questions")
        check_count("", **{name: getattr(self, name) for name in counts})
        check_positive("", most_parameters_per_row=self.most_parameters_per_row)
        for kind in self.answers:
            check_one_of("", KINDS, answers=kind)
        for name in ("columns", "models"):
            if getattr(self, name) == ():
                raise InputError(f"{name}: is empty, so that nothing could be answered: leave it out to allow any")

    def check_kind(self, kind: str) -> None:
        if kind in KINDS and kind not in self.answers:
            raise _refuse("answers", f"answers to {kind!r} may not leave this site")

    def check_fewest(self, fewest: int) -> None:
        """Check how many rows a cell of a summary has to have."""
        if fewest < self.fewest_per_cell:
            raise _refuse(
                "fewest_per_cell",
                f"the server asks for cells of {fewest} rows and more, fewer than the policy asks for "
                f"(fewest_per_cell = {self.fewest_per_cell})",
            )

    def check_compression(self, wanted: str) -> None:
        if wanted != "none" and not self.compression:
            raise _refuse("compression", "answers may not leave this site compressed")

    def check_columns(self, columns: Mapping[str, str]) -> None:
        """Check the columns of a recipe: by the federation's names, what they are called in the site's own table."""
        for name, own in columns.items():
            if self.columns is not None and own not in self.columns:
                raise _refuse("columns", f"the column {clean(name)!r} may not be used here")

    def check_model(self, name: str) -> None:
        if self.models is not None and name not in self.models:
            raise _refuse("models", f"the model {clean(name)!r} may not be used here")

    def check_parameters(self, number: int) -> None:
        if number > self.most_parameters:
            raise PolicyRefusal(
                "most_parameters",
                f"the model has {number} natural parameters, and the policy allows {self.most_parameters}",
                f"write most_parameters = {number} in [policy] of site.toml, if that is right",
            )

    def check_rows(self, rows: int) -> None:
        """Check the number of rows of the table."""
        # Without the number: what is said here ends in logs, and at the server.
        if rows < self.fewest_rows:
            raise PolicyRefusal(
                "fewest_rows",
                f"the table has fewer rows than the policy asks for (fewest_rows = {self.fewest_rows})",
            )

    def check_parameters_per_row(self, parameters: int, rows: int) -> None:
        """Check the number of parameters that are learnt beside that of the rows of the table."""
        if parameters > self.most_parameters_per_row * rows:
            raise PolicyRefusal(
                "most_parameters_per_row",
                f"the model learns {parameters} parameters, more than the policy allows for this site's rows "
                f"(most_parameters_per_row = {self.most_parameters_per_row:g})",
                f"take at least {math.ceil(parameters / self.most_parameters_per_row)} rows, or write {parameters} "
                "divided by the number of your rows, rounded up, as most_parameters_per_row in [policy] of site.toml, "
                "if that is right",
            )

    def check_cells(self, columns: Iterable[Cells]) -> None:
        """Check how many rows have another value than most, column by column; and of classes how many have each."""
        for name, values, are_classes in columns:
            # As models see them: what rounding tells apart is one value.
            with np.errstate(over="ignore"):
                counts = np.unique(np.asarray(values, np.float32), return_counts=True)[1]
            if not len(counts):
                continue
            others = counts.sum() - counts.max()
            if 0 < others < self.fewest_per_cell or (are_classes and counts.min() < self.fewest_per_cell):
                raise _refuse(
                    "fewest_per_cell",
                    f"too few rows have one of the values of the column {clean(name)!r} "
                    f"(fewest_per_cell = {self.fewest_per_cell})",
                )

    def check_terms(self, columns: np.ndarray) -> None:
        """The same of what a formula makes of columns. No term is named, because its name has that of a level in it."""
        if not len(columns):
            return
        low, high = columns.min(axis=0), columns.max(axis=0)
        # What differs by less than a millionth of a term's range is the same: a few rows are no more than that.
        places = np.rint(1e6 * (columns - low) / np.where(high > low, high - low, 1.0))
        others = [len(places) - np.unique(place, return_counts=True)[1].max() for place in places.T]
        if any(0 < number < self.fewest_per_cell for number in others):
            raise _refuse(
                "fewest_per_cell",
                "too few of the complete rows have one of the values of a term of the formula "
                f"(fewest_per_cell = {self.fewest_per_cell})",
            )

    def check_levels(self, counts: Iterable[np.ndarray]) -> None:
        """Check how many complete rows have each level of a column, those that no term is made of among them."""
        if any(np.any(count < self.fewest_per_cell) for count in counts):
            raise _refuse(
                "fewest_per_cell",
                f"too few of the complete rows have one of the levels (fewest_per_cell = {self.fewest_per_cell})",
            )

    def check_held_out(self, rows: int) -> None:
        """Check how many rows are held out: sums over all rows, less those over the others, tell of them."""
        if 0 < rows < self.fewest_rows:
            raise _refuse("fewest_rows", f"fewer rows would be held out than that (fewest_rows = {self.fewest_rows})")

    def check_groups(self, groups: int | None) -> None:
        """Check how many groups there are: with two, what is learnt of their spread is the difference of two groups."""
        if groups is not None and 1 < groups < self.fewest_per_cell:
            raise _refuse(
                "fewest_per_cell", f"there are too few groups of rows (fewest_per_cell = {self.fewest_per_cell})"
            )


def _refuse(key: str, told: str) -> PolicyRefusal:
    return PolicyRefusal(key, told, f"change {key} in [policy] of site.toml, if that is right")
