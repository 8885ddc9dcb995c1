"""What a server says of how a table is read, beside what this table is: it may not choose anything that parts off rows.

Which terms are evaluated follows from the recipe. Columns, levels, middles and units are what sites have agreed on,
and a server may say that they have agreed on anything. So columns have to be of the kind that they are here, levels in
the order that follows from them, and middles and units of an order of size that a column of this site can have where
other sites' columns are far larger or smaller: beyond it, rounding would tell how many rows lie beyond a value.
"""

from collections.abc import Mapping
from dataclasses import fields

import numpy as np

from partita.designs.columns import Column, sort_levels
from partita.designs.design import Reading
from partita.errors import InputError
from partita.foundation.moments import round_up_sizes
from partita.wire.base_recipe import refuse_beyond
from partita.wire.questions import Answer, Products

# How far off a middle may be, and how large or small a unit, beside the column's own size and deviation here.
FARTHEST, WIDEST, NARROWEST = 1e12, 1e12, 1e-6
# The most groups of all sites.
MOST_GROUPS = 2**31 - 1


def check_kinds(columns: Mapping[str, Column], own: Mapping[str, Column]) -> None:
    """Check that columns are read as what they are here: numbers, or levels in their order."""
    if set(columns) != set(own):
        raise refuse_beyond("other columns than the formula has")
    for name, column in columns.items():
        if (column.levels is None) != (own[name].levels is None):
            raise refuse_beyond("a column of numbers as levels, or of levels as numbers")
        if column.levels is not None and tuple(column.levels) != sort_levels(set(column.levels)):
            raise refuse_beyond("levels in another order than sites agree on")


def check_units(centre: np.ndarray, unit: np.ndarray, columns: np.ndarray) -> None:
    """Check that middles and units can be those of columns like these; what is compared with them is told anyway."""
    if not (np.all(np.isfinite(centre)) and np.all(np.isfinite(unit)) and np.all(unit > 0)):
        raise refuse_beyond("middles or units that are no numbers")
    if not len(columns):
        return
    with np.errstate(over="ignore"):
        size, spread = round_up_sizes(np.abs(columns).max(axis=0)), columns.std(axis=0)
        is_far = (np.abs(centre) > FARTHEST * size) | (unit > WIDEST * size) | (unit < NARROWEST * spread)
    if np.any(is_far & (size > 0)):
        raise refuse_beyond("middles or units that columns like these cannot have")


def check_products(question: Products, columns: np.ndarray) -> None:
    """Check that products are asked of columns that there are, each once."""
    used = np.asarray(question.used)
    if np.any(np.diff(used) <= 0) or np.any(used < 0) or np.any(used >= columns.shape[1]):
        raise refuse_beyond("products of columns that there are not, or of one more than once")
    if np.shape(question.centre) != used.shape or np.shape(question.unit) != used.shape:
        raise refuse_beyond("products without a middle and a unit for each column")
    check_units(np.asarray(question.centre), np.asarray(question.unit), columns[:, used])


def check_groups(reading: Reading, takes_groups: bool) -> None:
    """Check that rows are numbered by groups where the model takes groups, and nowhere else."""
    if bool(reading.first_groups) != takes_groups:
        raise refuse_beyond("groups of rows where the formula has none, or none where it has some")
    if any(not 0 <= first <= MOST_GROUPS for first in reading.first_groups):
        raise refuse_beyond("more groups than can be counted")


def check_finite(answer: Answer) -> None:
    """Check that what is about to leave are numbers."""
    for field in fields(answer):  # type: ignore[arg-type]
        value = getattr(answer, field.name)
        if isinstance(value, float | np.ndarray) and not np.all(np.isfinite(value)):
            raise InputError(f"the answer to a question would hold numbers that are not finite ({field.name})")
