"""Solvers: how one factor is refined."""

from partita.solvers.base import Outcome, Solver, SolverInfo
from partita.solvers.fixed_point import FixedPoint
from partita.solvers.gradient import Gradient
from partita.solvers.natural_gradient import NaturalGradient

REGISTRY: dict[str, type[Solver]] = {
    "fixed-point": FixedPoint,
    "gradient": Gradient,
    "natural-gradient": NaturalGradient,
}

__all__ = ["REGISTRY", "FixedPoint", "Gradient", "NaturalGradient", "Outcome", "Solver", "SolverInfo"]
