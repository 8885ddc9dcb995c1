"""Fixed-point iteration of the local free energy: natural gradients, mirror descent, analytic updates."""

from typing import Any, Literal, NamedTuple

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
# How much narrower a Gaussian is made with every look at what is around its mean, how often is looked, and how many
# nats per row a narrower look has to bring more: the other one is then far from anything that predicts.
NARROWER, LOOKS, WORTH = 1e6, 3, 10.0


class _State(NamedTuple):
    number: Array
    posterior: Family
    factor: Family
    step_size: Array
    first_value: Array
    outcome: Array
    is_shortened: Array
    is_narrower: Array


class _Sight(NamedTuple):
    """What the data say: how often was looked before, where it leads, how far one may go, and what is reached then."""

    looks: Array
    value: Array
    message: Family
    step_size: Array
    possible: Array
    finite: Array
    reached: Array


class FixedPoint(Solver):
    """η_m ← (1 - ρ) η_m + ρ d/dμ E_q[log p(y_m | θ)] (Eq. 10 of the paper), `steps` times.

    With `step_size` ρ = 1 and a conjugate model one step is the analytic update; with ρ < 1 a step is natural
    gradient ascent, which is mirror descent. "auto" starts from ρ = 1 and halves it while the local free energy
    would fall, which only happens where a whole step overshoots; conjugate models always take it whole. From a wide
    prior little can be seen of where data lead, and exponentials overflow: with correlations, a site that has said
    nothing yet also looks more narrowly around the mean, and takes the step that leads to the best local free energy. A
    number is used as it is, and halved only while the posterior would become improper; the outcome says that it was.
    `batch_size` estimates the expectation from that many random rows.
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
            jnp.asarray(False),
        )
        end = jax.lax.while_loop(again, lambda state: self._step(problem, state, key), start)
        # A rate that somebody has set is not the one that was taken; and what is seen of another density is no report.
        told = (end.outcome == Outcome.STEPS_DONE) & end.is_shortened & (self.step_size != "auto")
        outcome = jnp.where(told, Outcome.SHORTENED, end.outcome)
        good = (end.outcome == Outcome.STEPS_DONE) | (end.outcome == Outcome.CONVERGED)
        outcome = jnp.where(good & end.is_narrower, Outcome.NARROWER, outcome)
        value = jnp.where(end.is_narrower, -jnp.inf, end.first_value)
        return end.posterior, SolverInfo(value, end.number, outcome)

    def _step(self, problem: LocalProblem, state: _State, key: Array) -> _State:
        batch_key, sample_key = jax.random.split(jax.random.fold_in(key, state.number))
        seen = self._look(problem.batch(batch_key, self.batch_size), state, sample_key)
        candidate = state.factor * (seen.message / state.factor) ** seen.step_size
        moved = jax.tree.map(lambda a, b: jnp.where(seen.finite & seen.possible, a, b), candidate, state.factor)
        # Convergence is judged by where the message leads, because a step that had to be halved moves little.
        settled = relative_change(seen.message, state.factor) <= self.tolerance
        outcome = jnp.where(
            seen.finite,
            jnp.where(seen.possible, jnp.where(settled, Outcome.CONVERGED, Outcome.STEPS_DONE), Outcome.HELD_BACK),
            Outcome.NOT_FINITE,
        )
        return _State(
            state.number + 1,
            problem.cavity * moved,
            moved,
            jnp.minimum(1.0, 2 * seen.step_size) if self.step_size == "auto" else state.step_size,
            jnp.where(state.number == 0, seen.value, state.first_value),
            outcome,
            state.is_shortened | (seen.step_size < state.step_size),
            state.is_narrower | (seen.looks > 0),
        )

    def _look(self, local: LocalProblem, state: _State, key: Array) -> _Sight:
        """What the data say at the posterior; of a site's first looks, what leads to the best local free energy."""
        zero, no = jnp.zeros((), state.posterior.dtype), jnp.asarray(False)
        nothing = _Sight(zero, zero, state.factor, zero, no, no, zero)
        if not self._searches(local) or not state.posterior.is_gaussian or state.posterior.is_mean_field:
            return self._look_at(local, state, state.posterior, nothing, key)
        known = jnp.any(jnp.stack([jnp.any(leaf != 0) for leaf in jax.tree.leaves(state.factor)]))
        looks = jnp.where(known | (state.number > 0), 1, LOOKS)
        worth = WORTH * jnp.sum(local.shard.weights)

        def again(carry: Any) -> Any:
            return carry[0] < looks

        def look(carry: Any) -> Any:
            number, best = carry
            seen = self._look_at(local, state, state.posterior ** (NARROWER**number), best._replace(looks=number), key)
            better = (number == 0) | (seen.reached > best.reached + worth)
            return number + 1, jax.tree.map(lambda a, b: jnp.where(better, a, b), seen, best)

        seen: _Sight = jax.lax.while_loop(again, look, (zero, nothing))[1]
        return seen

    def _look_at(self, local: LocalProblem, state: _State, view: Family, last: _Sight, key: Array) -> _Sight:
        """What the data say of the posterior or, after the first look, of a narrower view of it."""
        value, message = local.message(view, key)
        value = jnp.where(last.looks == 0, value, last.value)
        step_size, possible, reached = self._largest(local, state, message / state.factor, value, last.looks > 0, key)
        finite = all_finite(message) & (jnp.isfinite(value) | (last.looks > 0))
        reached = jnp.where(finite & possible, reached, -jnp.inf)
        return _Sight(last.looks, value, message, step_size, possible, finite, reached)

    def _searches(self, local: LocalProblem) -> bool:
        return self.step_size == "auto" and not local.model.conjugate

    def _largest(
        self, local: LocalProblem, state: _State, change: Family, value: Array, narrower: Array, key: Array
    ) -> tuple[Array, Array, Array]:
        """The first of ρ, ρ/2, ρ/4, … that will do, whether there was one, and the free energy if it was looked for."""
        anchor = local.cavity * state.factor
        now = value - state.posterior.kl(local.cavity)
        target = now - rounding_error(now)

        def look(step_size: Array) -> tuple[Array, Array]:
            moved = anchor * change**step_size
            if not self._searches(local):
                return moved.is_proper(), now
            reached = local.free_energy(moved, key)
            sure = jnp.where(narrower, jnp.isfinite(reached), state.posterior.kl(moved) <= LARGEST_KL)
            return (reached >= target) & sure, reached

        return halve_until(look, state.step_size)
