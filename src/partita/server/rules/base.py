"""What a rule is: one step that updates pass on their way from a site into the ledger.

A rule is a frozen value with `init`, which gives its state in one run; the state has `apply`. What goes into `apply` is
a stack of proposed changes with who sent them; what comes out is a stack of changes and how much of each was left.
Everything else that a state may do is optional: refuse an update before it is written down (`admit`), hear of free
energies (`observe`), have the last word on where the posterior goes (`allows`), and say what it did to whom
(`after_fold`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from partita.errors import InputError
from partita.families import Family
from partita.wire.tasks import Update

# Where a smaller share of an update can be taken, none of it is, and the site is struck for it.
STRIKE = 1e-3


@dataclass(frozen=True)
class Setup:
    """What rules are told of a run before it begins.

    Args:
        sites: how many sites there are.
        parallel: whether several of them work from the same posterior.
        stochastic: whether sites report with noise (Monte Carlo, mini-batches).
        prior: the prior; None, where nothing but a rule itself is looked at.
    """

    sites: int
    parallel: bool = False
    stochastic: bool = False
    prior: Family | None = None

    @property
    def least(self) -> float:
        """The share of an update below which nothing of it is taken; a site that is alone may take any share."""
        return STRIKE if self.sites > 1 else 0.0


@dataclass(frozen=True)
class Proposal:
    """What sites propose in one fold, as far as it has come through the rules.

    Args:
        sites: who proposes.
        changes: how their factors are to change, stacked with one row per site.
        factors: their factors as they are, stacked in the same way.
        asked: their factors as they were when they were asked, to which changes are relative; None, if they are as they
            were.
        prior: the prior.
        posterior: the posterior as it is.
        staleness: how many updates the posterior has taken since the oldest of these refinements began.
        start: where they began, if that was not a posterior.
        begun: for every site, the density where its refinement began.
        values: for every site whose word is taken, E_q[log p(y_m | θ)] there, as it reports.
        doubted: sites whose values do not follow from their updates.
        held: the factors of any sites as they are, stacked.
        rest: a change that several factors of the ledger share alike, beside those of these sites. It may move
            locations, and leaves whatever has to be positive as it is.
        sharing: whose factors share it; None stands for everybody's.
        leaving: sites of which nothing is to stay in the posterior until they are in a fold again.
        wanted: the share of the changes that damping asks for; zero, if it takes an earlier step back instead.
        shares: for every site, how much the latest rule has left of its change; None, if all of everybody's.
        common: the share of all changes together that is to be taken in the end.
    """

    sites: Sequence[int]
    changes: Family
    factors: Family
    prior: Family
    posterior: Family
    staleness: int = 0
    start: Family | None = None
    begun: Mapping[int, Family] = field(default_factory=dict)
    values: Mapping[int, float] = field(default_factory=dict)
    asked: Family | None = None
    doubted: frozenset[int] = frozenset()
    held: Callable[[Sequence[int]], Family] | None = None
    rest: Family | None = None
    sharing: frozenset[int] | None = None
    leaving: frozenset[int] = frozenset()
    wanted: float = 1.0
    shares: np.ndarray | None = None
    common: float = 1.0

    def cut(self, shares: np.ndarray) -> "Proposal":
        """The same with only a share, from 0 to 1, of each site's change."""
        return replace(self, changes=self.changes.scale_rows(shares), shares=shares)


@dataclass(frozen=True)
class Remark:
    """What a rule has to say of one site after a fold, in words that follow the site's name.

    A `strike` counts against the site; with `quarantine` it is not asked again at once.
    """

    site: int
    words: str
    strike: bool = False
    quarantine: bool = False


@dataclass(frozen=True)
class FreeEnergy:
    """An estimate of the free energy whenever every site has reported again.

    `error` says how far off it probably is. `shortfalls` has, for each site, by how much its value is short of what its
    proposals promised, and how many nats the posterior had moved by then.
    """

    value: float
    error: float = 0.0
    shortfalls: Mapping[int, tuple[float, float]] = field(default_factory=dict)


class RuleState:
    """A rule in one run. This one leaves everything as it is; a rule overrides what it needs."""

    def overrides(self, method: str) -> bool:
        """Whether this rule has a method of its own in place of the one here, which does nothing."""
        return getattr(type(self), method) is not getattr(RuleState, method)

    def admit(self, update: Update, version: int) -> None:
        """Refuse an update with an `UpdateRefused`, before it is written down; `version` is the posterior's."""

    def apply(self, proposal: Proposal) -> Proposal:
        """What is left of a proposal."""
        return proposal

    def allows(self, old: Family, new: Family) -> bool:
        """Whether a fold may move the posterior from one density to the other; if not, less is taken."""
        return True

    def observe(self, seen: FreeEnergy) -> None:
        """The free energy of the posterior is known anew; asked before the fold that follows."""

    def after_fold(self, taken: np.ndarray) -> Sequence[Remark]:
        """After a fold: the share of what `apply` gave that was taken of each site. Gives remarks on sites."""
        return ()

    def holds(self, site: int) -> bool:
        """Whether a site is held back now, so that it does not make up for earlier strikes."""
        return False

    def forget(self, site: int) -> None:
        """A site is divided out of the posterior: nothing that it said counts any more."""

    def join(self, setup: Setup) -> None:
        """One more site has joined, with a factor of one: what `init` was told of the run, as it is now."""

    def forgive(self, site: int) -> None:
        """An operator says that a site may be asked again: it begins anew."""


def begin(rule: "Rule", setup: Setup) -> RuleState:
    """The state of a rule in a run, which has to have every method that a run calls."""
    state = rule.init(setup)
    if not isinstance(state, RuleState):
        raise InputError(
            f"rules: {type(rule).__name__}.init: expected a state, got {type(state).__name__}: let its class inherit "
            "from pt.rules.RuleState"
        )
    return state


class Rule(Protocol):
    """One step that updates pass, ready for any run."""

    def init(self, setup: Setup) -> RuleState:
        """The state of this rule in a run."""
        ...
