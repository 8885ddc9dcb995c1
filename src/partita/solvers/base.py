"""What a solver is: it refines one site's factor by working on that site's local free energy."""

from abc import abstractmethod
from enum import IntEnum

import equinox as eqx
import jax
import jax.numpy as jnp

from partita.families import Family
from partita.free_energy import LocalProblem
from partita.runtime import Array


class Outcome(IntEnum):
    """Why a solver stopped."""

    STEPS_DONE = 0
    CONVERGED = 1
    HELD_BACK = 2
    NOT_FINITE = 3

    @property
    def reason(self) -> str:
        return REASONS[self]

    @property
    def is_good(self) -> bool:
        return self in (Outcome.STEPS_DONE, Outcome.CONVERGED)


REASONS = {
    Outcome.STEPS_DONE: "took all its steps",
    Outcome.CONVERGED: "changed less than its tolerance",
    Outcome.HELD_BACK: "found no step, however small, that is proper and no worse: scale the data, or lower `damping`",
    Outcome.NOT_FINITE: "met a value that is not finite: lower the learning rate, or scale the data",
}


class SolverInfo(eqx.Module):
    """What is reported of a refinement, never carried on: the state is the factor alone."""

    expected_log_prob: Array
    steps: Array
    outcome: Array


class Solver(eqx.Module):
    """refine: from where the posterior is, towards the optimum of the local free energy. Pure."""

    @property
    def stochastic(self) -> bool:
        """Whether what it reports of the free energy is an estimate from some of the rows."""
        return False

    @abstractmethod
    def refine(
        self, problem: LocalProblem, posterior: Family, factor: Family, *, key: Array
    ) -> tuple[Family, SolverInfo]:
        """The refined posterior; `SolverInfo.expected_log_prob` is E_q[log p] where it started."""


def relative_change(new: Family, old: Family) -> Array:
    """The largest change of a natural parameter, relative to its own array's size."""
    pairs = zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True)
    return jnp.max(jnp.stack([jnp.max(jnp.abs(a - b)) / (1e-30 + jnp.max(jnp.abs(b))) for a, b in pairs]))
