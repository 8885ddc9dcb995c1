"""What updates may do before they are held back, refused, or their site is not asked again: age and trust region."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from partita.errors import StaleUpdate
from partita.families import Family
from partita.foundation.checks import check_count, check_positive
from partita.server.divergences import divergence as divergence
from partita.server.rules.base import STRIKE as STRIKE
from partita.server.rules.base import Proposal, Remark, RuleState, Setup
from partita.wire.tasks import Update

# How often the level of nats is halved before nothing is taken.
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


@dataclass(frozen=True)
class Age(RuleState):
    """Refuses updates that answer too old a task. It has no memory, so the rule is its own state."""

    most: int | None = None

    def init(self, setup: Setup) -> "Age":
        return self

    def admit(self, update: Update, version: int) -> None:
        age = version - update.version
        if self.most is not None and age > self.most:
            raise StaleUpdate(update.site, f"{age} updates were folded since it was asked, at most {self.most} may be")


@dataclass(frozen=True)
class TrustRegion:
    """Keeps every fold, and all folds of each site, within so many nats of where the posterior was."""

    limits: Limits

    def init(self, setup: Setup) -> "Trust":
        return Trust(self.limits, setup.least)


@dataclass
class Trust(RuleState):
    """How far the sites of a run may still move its posterior."""

    limits: Limits
    least: float = 0.0
    # How many nats each site's updates have moved the posterior so far; and which sites wanted more than was left.
    spent: dict[int, float] = field(default_factory=dict)
    exhausted: set[int] = field(default_factory=set)
    # What was let through last, and which share of what had come.
    _passed: Proposal | None = None
    _shares: np.ndarray = field(default_factory=lambda: np.ones(0))

    @property
    def change(self) -> float:
        return np.inf if self.limits.change is None else self.limits.change

    def left(self, site: int) -> float:
        """How many nats a site may still move the posterior."""
        return np.inf if self.limits.total is None else max(0.0, self.limits.total - self.spent.get(site, 0.0))

    def apply(self, proposal: Proposal) -> Proposal:
        self._shares = self.shares(proposal.sites, proposal.posterior, proposal.changes, self.least)
        self._passed = proposal.cut(self._shares)
        return self._passed

    def shares(self, sites: Sequence[int], posterior: Family, changes: Family, least: float = 0.0) -> np.ndarray:
        """For each site the share of its change that may be taken; nothing, where that is less than the least."""
        if self.limits.change is None and self.limits.total is None:
            return np.ones(len(sites))
        rows = list(zip(sites, changes.rows(), strict=True))
        level = self.change
        for _ in range(HALVINGS):
            found = np.array([share_within(posterior, row, min(level, self.left(site))) for site, row in rows])
            found[found < least] = 0.0
            total = changes.scale_rows(found).product_of_rows()
            if self.limits.change is None or self.allows(posterior, posterior * total):
                cut = zip(sites, found, strict=True)
                self.exhausted |= {site for site, share in cut if share < 1 and self.left(site) < level}
                return found
            level /= 2
        return np.zeros(len(sites))

    def allows(self, old: Family, new: Family) -> bool:
        """Whether a fold may move the posterior there."""
        return self.limits.change is None or bool(divergence(new, old) <= self.limits.change)

    def after_fold(self, taken: np.ndarray) -> list[Remark]:
        """Count what was taken of each site's change."""
        assert self._passed is not None
        sites, posterior = self._passed.sites, self._passed.posterior
        if self.limits.total is not None:
            for site, row in zip(sites, self._passed.changes.scale_rows(taken).rows(), strict=True):
                self.spent[site] = self.spent.get(site, 0.0) + divergence(posterior * row, posterior)
        remarks = [
            Remark(site, f"its update goes too far, {share:.1g} of it was taken", strike=bool(share < STRIKE))
            for site, share in zip(sites, self._shares, strict=True)
            if share < 1
        ]
        used_up = f"its updates have moved the posterior by all of {self.limits.total or 0:g} nats that they may"
        return remarks + [Remark(site, used_up, quarantine=True) for site in sites if site in self.exhausted]

    def join(self, setup: Setup) -> None:
        self.least = setup.least

    def forgive(self, site: int) -> None:
        self.spent.pop(site, None)
        self.exhausted.discard(site)


def share_within(posterior: Family, change: Family, most: float) -> float:
    """The largest of 1, ½, ¼, … of a change that moves the posterior by at most so many nats."""
    share = 1.0
    while share > np.finfo(float).tiny:
        if divergence(posterior * change**share, posterior) <= most:
            return share
        share /= 2
    return 0.0
