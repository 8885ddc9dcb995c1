"""Stacks of large densities, a few rows at a time: what is computed of some rows stays in the cache.

Cavities are quotients here. Where division cancels all digits of any of them, nothing is found, and the ledger makes
all of them as products.
"""

from collections.abc import Iterator

from partita.families import Cone, Family
from partita.families.cone import LARGE, admissible_share, is_clear_of, is_surely_inside


def slice_groups(stack: Family) -> Iterator[tuple[slice, Family]]:
    """All rows of a stack in groups that are small or have one row: which rows, and a stack of them, a view."""
    rows = stack.leading
    step = max(1, LARGE * rows // max(1, stack.nbytes))
    groups = (slice(first, first + step) for first in range(0, rows, step))
    return ((group, stack.slice_rows(group)) for group in groups)


def find_share(
    posterior: Family, lost: Cone, factors: Family, changes: Family, total: Family, floor: Cone
) -> float | None:
    """The largest share of all changes that keeps the cavities of those who propose them proper.

    `lost` is what cannot be told from zero beside the posterior.
    """
    share = 1.0
    for rows, some in slice_groups(changes):
        cavities = posterior.divide_rows(factors.slice_rows(rows))
        if not is_clear_of(cavities.cone(), lost):
            return None
        share = min(share, admissible_share(cavities.cone(), (cavities * total.divide_rows(some)).cone(), floor))
    return share


def find_quotients(
    posterior: Family, lost: Cone, factors: Family, changes: Family, share: float
) -> list[Family] | None:
    """What has to be positive of cavities, where factors have taken a share of changes; None, if one is not proper."""
    found = []
    for rows, some in slice_groups(changes):
        cavities = posterior.divide_rows(factors.slice_rows(rows) * raise_to(some, share))
        cone = cavities.cone()
        if not (is_clear_of(cone, lost) and cavities.is_finite() and is_surely_inside(cone)):
            return None
        found.append(cavities.cone_part())
    return found


def raise_to(density: Family, share: float) -> Family:
    """A density to the power of a share; itself, where that is one."""
    return density if share == 1 else density**share
