"""Stacks of large densities, a few rows at a time: what is computed of some rows stays in the cache."""

from collections.abc import Iterator

from partita.families import Family
from partita.families.cone import LARGE


def slice_groups(stack: Family) -> Iterator[tuple[slice, Family]]:
    """All rows of a stack in groups that are small or have one row: which rows, and a stack of them, a view."""
    rows = stack.leading
    step = max(1, LARGE * rows // max(1, stack.nbytes))
    return ((slice(first, first + step), stack.slice_rows(slice(first, first + step))) for first in range(0, rows, step))
