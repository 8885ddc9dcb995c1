"""Cavities of many sites at once, a few rows at a time: what is computed of large densities stays in the cache."""

from collections.abc import Iterator

from partita.families import Family
from partita.families.cone import LARGE, is_clear_of, rounding_floor

# Some rows of a stack, and a stack of what belongs to them.
Group = tuple[slice, Family]


def group_rows(stack: Family) -> list[slice]:
    """All rows of a stack, in groups so small that what is computed of one stays in the cache."""
    rows = stack.leading
    step = max(1, LARGE * rows // max(1, stack.nbytes))
    return [slice(first, first + step) for first in range(0, rows, step)]


def slice_groups(stack: Family) -> Iterator[Group]:
    """A stack, group by group; views."""
    return ((rows, stack.slice_rows(rows)) for rows in group_rows(stack))


def divide_groups(posterior: Family, factors: Family) -> Iterator[Group]:
    """A posterior divided by each row of a stack of factors, group by group."""
    return ((rows, posterior.divide_rows(some)) for rows, some in slice_groups(factors))


def leaves_digits(posterior: Family, factors: Family) -> bool:
    """Whether division by these factors leaves digits of every cavity: if not, they are products of other factors."""
    own, floor = posterior.cone_part(), rounding_floor(posterior.cone())
    return all(is_clear_of(some.cone(), floor) for _, some in divide_groups(own, factors.cone_part()))
