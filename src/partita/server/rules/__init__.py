"""Rules that updates pass on their way into the ledger: age, finite numbers, damping, trust region, cone."""

from partita.server.rules.base import FreeEnergy, Proposal, Remark, Rule, RuleState, Setup
from partita.server.rules.damping import Auto, Falling, Fixed, as_damping
from partita.server.rules.limits import Limits as Limits
from partita.server.rules.optimiser import Optimiser
from partita.server.rules.secants import Secants

__all__ = [
    "Auto",
    "Falling",
    "Fixed",
    "FreeEnergy",
    "Optimiser",
    "Proposal",
    "Remark",
    "Rule",
    "RuleState",
    "Secants",
    "Setup",
    "as_damping",
]
