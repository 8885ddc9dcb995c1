"""How much of a proposed change is taken, and how."""

from partita.server.damping.optimiser import Optimiser
from partita.server.damping.policies import Auto, Damping, Fixed, Proposal, Tempering, as_damping

__all__ = ["Auto", "Damping", "Fixed", "Optimiser", "Proposal", "Tempering", "as_damping"]
