"""How much of a proposed change is taken: ρ in (0, 1], where 1 takes it whole.

(The paper's appendix calls a higher damping factor a slower update; here it is the other way round.)
Whatever a policy asks for, the ledger accepts less where the posterior or a cavity would become improper.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np

from partita.errors import InputError
from partita.families import Family
from partita.families.stacks import scaled
from partita.foundation.checks import check_share, is_number

# Falls of fewer nats say nothing: quadrature makes values and gradients disagree by as much near a fixed point.
NEGLIGIBLE = 1e-6
# After so many returns in a row, what was better before cannot be had back; after fewer, by one site's fault.
MOST_RETURNS, FEW_RETURNS = 8, 2
# A site is to blame for a fall if nobody else's part in it is a quarter of it, and if its values fall short of what it
# proposes half as steeply again as when that happened first: where steps are shorter, honest ones do not. Where it is
# nearer than this, nothing has moved, and nobody is to blame.
PART, STEEPER, NEAREST = 0.25, 1.5, 1e-12


@dataclass(frozen=True)
class Proposal:
    """What sites propose in one fold: changes of their factors, stacked with one row per site."""

    sites: Sequence[int]
    changes: Family
    factors: Family
    prior: Family
    posterior: Family
    # How many updates the posterior has taken since the refinements started; and where, if that was not a posterior.
    staleness: int = 0
    start: Family | None = None


@dataclass
class Tempering:
    """What a policy does in one run: `observe` the free energy, `temper` what sites propose. This one never changes."""

    # The share of the latest proposals that was asked for.
    share: float
    # Who alone made the free energy fall, and is held back for it.
    blamed: int | None = field(default=None, kw_only=True)
    # The share of the share that such sites have now.
    held: dict[int, float] = field(default_factory=dict, kw_only=True)

    def observe(
        self, free_energy: float, uncertainty: float, shortfalls: Mapping[int, tuple[float, float]] | None = None
    ) -> None:
        """An estimate of the free energy, whenever every site has reported again, and how far off it probably is.

        With it, by how much each site's value is short of what its proposal made of it, and how many nats later.
        """

    def sent(self, sites: Sequence[int], begin: Family) -> None:
        """Sites have been handed tasks that begin from a density."""

    def temper(self, proposal: Proposal) -> Family:
        """The changes to apply, stacked as those that were proposed."""
        return proposal.changes**self.share

    def settle(self, accepted: np.ndarray | float) -> None:
        """How much of what `temper` gave was accepted, of each site."""


class Damping(Protocol):
    """A policy, ready for any run."""

    def begin(self, sites: int, parallel: bool, stochastic: bool = False) -> Tempering:
        """For a run with that many sites, several of them working at once or not, and reporting with noise or not."""
        ...


@dataclass(frozen=True)
class Fixed:
    """Always the same share; None stands for one over the number of sites."""

    value: float | None = None

    def __post_init__(self) -> None:
        if self.value is not None:
            check_share(damping=self.value)

    def begin(self, sites: int, parallel: bool, stochastic: bool = False) -> Tempering:
        return Tempering(1 / sites if self.value is None else self.value)


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

    def begin(self, sites: int, parallel: bool, stochastic: bool = False) -> Tempering:
        first = 1 / sites if parallel else 1.0
        return AutoTempering(
            first,
            settings=self,
            current=first,
            smallest=min(1e-3, 0.1 / sites),
            smooth=Smooth() if stochastic else None,
        )


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
class AutoTempering(Tempering):
    """`current` is the share to ask for next; `share` what was asked for last: nothing, when a step is taken back."""

    settings: Auto
    current: float
    smallest: float
    best: float | None = None
    best_uncertainty: float = 0.0
    has_fallen: bool = False
    taking_back: bool = False
    returns: int = 0
    smooth: Smooth | None = None
    applied: Family | None = None
    # Whose changes they were.
    sites: list[int] = field(default_factory=list)
    # Of those who may be to blame, how steeply values fell short at first, and what all have been asked for less since.
    steepness: dict[int, float] = field(default_factory=dict)
    forgone: dict[int, float] = field(default_factory=dict)
    # Who may be to blame for the last fall.
    suspect: int | None = None
    # Whether what the blamed site did is taken back, and nothing else.
    returning: bool = False

    def observe(
        self, free_energy: float, uncertainty: float, shortfalls: Mapping[int, tuple[float, float]] | None = None
    ) -> None:
        self.blamed, self.returning = None, False
        # Neither of the two that are compared is known exactly.
        own, uncertainty = uncertainty, uncertainty + self.best_uncertainty
        if self.smooth is not None and math.isfinite(free_energy):
            free_energy, spread = self.smooth.add(free_energy)
            uncertainty += 2 * spread
        tolerated = uncertainty + NEGLIGIBLE + 1e-10 * abs(self.best or 0.0)
        fallen = self.best is not None and not free_energy >= self.best - tolerated
        if fallen and self.best is not None:
            self.blamed = self._culprit(self.best - free_energy, shortfalls or {})
        if self.blamed is not None:
            self.held[self.blamed] = self.held.get(self.blamed, 1.0) * self.settings.shrink
            self.current = min(1.0, self.current / self.forgone.pop(self.blamed, 1.0))
            self.returning = uncertainty == 0 and self.smooth is None and self.applied is not None
            if self.returning:
                # Others go on from where the site had led them: what was before is not to be had at once.
                self.best = None
                return
        elif fallen:
            self.current = max(self.smallest, self.current * self.settings.shrink)
            self.has_fallen = True
            certain = uncertainty == 0 and self.smooth is None
            self.taking_back = certain and self.returns < MOST_RETURNS and self.applied is not None
            if self.taking_back or not math.isfinite(free_energy):
                return
        elif self.best is not None:
            factor = self.settings.regrow if self.has_fallen else self.settings.grow
            # Where a fall is noticed late, and cannot be taken back, growth is slower.
            power = 1.0 if uncertainty == 0 else self.settings.caution
            self.current = min(1.0, self.current * factor**power)
            self.held = {site: min(1.0, share * self.settings.regrow) for site, share in self.held.items()}
        # One that could not be compared with those before is what those after it are compared with.
        self.best, self.best_uncertainty = free_energy, own if math.isfinite(own) else 0.0

    def _culprit(self, fall: float, shortfalls: Mapping[int, tuple[float, float]]) -> int | None:
        """Whose value alone is so short of what the site proposed that without it nothing would have fallen.

        What an honest site proposes is short by what a first order leaves out: of half a step by a quarter as much, of
        the nats that it makes by as much as before. Such a site is not blamed, but all are asked for less; unless that
        does not help twice.
        """
        if self.returns == 0:
            self.suspect = self._suspect(fall, shortfalls)
        if self.suspect is None:
            return None
        short, later = shortfalls.get(self.suspect, (0.0, 0.0))
        steepness = short / max(later, NEAREST)
        known = self.steepness.setdefault(self.suspect, steepness)
        if self.returns >= FEW_RETURNS or (self.returns == 0 and steepness >= STEEPER * known):
            return self.suspect
        self.forgone[self.suspect] = self.forgone.get(self.suspect, 1.0) * self.settings.shrink
        return None

    def _suspect(self, fall: float, shortfalls: Mapping[int, tuple[float, float]]) -> int | None:
        """Without whose part there would have been no fall, if nobody else has much of a part in it."""
        parts = sorted(shortfalls, key=lambda site: shortfalls[site][0], reverse=True)
        if len(parts) < 3 or not math.isfinite(fall):
            return None
        first, second = (shortfalls[site][0] for site in parts[:2])
        alone = first >= fall and second < PART * fall
        return parts[0] if alone and shortfalls[parts[0]][1] > NEAREST else None

    def temper(self, proposal: Proposal) -> Family:
        # What others did cannot be taken back from these.
        if self.taking_back and self.applied is not None and list(proposal.sites) == self.sites:
            self.taking_back, self.share = False, 0.0
            self.returns += 1
            back = self.applied ** (self.settings.shrink - 1)
            self.applied = self.applied**self.settings.shrink
            return back
        self.taking_back, self.share, self.returns = False, self.current, 0
        sites, before = list(proposal.sites), self.applied
        shares = np.array([self.held.get(site, 1.0) for site in sites])
        if self.returning and self.blamed in sites and sites == self.sites and before is not None:
            own = np.array([site == self.blamed for site in sites])
            self.applied = scaled(proposal.changes**self.current, np.where(own, 0.0, shares))
            back = scaled(before, np.where(own, -1.0, 0.0))
            return jax.tree.map(np.add, self.applied, back)
        self.applied, self.sites = scaled(proposal.changes**self.current, shares), sites
        return self.applied

    def settle(self, accepted: np.ndarray | float) -> None:
        if self.share > 0 and self.applied is not None:
            self.applied = scaled(self.applied, accepted)


def as_damping(value: Any) -> Damping:
    """From a number, "1/M", "auto", or a policy."""
    if callable(getattr(value, "begin", None)):
        return value
    if value == "auto":
        return Auto()
    if value == "1/M":
        return Fixed(None)
    if is_number(value):
        return Fixed(float(value))
    raise InputError(f'damping: expected a number in (0, 1], "1/M" or "auto", got {value!r}')
