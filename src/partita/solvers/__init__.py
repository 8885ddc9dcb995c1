"""Solvers: how one factor is refined."""

from partita.solvers.base import Outcome, Solver, SolverInfo, SteppedSolver
from partita.solvers.bayesian_gradient import BayesianGradient
from partita.solvers.chains import Chains
from partita.solvers.conjugate import ConjugateGradient
from partita.solvers.fixed_point import FixedPoint
from partita.solvers.gradient import Gradient, natural_means
from partita.solvers.message import Message
from partita.solvers.moment_matching import MomentMatching
from partita.solvers.natural_gradient import NaturalGradient
from partita.solvers.rates import RobbinsMonro
from partita.solvers.stochastic_natural_gradient import StochasticNaturalGradient
from partita.solvers.trust_region import TrustRegion

REGISTRY: dict[str, type[Solver]] = {
    "fixed-point": FixedPoint,
    "gradient": Gradient,
    "natural-gradient": NaturalGradient,
    "stochastic-natural-gradient": StochasticNaturalGradient,
    "trust-region": TrustRegion,
    "message": Message,
    "moment-matching": MomentMatching,
    "conjugate-gradient": ConjugateGradient,
    "bayesian-gradient": BayesianGradient,
}

__all__ = [
    "REGISTRY",
    "BayesianGradient",
    "Chains",
    "ConjugateGradient",
    "FixedPoint",
    "Gradient",
    "Message",
    "MomentMatching",
    "NaturalGradient",
    "Outcome",
    "RobbinsMonro",
    "Solver",
    "SolverInfo",
    "SteppedSolver",
    "StochasticNaturalGradient",
    "TrustRegion",
    "natural_means",
]
