"""Solvers: how one factor is refined."""

from partita.solvers.base import Outcome, Solver, SolverInfo
from partita.solvers.fixed_point import FixedPoint
from partita.solvers.gradient import Gradient
from partita.solvers.moment_matching import MomentMatching
from partita.solvers.natural_gradient import NaturalGradient

REGISTRY: dict[str, type[Solver]] = {
    "fixed-point": FixedPoint,
    "gradient": Gradient,
    "natural-gradient": NaturalGradient,
    "moment-matching": MomentMatching,
}

__all__ = ["REGISTRY", "FixedPoint", "Gradient", "MomentMatching", "NaturalGradient", "Outcome", "Solver", "SolverInfo"]
