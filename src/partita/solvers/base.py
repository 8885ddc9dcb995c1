"""What a solver is: it refines one site's factor by working on that site's local free energy."""

from abc import abstractmethod
from collections.abc import Callable
from enum import IntEnum
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from partita.expectations import Expectation
from partita.families import Family
from partita.foundation.runtime import Array
from partita.free_energy import LocalProblem

# How often a step is halved before it is given up.
HALVINGS = 120
# A free energy is not known better than this many times the machine's precision, relative to its size.
ROUNDING = 1e5


class Outcome(IntEnum):
    """Why a solver stopped."""

    STEPS_DONE = 0
    CONVERGED = 1
    HELD_BACK = 2
    NOT_FINITE = 3
    SHORTENED = 4

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
    Outcome.SHORTENED: "took less than whole steps at its rate, because the posterior would have become improper: "
    "lower the rate",
}


class SolverInfo(eqx.Module):
    """What is reported of a refinement, never carried on: the state is the factor alone."""

    expected_log_prob: Array
    steps: Array
    outcome: Array


class Solver(eqx.Module):
    """refine: from where the posterior is, towards the optimum of the local free energy. Pure."""

    # Whether it looks at a problem's anchor.
    anchored: ClassVar[bool] = False

    @property
    def values_factor(self) -> bool:
        """Whether what stands for E_q[log p] in its reports depends on the site's factor."""
        return False

    @property
    def stochastic(self) -> bool:
        """Whether what it reports of the free energy is an estimate from some of the rows."""
        return False

    def sends_message(self, expectation: Expectation) -> bool:
        """Whether all that it answers is `message`, whatever cavity and factor are."""
        return False

    def message(self, problem: LocalProblem, posterior: Family, *, key: Array) -> tuple[Family, SolverInfo]:
        """The factor that it proposes; flat, where that is not finite. For solvers that send messages."""
        raise NotImplementedError

    def value(self, problem: LocalProblem, posterior: Family, factor: Family | None, key: Array) -> Array:
        """E_q[log p(y_m | θ)], or what stands for it: with the sum over sites, less KL(q ‖ prior), as the evidence."""
        return problem.expected_log_prob(posterior.mean() if problem.expectation.of_mean else posterior, key)

    @abstractmethod
    def refine(
        self, problem: LocalProblem, posterior: Family, factor: Family, *, key: Array
    ) -> tuple[Family, SolverInfo]:
        """The refined posterior; `SolverInfo.expected_log_prob` is E_q[log p] where it started."""


class SteppedSolver(Solver):
    """A solver that can stop after any step, be looked at, and go on as if it had not stopped.

    `refine` is `begin`, then `advance` until `limit`, then `reached`. What is carried from step to step is a pytree of
    arrays, so that it can be kept on disk.
    """

    @abstractmethod
    def limit(self, problem: LocalProblem) -> Array:
        """How many steps a refinement has."""

    @abstractmethod
    def begin(self, problem: LocalProblem, posterior: Family, factor: Family) -> Any:
        """What is carried, before the first step."""

    @abstractmethod
    def advance(self, problem: LocalProblem, carried: Any, end: Array, *, key: Array) -> Any:
        """What is carried after the `end`-th step, or where there is nothing more to do."""

    @abstractmethod
    def reached(self, problem: LocalProblem, carried: Any) -> Family:
        """The refined posterior as it is now."""

    def held(self, carried: Any) -> int | Array:
        """How often a number was left where it was, because its step would have been improper."""
        return 0


class Batches(eqx.Module):
    """The mini-batches of shuffled passes over a shard; without a size, every batch is the whole shard.

    With `blocks`, a batch is rows that follow each other, as they came, and only the order of batches is random; rows
    at the end that fill no batch are left out.
    """

    problem: LocalProblem
    size: int | None
    key: Array
    blocks: bool = False

    @property
    def per_epoch(self) -> Array:
        if self.size is None:
            return jnp.asarray(1)
        rows = self.problem.shard.rows
        return jnp.maximum(rows // self.size, 1) if self.blocks else -(-rows // self.size)

    def limit(self, epochs: int, steps: int | None) -> Array:
        """How many there are."""
        return epochs * self.per_epoch if steps is None else jnp.asarray(steps)

    def start(self) -> Array:
        """What `take` carries from one batch to the next: the order of the rows."""
        return jnp.zeros(self.problem.shard.capacity if self.size is not None else 0, jnp.int32)

    def take(self, number: Array, order: Array) -> tuple[LocalProblem, Array]:
        """The `number`-th batch, with rows in a new order at the beginning of every pass."""
        if self.size is None:
            return self.problem, order
        shard, size = self.problem.shard, self.size
        epoch, within = number // self.per_epoch, number % self.per_epoch

        def shuffle() -> Array:
            key = jax.random.fold_in(self.key, epoch)
            order = shard.shuffled_blocks(key, size) if self.blocks else shard.shuffled(key)
            return order.astype(jnp.int32)

        order = jax.lax.cond(within == 0, shuffle, lambda: order)
        return self.problem.on(shard.epoch_batch(order, within, size)), order


def halve_until(will_do: Callable[[Array], Array], first: Array) -> tuple[Array, Array]:
    """The first of ρ, ρ/2, ρ/4, … that will do, and whether there was one."""

    def again(carry: tuple[Array, Array]) -> Array:
        return ~will_do(carry[0]) & (carry[1] < HALVINGS)

    def halve(carry: Any) -> Any:
        return 0.5 * carry[0], carry[1] + 1

    step_size, halvings = jax.lax.while_loop(again, halve, (first, jnp.zeros((), jnp.int32)))
    return step_size, halvings < HALVINGS


def rounding_error(free_energy: Array) -> Array:
    """By how much rounding may change a free energy."""
    return ROUNDING * jnp.finfo(free_energy.dtype).eps * (1 + jnp.abs(free_energy))


def all_finite(tree: Any) -> Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def relative_change(new: Family, old: Family) -> Array:
    """The largest change of a natural parameter, relative to its own array's size."""
    pairs = zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True)
    return jnp.max(jnp.stack([jnp.max(jnp.abs(a - b)) / (1e-30 + jnp.max(jnp.abs(b))) for a, b in pairs]))
