"""Refuses updates that carry numbers which nobody can have meant."""

import math
from collections.abc import Collection
from dataclasses import dataclass

from partita.errors import MalformedUpdate
from partita.foundation.checks import is_number
from partita.server.rules.base import RuleState, Setup
from partita.solvers import Outcome
from partita.wire.tasks import Update

# Sums and products of larger numbers are no numbers any more.
LARGEST = 1e290


@dataclass(frozen=True)
class Finite(RuleState):
    """Every number of an update is finite. It has no memory, so the rule is its own state.

    Args:
        learnt: hyperparameters whose gradients sites have to send.
        known: hyperparameters whose gradients sites may send.
    """

    learnt: Collection[str] = ()
    known: Collection[str] = ()

    def init(self, setup: Setup) -> "Finite":
        return self

    def admit(self, update: Update, version: int) -> None:
        if update.outcome not in set(Outcome):
            raise MalformedUpdate(update.site, f"outcome: expected one of a solver's, got {update.outcome!r}")
        failed = Outcome(update.outcome) is Outcome.NOT_FINITE
        for name in ("expected_log_prob", "expected_log_factor", "expected_log_change", "seconds", "finished_at"):
            value = getattr(update, name)
            if failed and name.startswith("expected"):
                continue  # The site says so itself, and its report is not counted.
            if not is_number(value) or not abs(value) <= LARGEST:
                raise MalformedUpdate(update.site, f"{name}: expected a finite number, got {value}")
        if update.seconds < 0:
            raise MalformedUpdate(update.site, f"seconds: expected no negative number, got {update.seconds}")
        self._check_gradients(update)

    def _check_gradients(self, update: Update) -> None:
        for name in self.learnt:
            if not abs(update.hyper_gradient.get(name, math.nan)) <= LARGEST:
                raise MalformedUpdate(update.site, f"hyper: the gradient of {name} is missing, or not finite")
        if not set(update.hyper_gradient) <= set(self.known):
            raise MalformedUpdate(update.site, "hyper: has gradients of hyperparameters that are not asked for")
