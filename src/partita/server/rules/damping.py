"""How much of a proposed change is taken: ρ in (0, 1], where 1 takes it whole.

(The paper's appendix calls a higher damping factor a slower update; here it is the other way round.)
Whatever a damping rule asks for, later rules leave less of it where the posterior would go too far or become improper.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from partita.errors import InputError
from partita.families import Family
from partita.foundation.checks import check_share, is_number
from partita.server.rules.base import FreeEnergy, Proposal, Remark, Rule, RuleState, Setup
from partita.server.rules.blame import Blame
from partita.server.rules.secants import Secants
from partita.solvers.rates import RobbinsMonro

# Falls of fewer nats say nothing: quadrature makes values and gradients disagree by as much near a fixed point.
NEGLIGIBLE = 1e-6
# After so many steps back in a row, the better free energy of before cannot be had again.
MOST_RETURNS = 8


@dataclass
class Damper(RuleState):
    """A damping rule in one run. This one asks for the same share of everything, always."""

    # The share of the latest proposals that was asked for.
    share: float

    def apply(self, proposal: Proposal) -> Proposal:
        return replace(proposal, changes=proposal.changes**self.share, wanted=self.share)


@dataclass(frozen=True)
class Fixed:
    """Always the same share; None stands for one over the number of sites."""

    value: float | None = None

    def __post_init__(self) -> None:
        if self.value is not None:
            check_share(damping=self.value)

    def init(self, setup: Setup) -> Damper:
        return FixedDamper(self.share(setup), self)

    def share(self, setup: Setup) -> float:
        """The share in a run of so many sites."""
        return 1 / setup.sites if self.value is None else self.value


@dataclass
class FixedDamper(Damper):
    settings: Fixed

    def join(self, setup: Setup) -> None:
        self.share = self.settings.share(setup)


@dataclass(frozen=True)
class Falling:
    """A share that falls from fold to fold, first · (1 + i / delay)^(-power): a Robbins-Monro rate, so that what sites
    report with noise averages out (Section 3.4 of the paper). `power` is above ½ and at most 1.
    """

    first: float = 0.5
    delay: float = 10.0
    power: float = 1.0

    def __post_init__(self) -> None:
        RobbinsMonro(self.first, self.delay, self.power)

    def init(self, setup: Setup) -> "FallingDamper":
        return FallingDamper(self.first, RobbinsMonro(self.first, self.delay, self.power))


@dataclass
class FallingDamper(Damper):
    """`folds` is how many there were."""

    rate: RobbinsMonro
    folds: int = 0

    def apply(self, proposal: Proposal) -> Proposal:
        self.share = self.rate(self.folds)
        self.folds += 1
        return replace(proposal, changes=proposal.changes**self.share, wanted=self.share)


@dataclass(frozen=True)
class Auto:
    """Starts at 1/M where sites work at once and at 1 where they take turns.

    Grows while the estimated free energy improves, and shrinks when it falls. Where the fall is certain, because all
    sites have evaluated one posterior, the step that caused it is taken back to the new share instead of another. Where
    sites report with noise (Monte Carlo, mini-batches) the estimates are smoothed, and nothing is taken back.
    """

    grow: float = 1.5
    regrow: float = 1.1
    shrink: float = 0.5
    caution: float = 0.5

    def init(self, setup: Setup) -> "AutoDamper":
        first = 1 / setup.sites if setup.parallel else 1.0
        return AutoDamper(
            first,
            settings=self,
            current=first,
            smallest=smallest_share(setup),
            blame=Blame(self.shrink, self.regrow),
            smooth=Smooth() if setup.stochastic else None,
        )


def smallest_share(setup: Setup) -> float:
    """The share below which automatic damping does not go."""
    return min(1e-3, 0.1 / setup.sites)


@dataclass
class Smooth:
    """A running mean of noisy free energies, and of how far they lie from it."""

    mean: float | None = None
    spread: float = 0.0

    def add(self, value: float) -> tuple[float, float]:
        if self.mean is None:
            self.mean = value
        self.spread = 0.8 * self.spread + 0.2 * abs(value - self.mean)
        self.mean = 0.8 * self.mean + 0.2 * value
        return self.mean, self.spread


@dataclass
class AutoDamper(Damper):
    """`current` is the share to ask for next; `share` what was asked for last: nothing, when a step is taken back."""

    settings: Auto
    current: float
    smallest: float
    blame: Blame
    smooth: Smooth | None = None
    best: float | None = None
    best_uncertainty: float = 0.0
    has_fallen: bool = False
    taking_back: bool = False
    returns: int = 0
    # The latest step that was taken, and whose changes it was made of.
    applied: Family | None = None
    sites: list[int] = field(default_factory=list)
    # Whether only what the blamed site did is taken back.
    returning: bool = False

    def join(self, setup: Setup) -> None:
        self.smallest = min(self.smallest, smallest_share(setup))

    def observe(self, seen: FreeEnergy) -> None:
        self.blame.blamed, self.returning = None, False
        # Neither of the two free energies that are compared is known exactly.
        free_energy, uncertainty = seen.value, seen.error + self.best_uncertainty
        if self.smooth is not None and math.isfinite(free_energy):
            free_energy, spread = self.smooth.add(free_energy)
            uncertainty += 2 * spread
        certain = uncertainty == 0 and self.smooth is None
        tolerated = uncertainty + NEGLIGIBLE + 1e-10 * abs(self.best or 0.0)
        fallen = self.best is not None and not free_energy >= self.best - tolerated
        if fallen and self.best is not None:
            self.blame.find(self.best - free_energy, seen.shortfalls, self.returns)
        if self.blame.blamed is not None:
            self.current = min(1.0, self.current / self.blame.forgone.pop(self.blame.blamed, 1.0))
            self.returning = certain and self.applied is not None
            if self.returning:
                # Others go on from where the site had led them: what was before is not to be had at once.
                self.best = None
                return
        elif fallen:
            self.current = max(self.smallest, self.current * self.settings.shrink)
            self.has_fallen = True
            self.taking_back = certain and self.returns < MOST_RETURNS and self.applied is not None
            if self.taking_back or not math.isfinite(free_energy):
                return
        elif self.best is not None:
            self._grow(uncertainty)
        # A value that could not be compared with those before is what those after it are compared with, if it is one:
        # beside no number everything would look like a fall.
        if math.isfinite(free_energy):
            self.best, self.best_uncertainty = free_energy, seen.error if math.isfinite(seen.error) else 0.0

    def _grow(self, uncertainty: float) -> None:
        factor = self.settings.regrow if self.has_fallen else self.settings.grow
        # Where a fall is noticed late, and cannot be taken back, growth is slower.
        power = 1.0 if uncertainty == 0 else self.settings.caution
        self.current = min(1.0, self.current * factor**power)
        self.blame.relax()

    def apply(self, proposal: Proposal) -> Proposal:
        # A step of other sites cannot be taken back from these.
        if self.taking_back and self.applied is not None and list(proposal.sites) == self.sites:
            self.taking_back, self.share = False, 0.0
            self.returns += 1
            changes = self.applied ** (self.settings.shrink - 1)
            self.applied = self.applied**self.settings.shrink
        else:
            self.taking_back, self.share, self.returns = False, self.current, 0
            changes = self._step(proposal)
        return replace(proposal, changes=changes, wanted=self.share)

    def _step(self, proposal: Proposal) -> Family:
        """The next step; where one site alone is to blame for a fall, with that site's part of the last one undone."""
        sites, before, blamed = list(proposal.sites), self.applied, self.blame.blamed
        shares = np.array([self.blame.held.get(site, 1.0) for site in sites])
        if self.returning and blamed in sites and sites == self.sites and before is not None:
            own = np.array([site == blamed for site in sites])
            self.applied = (proposal.changes**self.current).scale_rows(np.where(own, 0.0, shares))
            return self.applied * before.scale_rows(np.where(own, -1.0, 0.0))
        self.applied, self.sites = (proposal.changes**self.current).scale_rows(shares), sites
        return self.applied

    def after_fold(self, taken: np.ndarray) -> list[Remark]:
        if self.share > 0 and self.applied is not None:
            self.applied = self.applied.scale_rows(taken)
        if self.blame.blamed is None or self.smooth is not None:
            return []
        return [self.blame.remark(self.blame.blamed)]

    def holds(self, site: int) -> bool:
        return self.blame.held.get(site, 1.0) < 1


def as_damping(value: Any) -> Rule:
    """A damping rule from a number, "1/M", "auto", "secants", or such a rule."""
    if callable(getattr(value, "init", None)):
        rule: Rule = value
        return rule
    if value == "auto":
        return Auto()
    if value == "1/M":
        return Fixed(None)
    if value == "secants":
        return Secants()
    if is_number(value):
        return Fixed(float(value))
    raise InputError(f'damping: expected a number in (0, 1], "1/M", "auto" or "secants", got {value!r}')
