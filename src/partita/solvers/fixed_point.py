"""Fixed-point iteration of the local free energy: natural gradients, mirror descent, analytic updates."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from partita.expectations import Expectation
from partita.families import Family
from partita.foundation.checks import check_count, check_not_negative, check_share
from partita.foundation.runtime import Array
from partita.free_energy import LocalProblem
from partita.solvers.base import Outcome, Solver, SolverInfo, all_finite, halve_until, relative_change, rounding_error

# Where expectations overflow, from a wide prior say, any step looks like progress; one may still not go further.
LARGEST_KL = 1e8


class _State(NamedTuple):
    number: Array
    posterior: Family
    factor: Family
    step_size: Array
    first_value: Array
    outcome: Array
    is_shortened: Array


class FixedPoint(Solver):
    """η_m ← (1 - ρ) η_m + ρ d/dμ E_q[log p(y_m | θ)] (Eq. 10 of the paper), `steps` times.

    With `step_size` ρ = 1 and a conjugate model one step is the analytic update; with ρ < 1 a step is natural
    gradient ascent, which is mirror descent. "auto" starts from ρ = 1 and halves it while the local free energy
    would fall, which only happens where a whole step overshoots; conjugate models always take it whole. A number is
    used as it is, and halved only while the posterior would become improper; the outcome says that it was. `batch_size`
    estimates the expectation from that many random rows.
    """

    steps: int = 1
    step_size: float | Literal["auto"] = "auto"
    batch_size: int | None = None
    tolerance: float = 0.0

    def __check_init__(self) -> None:
        check_count("FixedPoint: ", steps=self.steps)
        check_not_negative("FixedPoint: ", tolerance=self.tolerance)
        if self.step_size != "auto":
            check_share('FixedPoint: (or "auto") ', step_size=self.step_size)
        if self.batch_size is not None:
            check_count("FixedPoint: ", batch_size=self.batch_size)

    @property
    def stochastic(self) -> bool:
        return self.batch_size is not None

    def sends_message(self, expectation: Expectation) -> bool:
        """One whole step towards a message that is one by construction: the server bounds what is taken of it."""
        return expectation.has_message and self.steps == 1 and self.step_size == 1

    def message(self, problem: LocalProblem, posterior: Family, *, key: Array) -> tuple[Family, SolverInfo]:
        batch_key, sample_key = jax.random.split(jax.random.fold_in(key, 0))
        value, message = problem.batch(batch_key, self.batch_size).message(posterior, sample_key)
        finite = all_finite((value, message))
        message = jax.tree.map(lambda a: jnp.where(finite, a, 0), message)
        outcome = jnp.where(finite, Outcome.STEPS_DONE, Outcome.NOT_FINITE)
        return message, SolverInfo(value, jnp.asarray(1), outcome)

    def refine(
        self, problem: LocalProblem, posterior: Family, factor: Family, *, key: Array
    ) -> tuple[Family, SolverInfo]:
        def again(state: _State) -> Array:
            return (state.number < self.steps) & (state.outcome == Outcome.STEPS_DONE)

        largest = 1.0 if self.step_size == "auto" else self.step_size
        start = _State(
            jnp.asarray(0),
            posterior,
            factor,
            jnp.asarray(largest, posterior.dtype),
            jnp.zeros((), posterior.dtype),
            jnp.asarray(Outcome.STEPS_DONE),
            jnp.asarray(False),
        )
        end = jax.lax.while_loop(again, lambda state: self._step(problem, state, key), start)
        # A rate that somebody has set is not the one that was taken.
        told = (end.outcome == Outcome.STEPS_DONE) & end.is_shortened & (self.step_size != "auto")
        return end.posterior, SolverInfo(end.first_value, end.number, jnp.where(told, Outcome.SHORTENED, end.outcome))

    def _step(self, problem: LocalProblem, state: _State, key: Array) -> _State:
        batch_key, sample_key = jax.random.split(jax.random.fold_in(key, state.number))
        local = problem.batch(batch_key, self.batch_size)
        value, message = local.message(state.posterior, sample_key)
        change = message / state.factor
        step_size, possible = self._largest(local, state, change, value, sample_key)
        finite = all_finite((value, change))
        candidate = state.factor * change**step_size
        moved = jax.tree.map(lambda a, b: jnp.where(finite & possible, a, b), candidate, state.factor)
        # Convergence is judged by where the message leads, because a step that had to be halved moves little.
        settled = relative_change(message, state.factor) <= self.tolerance
        outcome = jnp.where(
            finite,
            jnp.where(possible, jnp.where(settled, Outcome.CONVERGED, Outcome.STEPS_DONE), Outcome.HELD_BACK),
            Outcome.NOT_FINITE,
        )
        return _State(
            state.number + 1,
            problem.cavity * moved,
            moved,
            jnp.minimum(1.0, 2 * step_size) if self.step_size == "auto" else state.step_size,
            jnp.where(state.number == 0, value, state.first_value),
            outcome,
            state.is_shortened | (step_size < state.step_size),
        )

    def _largest(
        self, local: LocalProblem, state: _State, change: Family, value: Array, key: Array
    ) -> tuple[Array, Array]:
        """The first of ρ, ρ/2, ρ/4, … that will do, and whether there was one."""
        anchor = local.cavity * state.factor
        now = value - state.posterior.kl(local.cavity)
        target = now - rounding_error(now)
        searching = self.step_size == "auto" and not local.model.conjugate

        def will_do(step_size: Array) -> Array:
            moved = anchor * change**step_size
            if not searching:
                return moved.is_proper()
            return (local.free_energy(moved, key) >= target) & (state.posterior.kl(moved) <= LARGEST_KL)

        return halve_until(will_do, state.step_size)
