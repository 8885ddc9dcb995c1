"""The server's state: the prior and one factor per site. The posterior is derived from them.

    posterior = prior × ∏ factors

An update replaces a site's factor. `fold` takes the changes of one or several sites at once and accepts the
largest share of them that keeps the posterior, and every site's cavity, proper. Nothing changes when it refuses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import jax
import numpy as np

from partita.errors import ImproperDensity, InputError, MalformedUpdate, NotOutstanding
from partita.families import Cone, Family
from partita.families.cone import admissible_share, lower_bound, shifted
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


class Ledger:
    """prior × ∏ factors, with who is working on what."""

    def __init__(self, prior: Family, sites: int):
        if sites < 1:
            raise InputError("shards: expected at least one site")
        if not prior.is_proper():
            raise ImproperDensity("prior: must be proper")
        self.prior = prior
        self.factors: list[Family] = [prior**0] * sites
        self.posterior = prior
        self.version = 0
        self.outstanding: dict[int, int] = {}
        # A lower bound of all cavities, or None where it has to be computed afresh.
        self._weakest: Cone | None = prior.cone()

    @property
    def sites(self) -> int:
        return len(self.factors)

    def cavity(self, site: int) -> Family:
        """q / t_m: what all the others believe."""
        return self.posterior / self.factors[site]

    def recomputed_posterior(self) -> Family:
        """prior × ∏ factors from scratch."""
        return reduce(lambda a, b: a * b, self.factors, self.prior)

    def dispatch(self, site: int, hyper: Hyper, start: Family | None = None) -> Task:
        """Hand a site its next task; it is outstanding until its update is folded."""
        self.outstanding[site] = self.version
        return Task(site, self.version, self.posterior, self.factors[site], hyper, start)

    def fold(self, updates: Sequence[Update], changes: Mapping[int, Family] | None = None) -> float:
        """Apply updates together, or `changes` that a damping policy made of them.

        Returns the share of the changes that was accepted.
        """
        for update in updates:
            self._check(update)
        if len({update.site for update in updates}) != len(updates):
            raise NotOutstanding(updates[0].site, "several updates of one site in one fold")
        wanted = {u.site: u.change for u in updates} if changes is None else dict(changes)
        share = self._apply(wanted, reduce(lambda a, b: a * b, wanted.values()))
        for update in updates:
            del self.outstanding[update.site]
        self.version += len(updates)
        return share

    def replace_prior(self, prior: Family) -> float:
        """Move the prior, as far as the posterior and every cavity stay proper; returns that share."""
        change = prior / self.prior
        share = self._apply({}, change)
        self.prior = self.prior * change**share
        return share

    def _check(self, update: Update) -> None:
        if self.outstanding.get(update.site) != update.version:
            raise NotOutstanding(update.site, f"no task of version {update.version} is outstanding")
        expected, got = self.factors[update.site], update.change
        if type(got) is not type(expected) or jax.tree.structure(got) != jax.tree.structure(expected):
            raise MalformedUpdate(update.site, f"expected a change of family {type(expected).__name__}")
        names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(expected)]
        for name, a, b in zip(names, jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
            if np.shape(a) != np.shape(b) or a.dtype != b.dtype:
                raise MalformedUpdate(
                    update.site, f"{name}: expected {a.dtype} of shape {np.shape(a)}, got {b.dtype} {np.shape(b)}"
                )
            if not np.all(np.isfinite(b)):
                raise MalformedUpdate(update.site, f"{name}: is not finite")

    def _apply(self, changes: Mapping[int, Family], total: Family) -> float:
        """posterior ← posterior × total^ρ and t_m ← t_m × change_m^ρ, with the largest ρ that keeps all proper."""
        others = len(changes) < self.sites
        start, end = self.posterior.cone(), (self.posterior * total).cone()
        share = admissible_share(start, end)
        if not (len(changes) == 1 and self.sites == 1):
            share = min(share, self._own_share(changes, total))
        if others:
            share = min(share, self._others_share(changes, start, end))
        moved = self.posterior * total**share
        weakest = shifted(self._bound(), start, moved.cone()) if others else None
        self.posterior = moved
        for site, change in changes.items():
            self.factors[site] = self.factors[site] * change**share
            if weakest is not None:
                weakest = lower_bound(weakest, self.cavity(site).cone())
        self._weakest = weakest
        return share

    def _own_share(self, changes: Mapping[int, Family], total: Family) -> float:
        """For the cavities of the sites that changed: each moves by what the others of them changed."""
        if len(changes) < 2:
            return 1.0
        cavities = ((self.cavity(site), total / change) for site, change in changes.items())
        return min(admissible_share(c.cone(), (c * rest).cone()) for c, rest in cavities)

    def _others_share(self, changes: Mapping[int, Family], start: Cone, end: Cone) -> float:
        """For the cavities of all other sites: by the bound, and exactly only where the bound does not do."""
        share = admissible_share(self._bound(), shifted(self._bound(), start, end))
        if share < 1:
            self._weakest = reduce(
                lower_bound, (self.cavity(site).cone() for site in range(self.sites) if site not in changes)
            )
            share = admissible_share(self._weakest, shifted(self._weakest, start, end))
        return share

    def _bound(self) -> Cone:
        if self._weakest is None:
            self._weakest = reduce(lower_bound, (self.cavity(site).cone() for site in range(self.sites)))
        return self._weakest
