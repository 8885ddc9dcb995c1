"""Keeps the posterior and every site's cavity proper: the last rule, without which there is no ledger."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from partita.server.ledger import Ledger
from partita.server.room import fit_changes
from partita.server.rules.base import STRIKE, Proposal, Remark, RuleState, Setup


@dataclass(frozen=True)
class Cone:
    """Takes as much of all changes as a ledger has room for, and nobody is held back for another's change."""

    ledger: Ledger

    def init(self, setup: Setup) -> "ConeState":
        return ConeState(self.ledger, setup.least)


@dataclass
class ConeState(RuleState):
    ledger: Ledger
    least: float
    # The share that was taken of what each site proposed last.
    latest: dict[int, float] = field(default_factory=dict)
    _sites: Sequence[int] = ()
    _shares: np.ndarray = field(default_factory=lambda: np.ones(0))

    def apply(self, proposal: Proposal) -> Proposal:
        fitted = fit_changes(self.ledger, proposal.sites, proposal.changes, self.least)
        self._sites, self._shares = proposal.sites, fitted.shares
        return replace(proposal, changes=fitted.changes, shares=fitted.shares, common=fitted.share)

    def join(self, setup: Setup) -> None:
        self.least = setup.least

    def after_fold(self, taken: np.ndarray) -> list[Remark]:
        self.latest.update(zip(self._sites, (self._shares * taken).tolist(), strict=True))
        words = "its update would leave a density improper, or bury the others', and nothing of it was taken"
        return [Remark(site, words, strike=True) for site in self._sites if self._is_singled_out(site)]

    def _is_singled_out(self, site: int) -> bool:
        """Whether next to nothing was taken of what a site proposed, and more of what most others did."""
        if self.latest[site] >= STRIKE:
            return False
        others = [share for other, share in self.latest.items() if other != site]
        return 2 * sum(share >= STRIKE for share in others) > len(others)
