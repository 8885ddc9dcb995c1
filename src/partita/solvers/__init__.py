"""Solvers: how one factor is refined."""

from partita.solvers.base import Outcome, Solver, SolverInfo
from partita.solvers.bayesian_gradient import BayesianGradient
from partita.solvers.conjugate import ConjugateGradient
from partita.solvers.fixed_point import FixedPoint
from partita.solvers.gradient import Gradient, natural_means
from partita.solvers.message import Message
from partita.solvers.moment_matching import MomentMatching
from partita.solvers.natural_gradient import NaturalGradient

REGISTRY: dict[str, type[Solver]] = {
    "fixed-point": FixedPoint,
    "gradient": Gradient,
    "natural-gradient": NaturalGradient,
    "message": Message,
    "moment-matching": MomentMatching,
    "conjugate-gradient": ConjugateGradient,
    "bayesian-gradient": BayesianGradient,
}

__all__ = [
    "REGISTRY",
    "BayesianGradient",
    "ConjugateGradient",
    "FixedPoint",
    "Gradient",
    "Message",
    "MomentMatching",
    "NaturalGradient",
    "Outcome",
    "Solver",
    "SolverInfo",
    "natural_means",
]
