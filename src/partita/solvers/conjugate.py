"""Conjugate natural gradients of the local free energy."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from partita.families import Family, inner
from partita.foundation.checks import check_count, check_not_negative
from partita.foundation.runtime import Array
from partita.free_energy import LocalProblem
from partita.solvers.base import Outcome, Solver, SolverInfo, all_finite, halve_until, relative_change, rounding_error

# The share of the gain that the slope promises which a step has to bring (Armijo, 1966).
SUFFICIENT = 1e-4
LARGEST_STEP = 16.0


class _State(NamedTuple):
    number: Array
    factor: Family
    direction: Family
    gradient: Family
    square: Array
    step_size: Array
    first_value: Array
    outcome: Array


class ConjugateGradient(Solver):
    """Conjugate directions of natural gradients, `steps` times, each with a line search (Hensman et al., 2012).

    The natural gradient is what `FixedPoint` follows; lengths and angles are those of the Fisher information, and
    directions are made conjugate by the formula of Polak and Ribière. Where whole fixed-point steps are short, as for
    mixtures whose components overlap, this takes fewer. Needs an expectation without noise.
    """

    steps: int = 50
    tolerance: float = 0.0

    def __check_init__(self) -> None:
        check_count("ConjugateGradient: ", steps=self.steps)
        check_not_negative("ConjugateGradient: ", tolerance=self.tolerance)

    def refine(
        self, problem: LocalProblem, posterior: Family, factor: Family, *, key: Array
    ) -> tuple[Family, SolverInfo]:
        nothing = jax.tree.map(jnp.zeros_like, factor)
        zero, one = jnp.zeros((), posterior.dtype), jnp.ones((), posterior.dtype)
        start = _State(jnp.asarray(0), factor, nothing, nothing, zero, one, zero, jnp.asarray(Outcome.STEPS_DONE))

        def again(state: _State) -> Array:
            return (state.number < self.steps) & (state.outcome == Outcome.STEPS_DONE)

        end = jax.lax.while_loop(again, lambda state: self._step(problem, state, key), start)
        return problem.cavity * end.factor, SolverInfo(end.first_value, end.number, end.outcome)

    def _step(self, problem: LocalProblem, state: _State, key: Array) -> _State:
        q = problem.cavity * state.factor
        value, message = problem.message(q, key)
        gradient = message / state.factor
        seen = _multiply_by_fisher(q, gradient)
        square = inner(gradient, seen)
        bend = jnp.maximum((square - inner(state.gradient, seen)) / jnp.maximum(state.square, 1e-300), 0)
        bend = jnp.where(state.number == 0, 0, bend)
        direction = jax.tree.map(lambda g, d: g + bend * d, gradient, state.direction)
        slope = inner(direction, seen)
        uphill = slope > 0
        direction = jax.tree.map(lambda a, b: jnp.where(uphill, a, b), direction, gradient)
        slope = jnp.asarray(jnp.where(uphill, slope, square))
        step_size, possible = self._search(problem, q, direction, slope, value, state.step_size, key)
        finite = all_finite((value, gradient))
        good = finite & possible
        moved = jax.tree.map(lambda t, d: jnp.where(good, t + step_size * d, t), state.factor, direction)
        settled = relative_change(moved, state.factor) <= self.tolerance
        # Where no step brings enough there is nothing left to gain, or the search went wrong.
        now = value - q.kl(problem.cavity)
        exhausted = slope <= rounding_error(now)
        stuck = jnp.where(exhausted, Outcome.CONVERGED, Outcome.HELD_BACK)
        outcome = jnp.where(
            finite,
            jnp.where(possible, jnp.where(settled, Outcome.CONVERGED, Outcome.STEPS_DONE), stuck),
            Outcome.NOT_FINITE,
        )
        return _State(
            state.number + 1,
            moved,
            direction,
            gradient,
            square,
            jnp.minimum(2 * step_size, LARGEST_STEP),
            jnp.where(state.number == 0, value, state.first_value),
            outcome,
        )

    def _search(
        self, problem: LocalProblem, q: Family, direction: Family, slope: Array, value: Array, first: Array, key: Array
    ) -> tuple[Array, Array]:
        """The first of ρ, ρ/2, ρ/4, … that is proper and brings enough, and whether there was one."""
        now = value - q.kl(problem.cavity)

        def will_do(step_size: Array) -> Array:
            moved = jax.tree.map(lambda a, d: a + step_size * d, q, direction)
            enough = problem.free_energy(moved, key) >= now + SUFFICIENT * step_size * slope
            return moved.is_proper() & enough

        return halve_until(will_do, first)


def _multiply_by_fisher(q: Family, direction: Family) -> Any:
    """The Fisher information times a direction: how the mean parameters move with it."""
    return jax.jvp(lambda density: density.mean(), (q,), (direction,))[1]
