"""No local problem is solved: a site says what its data make of the posterior, and the server does the rest."""

from partita.expectations import Expectation
from partita.families import Family
from partita.foundation.runtime import Array
from partita.free_energy import LocalProblem
from partita.solvers.base import Solver, SolverInfo
from partita.solvers.fixed_point import FixedPoint


class Message(Solver):
    """d/dμ E_q[log p(y_m | θ)] at the posterior, once per task: for rules that decide where the posterior goes.

    What all sites send adds up to the natural gradient of the global free energy, on any partition (Property 5 of the
    paper). A site needs neither its cavity nor its factor for it, so only the posterior is sent.
    """

    def sends_message(self, expectation: Expectation) -> bool:
        return True

    def message(self, problem: LocalProblem, posterior: Family, *, key: Array) -> tuple[Family, SolverInfo]:
        return FixedPoint(step_size=1.0).message(problem, posterior, key=key)

    def refine(
        self, problem: LocalProblem, posterior: Family, factor: Family, *, key: Array
    ) -> tuple[Family, SolverInfo]:
        found, info = self.message(problem, posterior, key=key)
        return problem.cavity * found, info
