"""Solvers: how one factor is refined."""

from partita.solvers.base import Outcome, Solver, SolverInfo
from partita.solvers.fixed_point import FixedPoint
from partita.solvers.gradient import Gradient

REGISTRY: dict[str, type[Solver]] = {"fixed-point": FixedPoint, "gradient": Gradient}

__all__ = ["REGISTRY", "FixedPoint", "Gradient", "Outcome", "Solver", "SolverInfo"]
