"""The server's state: the prior and one factor per site. The posterior is derived from them.

    posterior = prior × ∏ factors

An update replaces a site's factor. `fold` takes the changes of one or several sites at once and accepts the
largest share of them that keeps the posterior, and every site's cavity, proper. Nothing changes when it refuses.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import jax
import numpy as np

from partita.errors import ImproperDensity, InputError, MalformedUpdate, NotOutstanding
from partita.families import Cone, Family
from partita.families.cone import admissible_share, is_surely_inside, lower_bound, shifted
from partita.models import Hyper


@dataclass(frozen=True)
class Task:
    """Server → site: refine your factor, given this posterior."""

    site: int
    version: int
    posterior: Family
    factor: Family
    hyper: Hyper
    start: Family | None = None

    @property
    def begin(self) -> Family:
        """Where the refinement starts."""
        return self.posterior if self.start is None else self.start

    @property
    def nbytes(self) -> int:
        start = 0 if self.start is None else self.start.nbytes
        return self.posterior.nbytes + self.factor.nbytes + start + 8 * len(self.hyper)


@dataclass(frozen=True)
class Update:
    """Site → server: how the factor should change (proposal / factor), and what was seen on the way.

    The three expectations are under the density that the refinement started from.
    """

    site: int
    version: int
    change: Family
    expected_log_prob: float
    expected_log_factor: float = 0.0
    expected_log_change: float = 0.0
    steps: int = 0
    outcome: int = 0
    hyper_gradient: Hyper = field(default_factory=dict)
    seconds: float = 0.0
    finished_at: float = 0.0

    @property
    def nbytes(self) -> int:
        return self.change.nbytes + 8 * (4 + len(self.hyper_gradient))


def stacked(families: Sequence[Any]) -> Any:
    """Several trees of one shape as one tree with a leading axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *families)


def unchanged(changes: Family) -> Family:
    return changes


class Ledger:
    """prior × ∏ factors, with who is working on what. Factors are kept stacked, one row per site."""

    def __init__(self, prior: Family, sites: int):
        if sites < 1:
            raise InputError("shards: expected at least one site")
        if not is_surely_inside(prior.cone()):
            raise ImproperDensity("prior: must be proper")
        self.prior = prior
        self.posterior = prior
        self.sites = sites
        self.version = 0
        self.outstanding: dict[int, int] = {}
        self._factors = jax.tree.map(lambda a: np.zeros((sites, *np.shape(a)), a.dtype), prior)
        # A lower bound of all cavities, or None where it has to be computed afresh.
        self._weakest: Cone | None = prior.cone()

    def factor(self, site: int) -> Family:
        """t_m."""
        return jax.tree.map(lambda a: a[site].copy(), self._factors)

    def cavity(self, site: int) -> Family:
        """q / t_m: what all the others believe."""
        return self.posterior / self.factor(site)

    def recomputed_posterior(self) -> Family:
        """prior × ∏ factors from scratch."""
        return self.prior * jax.tree.map(lambda a: a.sum(axis=0), self._factors)

    def dispatch(self, site: int, hyper: Hyper, start: Family | None = None) -> Task:
        """Hand a site its next task; it is outstanding until its update is folded."""
        self.outstanding[site] = self.version
        return Task(site, self.version, self.posterior, self.factor(site), hyper, start)

    def fold(self, updates: Sequence[Update], temper: Callable[[Family], Family] = unchanged) -> float:
        """Apply updates together, after a damping policy has tempered their stacked changes.

        Returns the share of the tempered changes that was accepted.
        """
        for update in updates:
            self._check(update)
        sites = [update.site for update in updates]
        if len(set(sites)) != len(sites):
            raise NotOutstanding(sites[0], "several updates of one site in one fold")
        changes = temper(stacked([update.change for update in updates]))
        share = self._apply(sites, changes, jax.tree.map(lambda a: a.sum(axis=0), changes))
        for site in sites:
            del self.outstanding[site]
        self.version += len(updates)
        return share

    def replace_prior(self, prior: Family) -> float:
        """Move the prior, as far as the posterior and every cavity stay proper; returns that share."""
        change = prior / self.prior
        share = self._apply([], None, change)
        self.prior = self.prior * change**share
        return share

    def _check(self, update: Update) -> None:
        if self.outstanding.get(update.site) != update.version:
            raise NotOutstanding(update.site, f"no task of version {update.version} is outstanding")
        expected, got = self.prior, update.change
        if type(got) is not type(expected) or jax.tree.structure(got) != jax.tree.structure(expected):
            raise MalformedUpdate(update.site, f"expected a change of family {type(expected).__name__}")
        for i, (a, b) in enumerate(zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True)):
            if np.shape(a) != np.shape(b) or a.dtype != b.dtype:
                problem = f"expected {a.dtype} of shape {np.shape(a)}, got {b.dtype} of shape {np.shape(b)}"
            elif not np.all(np.isfinite(b)):
                problem = "is not finite"
            else:
                continue
            path = jax.tree_util.tree_leaves_with_path(expected)[i][0]
            raise MalformedUpdate(update.site, f"change{jax.tree_util.keystr(path)}: {problem}")

    def _apply(self, sites: list[int], changes: Family | None, total: Family) -> float:
        """q ← q × total^ρ and t_m ← t_m × change_m^ρ, with the largest ρ that keeps everything proper."""
        start, end = self.posterior.cone(), (self.posterior * total).cone()
        share = admissible_share(start, end)
        if len(sites) > 1 and changes is not None:
            share = min(share, self._own_share(sites, changes, total))
        others = len(sites) < self.sites
        if others:
            share = min(share, self._others_share(sites, start, end))
        share, moved, factors = self._verified(sites, changes, total, share)
        weakest = shifted(self._bound(), start, moved.cone()) if others else None
        self.posterior = moved
        for kept, new in zip(jax.tree.leaves(self._factors), jax.tree.leaves(factors), strict=True):
            kept[sites] = new
        if weakest is not None:
            weakest = reduce(lower_bound, (self.cavity(site).cone() for site in sites), weakest)
        self._weakest = weakest
        return share

    def _verified(
        self, sites: list[int], changes: Family | None, total: Family, share: float
    ) -> tuple[float, Family, Family]:
        """The new posterior and factors as they come out after rounding; less is taken until they are proper."""
        old = jax.tree.map(lambda a: a[sites], self._factors)
        while share > np.finfo(float).eps:
            moved = self.posterior * total**share
            factors = old if changes is None else old * changes**share
            cavities = jax.tree.map(lambda q, t: q - t, moved, factors)
            if is_surely_inside(moved.cone()) and is_surely_inside(cavities.cone()):
                return share, moved, factors
            share /= 2
        return 0.0, self.posterior, old

    def _own_share(self, sites: list[int], changes: Family, total: Family) -> float:
        """For the cavities of the sites that changed: each moves by what the others of them changed."""
        cavities = jax.tree.map(lambda q, t: q - t[sites], self.posterior, self._factors)
        moved = jax.tree.map(lambda c, everyone, own: c + (everyone - own), cavities, total, changes)
        return admissible_share(cavities.cone(), moved.cone())

    def _others_share(self, sites: list[int], start: Cone, end: Cone) -> float:
        """For the cavities of all other sites: by the bound, and exactly only where the bound does not do."""
        share = admissible_share(self._bound(), shifted(self._bound(), start, end))
        if share < 1:
            mine = set(sites)
            self._weakest = self._exact_bound([site for site in range(self.sites) if site not in mine])
            share = admissible_share(self._weakest, shifted(self._weakest, start, end))
        return share

    def _bound(self) -> Cone:
        if self._weakest is None:
            self._weakest = self._exact_bound(range(self.sites))
        return self._weakest

    def _exact_bound(self, sites: Sequence[int]) -> Cone:
        return reduce(lower_bound, (self.cavity(site).cone() for site in sites))
