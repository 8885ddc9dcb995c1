"""Stochastic natural gradients of the local free energy, as the paper writes them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from partita.families import Family, MeanField
from partita.foundation.checks import check_count, check_share
from partita.foundation.runtime import Array
from partita.free_energy import LocalProblem
from partita.solvers.base import Batches, Outcome, SolverInfo, SteppedSolver, all_finite
from partita.solvers.rates import RobbinsMonro

NAME = "StochasticNaturalGradient"


class Course(NamedTuple):
    """Steps so far, the order of rows, where the posterior is, how often a number was left where it was, and whether
    all numbers are finite.
    """

    number: Array
    order: Array
    posterior: MeanField
    held: Array
    good: Array


class StochasticNaturalGradient(SteppedSolver):
    """η_q ← (1 - ρ) η_q + ρ (η_cavity + L d/dμ E_q[log p(y_l | θ)]), for mini-batches l (Section 3.4.1 of the paper).

    With one site the cavity is the prior, and this is stochastic global VI (Hoffman et al., 2013); L is the number of
    mini-batches in the shard. Both natural parameters of a diagonal Gaussian move by the same rate, at every step. The
    paper does not say what happens where a precision would not be positive: here that one coordinate stays where it is
    for that step, all others take theirs whole, and the outcome says so (`Course.held` counts them). Two ways never
    have that: a rate that is small enough, and `GaussNewton`, whose curvature is never negative.

    `FixedPoint` with a `batch_size` takes the same step from rows drawn with replacement, for any family.

    Args:
        rate: ρ, fixed as in the paper's experiment, or falling.
        epochs: passes over the shard.
        steps: instead of epochs.
        batch_size: rows of a mini-batch; the whole shard if not given.
    """

    rate: float | RobbinsMonro = 0.001
    epochs: int = 1
    steps: int | None = None
    batch_size: int | None = 200

    def __check_init__(self) -> None:
        given = {name: getattr(self, name) for name in ("epochs", "steps", "batch_size")}
        check_count(f"{NAME}: ", **{name: value for name, value in given.items() if value is not None})
        if not isinstance(self.rate, RobbinsMonro):
            check_share(f"{NAME}: ", rate=self.rate)

    @property
    def stochastic(self) -> bool:
        return self.batch_size is not None

    def refine(
        self, problem: LocalProblem, posterior: Family, factor: Family, *, key: Array
    ) -> tuple[Family, SolverInfo]:
        begun = self.begin(problem, posterior, factor)
        first, _ = self._batches(problem, key).take(jnp.asarray(0), begun.order)
        value = first.expected_log_prob(posterior.mean() if problem.expectation.of_mean else posterior, key)
        end = self.advance(problem, begun, self.limit(problem), key=key)
        refined = jax.tree.map(lambda a, b: jnp.where(end.good, a, b), end.posterior, problem.cavity * factor)
        taken = jnp.where(end.held > 0, Outcome.SHORTENED, Outcome.STEPS_DONE)
        return refined, SolverInfo(value, end.number, jnp.where(end.good, taken, Outcome.NOT_FINITE))

    def limit(self, problem: LocalProblem) -> Array:
        return self._batches(problem, jax.random.key(0)).limit(self.epochs, self.steps)

    def begin(self, problem: LocalProblem, posterior: Family, factor: Family) -> Course:
        order = self._batches(problem, jax.random.key(0)).start()
        return Course(jnp.asarray(0), order, posterior.as_mean_field(NAME), jnp.zeros((), jnp.int32), jnp.asarray(True))

    def advance(self, problem: LocalProblem, carried: Course, end: Array, *, key: Array) -> Course:
        batches = self._batches(problem, key)
        return jax.lax.while_loop(
            lambda state: (state.number < end) & state.good, lambda state: self._step(batches, state, key), carried
        )

    def reached(self, problem: LocalProblem, carried: Course) -> MeanField:
        return carried.posterior

    def held(self, carried: Course) -> Array:
        return carried.held

    def _batches(self, problem: LocalProblem, key: Array) -> Batches:
        return Batches(problem, self.batch_size, jax.random.fold_in(key, 0))

    def _step(self, batches: Batches, state: Course, key: Array) -> Course:
        local, order = batches.take(state.number, state.order)
        q = state.posterior
        _, message = local.message(q, jax.random.fold_in(jax.random.fold_in(key, 1), state.number))
        rate = self.rate(state.number).astype(q.dtype) if isinstance(self.rate, RobbinsMonro) else self.rate
        target = (local.cavity * message).as_mean_field(NAME)
        moved, held = hold_improper(q, q ** (1 - rate) * target**rate)
        return Course(state.number + 1, order, moved, state.held + held, all_finite((message, moved)))


def hold_improper(before: MeanField, after: MeanField) -> tuple[MeanField, Array]:
    """`after`, with coordinates as they were before where their precision is not positive; and how many these are."""
    positive = jax.tree.map(lambda p: p > 0, after.precision)

    def chosen(new: Any, old: Any) -> Any:
        return jax.tree.map(jnp.where, positive, new, old)

    held = sum(jnp.sum(~leaf) for leaf in jax.tree.leaves(positive))
    return (
        MeanField(
            chosen(after.precision_times_location, before.precision_times_location),
            chosen(after.precision, before.precision),
        ),
        jnp.asarray(held, jnp.int32),
    )
