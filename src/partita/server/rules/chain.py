"""All rules of a run, one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from partita.families import Family
from partita.server.rules.base import FreeEnergy, Proposal, Remark, Rule, RuleState, Setup, begin
from partita.server.rules.strikes import Strikes
from partita.wire.messages import Notice
from partita.wire.tasks import Update


@dataclass(frozen=True)
class AfterFold:
    """What became of a fold.

    Args:
        shares: for every site, the share of what damping asked for that was taken of its change.
        problems: what rules have to say of sites, in words.
        notices: who was struck, and who is not to be asked again.
    """

    shares: np.ndarray
    problems: list[str]
    notices: list[Notice]


@dataclass
class Chain:
    """The states of all rules in one run, in the order in which updates pass them; and the count of strikes."""

    states: Sequence[RuleState]
    strikes: Strikes
    _sites: Sequence[int] = ()
    # What each rule has left of every site's change in the fold that is under way.
    _shares: list[np.ndarray | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Find out who has something to do when: most rules do only a part of what a rule may."""
        self._admitting, self._observing = self._having("admit"), self._having("observe")
        self._folding, self._guarding = self._having("apply", "after_fold"), self._having("allows")
        self._holding = self._having("holds")

    @classmethod
    def of(cls, rules: Sequence[Rule], setup: Setup, strikes: Strikes) -> "Chain":
        return cls([begin(rule, setup) for rule in rules], strikes)

    def _having(self, *hooks: str) -> list[RuleState]:
        """The rules that have a method of their own for one of these."""
        return [state for state in self.states if any(map(state.overrides, hooks))]

    def admit(self, update: Update, version: int) -> None:
        """Let every rule refuse an update before it is written down."""
        for state in self._admitting:
            state.admit(update, version)

    def observe(self, seen: FreeEnergy) -> None:
        for state in self._observing:
            state.observe(seen)

    def apply(self, proposal: Proposal) -> Proposal:
        """What is left of a proposal behind the last rule."""
        self._sites, self._shares = proposal.sites, []
        for state in self._folding:
            proposal = state.apply(proposal if proposal.shares is None else replace(proposal, shares=None))
            self._shares.append(proposal.shares)
        return proposal

    def allows(self, old: Family, new: Family) -> bool:
        return all(state.allows(old, new) for state in self._guarding)

    def after_fold(self, share: float, doubts: Sequence[Remark] = ()) -> AfterFold:
        """Tell every rule which share was taken of what it let through, and judge sites by what rules remark on them.

        Args:
            share: what was taken of everything behind the last rule.
            doubts: remarks on sites whose reports were not believed.
        """
        said, taken = [], np.full(len(self._sites), share)
        for state, shares in zip(reversed(self._folding), reversed(self._shares), strict=True):
            said.append(state.after_fold(taken))
            taken = taken if shares is None else shares * taken
        remarks = [*doubts, *(remark for own in reversed(said) for remark in own)]
        held = [site for site in self._sites if any(state.holds(site) for state in self._holding)]
        return AfterFold(taken, *self.strikes.judge(self._sites, remarks, held))

    def forget(self, site: int) -> None:
        for state in self.states:
            state.forget(site)

    def join(self, setup: Setup) -> None:
        for state in self.states:
            state.join(setup)

    def forgive(self, site: int) -> None:
        """An operator says that a site may be asked again: it begins anew."""
        self.strikes.forgive(site)
        for state in self.states:
            state.forgive(site)
