"""All rules of a run, one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from partita.families import Family
from partita.server.rules.base import FreeEnergy, Proposal, Remark, Rule, RuleState, Setup
from partita.wire.tasks import Update


@dataclass
class Chain:
    """The states of all rules in one run, in the order in which updates pass them."""

    states: Sequence[RuleState]
    # What each rule has left of every site's change in the fold that is under way.
    _shares: list[np.ndarray | None] = field(default_factory=list)

    @classmethod
    def of(cls, rules: Sequence[Rule], setup: Setup) -> "Chain":
        return cls([rule.init(setup) for rule in rules])

    def admit(self, update: Update, version: int) -> None:
        """Let every rule refuse an update before it is written down."""
        for state in self.states:
            state.admit(update, version)

    def observe(self, seen: FreeEnergy) -> None:
        for state in self.states:
            state.observe(seen)

    def apply(self, proposal: Proposal) -> Proposal:
        """What is left of a proposal behind the last rule."""
        self._shares = []
        for state in self.states:
            proposal = state.apply(replace(proposal, shares=None))
            self._shares.append(proposal.shares)
        return proposal

    def allows(self, old: Family, new: Family) -> bool:
        return all(state.allows(old, new) for state in self.states)

    def settle(self, taken: np.ndarray) -> tuple[np.ndarray, list[Remark]]:
        """Tell every rule which share was taken of what it let through.

        Gives the share of each site's change that was taken of what damping asked for, and all rules' remarks.
        """
        said = []
        for state, shares in zip(reversed(self.states), reversed(self._shares), strict=True):
            said.append(state.settle(taken))
            taken = taken if shares is None else shares * taken
        return taken, [remark for remarks in reversed(said) for remark in remarks]

    def held(self, sites: Sequence[int]) -> list[int]:
        """Which of these sites are held back by some rule."""
        return [site for site in sites if any(state.holds(site) for state in self.states)]

    def forgive(self, site: int) -> None:
        for state in self.states:
            state.forgive(site)
