"""Rules that users write: checked at every fold, so that a mistake in one is told and does not reach the ledger."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from partita.errors import InputError
from partita.families import Family
from partita.foundation.runtime import same_structure
from partita.server.rules.base import FreeEnergy, Proposal, Remark, Rule, RuleState, Setup, begin
from partita.wire.tasks import Update


@dataclass(frozen=True)
class OwnRule:
    """A user's rule, of which the changes and the shares are taken, and nothing else that it gives."""

    rule: Rule

    def init(self, setup: Setup) -> "OwnState":
        return OwnState(begin(self.rule, setup), f"rules: {type(self.rule).__name__}", setup.sites)


@dataclass
class OwnState(RuleState):
    state: RuleState
    name: str
    sites: int

    def overrides(self, method: str) -> bool:
        return self.state.overrides(method)

    def admit(self, update: Update, version: int) -> None:
        self.state.admit(update, version)

    def apply(self, proposal: Proposal) -> Proposal:
        # The factors are views of what the ledger keeps: a rule that writes gets a copy.
        left = self.state.apply(replace(proposal, factors=proposal.factors.copy()))
        if not isinstance(left, Proposal):
            raise InputError(f"{self.name}.apply: expected a Proposal, got {type(left).__name__}")
        if list(left.sites) != list(proposal.sites):
            raise InputError(f"{self.name}.apply: has to leave the sites as they are, and their order")
        shares = None if left.shares is None else self._check_shares(left.shares, len(proposal.sites))
        self._check_changes(left.changes, proposal.changes)
        return replace(proposal, changes=left.changes, shares=shares)

    def _check_changes(self, changes: Any, like: Family) -> None:
        good = type(changes) is type(like) and same_structure(changes, like)
        pairs = zip(jax.tree.leaves(changes), jax.tree.leaves(like), strict=True) if good else ()
        if not good or any(np.shape(a) != np.shape(b) or a.dtype != b.dtype for a, b in pairs):
            raise InputError(
                f"{self.name}.apply: expected changes of the same family, shapes and dtypes as those given"
            )
        if like.is_finite() and not changes.is_finite():
            raise InputError(f"{self.name}.apply: made changes that are not finite")

    def _check_shares(self, shares: Any, number: int) -> np.ndarray:
        """One number from 0 to 1 for each site."""
        try:
            found = np.asarray(shares, np.float64)
        except (TypeError, ValueError):
            found = np.empty(0)
        if found.shape != (number,) or not np.all((found >= 0) & (found <= 1)):
            raise InputError(
                f"{self.name}.apply: expected {number} shares from 0 to 1, one for each site, got {shares!r}"
            )
        return found

    def allows(self, old: Family, new: Family) -> bool:
        return bool(self.state.allows(old, new))

    def observe(self, seen: FreeEnergy) -> None:
        self.state.observe(seen)

    def after_fold(self, taken: np.ndarray) -> Sequence[Remark]:
        remarks = self.state.after_fold(taken)
        if not isinstance(remarks, Sequence) or not all(isinstance(one, Remark) for one in remarks):
            raise InputError(f"{self.name}.after_fold: expected a list of remarks, got {remarks!r}")
        strangers = [one.site for one in remarks if not 0 <= one.site < self.sites]
        if strangers:
            raise InputError(
                f"{self.name}.after_fold: there is no site {strangers[0]}: sites are 0 to {self.sites - 1}"
            )
        return remarks

    def holds(self, site: int) -> bool:
        return self.state.holds(site)

    def forget(self, site: int) -> None:
        self.state.forget(site)

    def join(self, setup: Setup) -> None:
        self.sites = setup.sites
        self.state.join(setup)

    def forgive(self, site: int) -> None:
        self.state.forgive(site)
