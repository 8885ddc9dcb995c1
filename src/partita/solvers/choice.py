"""Which solver a run has where nobody has chosen one."""

from partita.expectations import Expectation
from partita.solvers.base import Solver
from partita.solvers.fixed_point import FixedPoint
from partita.solvers.natural_gradient import NaturalGradient

# How a site solves its local problem to the end, where messages are destinations, and where they are directions.
SOLVES = FixedPoint(steps=200, tolerance=1e-8)
DESCENDS = NaturalGradient(steps=1000, learning_rate=0.01)


def choose_solver(expectation: Expectation, solver: Solver | None = None, once: bool = False) -> Solver:
    """The solver that was asked for; where that is left open, one that fits the expectation.

    Messages that are directions, not destinations, come one per round. Sites that are asked only `once` solve their
    problems to the end.
    """
    if solver is not None:
        return solver
    if once:
        return DESCENDS if expectation.is_direction else SOLVES
    return FixedPoint(step_size=1.0) if expectation.is_direction else FixedPoint()
