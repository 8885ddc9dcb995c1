"""What updates may do before they are held back, refused, or their site is not asked again."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import equinox as eqx
import jax
import numpy as np

from partita.errors import StaleUpdate
from partita.families import Family
from partita.families.cone import is_surely_inside
from partita.families.stacks import rows_of, scaled
from partita.foundation.checks import check_count, check_positive
from partita.foundation.runtime import precision
from partita.wire.tasks import Update

# Where less of an update can be taken, none of it is, and it counts as a strike.
STRIKE = 1e-3
# How often a level is halved before nothing is taken.
HALVINGS = 60


@dataclass(frozen=True)
class Limits:
    """Against sites that are broken or mean harm; without them, everything that keeps densities proper is taken.

    Args:
        change: how many nats, KL(new ‖ old), one fold may move the posterior. Of a site's update that goes further, the
            largest of ½, ¼, … that does not is taken; where several sites go too far together, those that go furthest
            are held back. First updates of networks go as far as they have weights.
        total: how many nats all updates of one site may move the posterior over a run, each on its own. A site that has
            used them up is quarantined; its factor stays.
        strikes: a site of whose updates less than a thousandth could be taken so many times, because they go too far or
            would make a density improper, or whose reports contradict its updates, is quarantined. Two updates that are
            taken make up for one that was not.
        staleness: how many other updates may have been folded since a site was asked; what is older is refused, and the
            site asked again.
    """

    change: float | None = None
    strikes: int = 3
    staleness: int | None = None
    total: float | None = None

    def __post_init__(self) -> None:
        check_count("limits: ", strikes=self.strikes)
        if self.change is not None:
            check_positive("limits: ", change=self.change)
        if self.total is not None:
            check_positive("limits: ", total=self.total)
        if self.staleness is not None:
            check_count("limits: ", staleness=self.staleness)

    def check_age(self, update: Update, version: int) -> None:
        """Refuse an update that answers too old a task."""
        age = version - update.version
        if self.staleness is not None and age > self.staleness:
            raise StaleUpdate(
                update.site, f"{age} updates were folded since it was asked, at most {self.staleness} may be"
            )


@dataclass
class Trust:
    """How far the sites of a run may still move its posterior."""

    limits: Limits
    # How many nats each site's updates have moved the posterior so far; and who wanted more than is left.
    spent: dict[int, float] = field(default_factory=dict)
    exhausted: set[int] = field(default_factory=set)

    @property
    def change(self) -> float:
        return np.inf if self.limits.change is None else self.limits.change

    def left(self, site: int) -> float:
        """How many nats a site may still move the posterior."""
        return np.inf if self.limits.total is None else max(0.0, self.limits.total - self.spent.get(site, 0.0))

    def shares(self, sites: Sequence[int], posterior: Family, changes: Family, least: float = 0.0) -> np.ndarray:
        """Of each site's change, what may be taken of it; nothing, where that is less than the least."""
        if self.limits.change is None and self.limits.total is None:
            return np.ones(len(sites))
        rows = list(zip(sites, rows_of(changes), strict=True))
        level = self.change
        for _ in range(HALVINGS):
            found = np.array([share_within(posterior, row, min(level, self.left(site))) for site, row in rows])
            found[found < least] = 0.0
            if self.limits.change is None or self.allows(posterior, multiplied(posterior, scaled(changes, found))):
                cut = zip(sites, found, strict=True)
                self.exhausted |= {site for site, share in cut if share < 1 and self.left(site) < level}
                return found
            level /= 2
        return np.zeros(len(sites))

    def allows(self, old: Family, new: Family) -> bool:
        """Whether a fold may move the posterior there."""
        return self.limits.change is None or bool(divergence(new, old) <= self.limits.change)

    def forgive(self, site: int) -> None:
        """Somebody says that a site may be asked again: it begins anew."""
        self.spent.pop(site, None)
        self.exhausted.discard(site)

    def spend(self, sites: Sequence[int], posterior: Family, applied: Family) -> None:
        """Count what was taken of each site's change."""
        if self.limits.total is not None:
            for site, row in zip(sites, rows_of(applied), strict=True):
                self.spent[site] = self.spent.get(site, 0.0) + divergence(posterior * row, posterior)


def multiplied(density: Family, stack: Family) -> Family:
    """A density times all rows of a stack."""
    return jax.tree.map(lambda a, rows: a + rows.sum(axis=0), density, stack)


def share_within(posterior: Family, change: Family, most: float) -> float:
    """The largest of 1, ½, ¼, … of a change that moves the posterior by at most so many nats."""
    share = 1.0
    while share > np.finfo(float).tiny:
        if divergence(posterior * change**share, posterior) <= most:
            return share
        share /= 2
    return 0.0


def divergence(first: Family, second: Family) -> float:
    """KL(first ‖ second); infinite, where the first is improper and what the formula gives is no divergence."""
    if not is_surely_inside(first.cone()):
        return np.inf
    with precision(first.dtype):
        return float(_kl(first, second))


@eqx.filter_jit
def _kl(first: Family, second: Family) -> jax.Array:
    return first.kl(second)
