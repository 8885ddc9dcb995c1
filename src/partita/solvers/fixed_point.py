"""Fixed-point iteration of the local free energy: natural gradients, mirror descent, analytic updates."""

import jax
import jax.numpy as jnp
from jax import Array

from partita.errors import InputError
from partita.families import Family
from partita.free_energy import LocalProblem
from partita.solvers.base import Outcome, Solver, SolverInfo, largest_step, relative_change


class FixedPoint(Solver):
    """η_m ← (1 - ρ) η_m + ρ d/dμ E_q[log p(y_m | θ)] (Eq. 8 of the paper), `steps` times.

    With `step_size` ρ = 1 and a conjugate model one step is the analytic update; with ρ < 1 a step is natural
    gradient ascent, which is mirror descent. `batch_size` estimates the expectation from that many random
    rows. A step that would make the posterior improper is halved until it does not.
    """

    steps: int = 1
    step_size: float = 1.0
    batch_size: int | None = None
    tolerance: float = 0.0

    def __check_init__(self) -> None:
        if self.steps < 1 or not 0 < self.step_size <= 1:
            raise InputError("FixedPoint: expected steps of at least 1 and a step_size in (0, 1]")
        if self.batch_size is not None and self.batch_size < 1:
            raise InputError("FixedPoint: batch_size must be at least 1")

    def refine(
        self, problem: LocalProblem, posterior: Family, factor: Family, *, key: Array
    ) -> tuple[Family, SolverInfo]:
        def step(number: Array, q: Family, t: Family) -> tuple[Family, Family, Array, Array]:
            batch_key, sample_key = jax.random.split(jax.random.fold_in(key, number))
            value, message = problem.batch(batch_key, self.batch_size).message(q, sample_key)
            anchor = problem.cavity * t
            change = (message / t) ** self.step_size
            share, possible = largest_step(anchor, change)
            finite = jnp.isfinite(value) & jnp.all(jnp.stack([jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(change)]))
            usable = finite & possible
            moved = jax.tree.map(lambda a, b: jnp.where(usable, a, b), t * change**share, t)
            outcome = jnp.where(finite, jnp.where(possible, Outcome.STEPS_DONE, Outcome.HELD_BACK), Outcome.NOT_FINITE)
            return problem.cavity * moved, moved, value, outcome

        def again(state) -> Array:
            number, _, _, _, outcome = state
            return (number < self.steps) & (outcome == Outcome.STEPS_DONE)

        def body(state):
            number, q, t, first, _ = state
            q, moved, value, outcome = step(number, q, t)
            settled = relative_change(moved, t) <= self.tolerance
            outcome = jnp.where((outcome == Outcome.STEPS_DONE) & settled, Outcome.CONVERGED, outcome)
            return number + 1, q, moved, jnp.where(number == 0, value, first), outcome

        start = (jnp.asarray(0), posterior, factor, jnp.zeros((), posterior.dtype), jnp.asarray(Outcome.STEPS_DONE))
        steps, refined, _, value, outcome = jax.lax.while_loop(again, body, start)
        return refined, SolverInfo(value, steps, outcome)
