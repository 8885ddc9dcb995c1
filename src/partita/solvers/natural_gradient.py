"""Stochastic natural gradients with momentum, for networks: mini-batches, and any Gaussian cavity as the prior."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from partita.errors import InputError
from partita.families import Family, MeanField
from partita.foundation.checks import check_count, check_not_negative, check_positive, check_share
from partita.foundation.runtime import Array
from partita.free_energy import LocalProblem
from partita.solvers.base import Batches, Outcome, SolverInfo, SteppedSolver, all_finite

# Adam's: how much of the mean squares is kept from step to step, and what keeps them from zero.
SQUARES = 0.999
TINY = 1e-8


class _State(NamedTuple):
    number: Array
    order: Array
    location: Any
    precision: Any
    velocity: Any
    square: Any
    good: Array


class NaturalGradient(SteppedSolver):
    """Precisions by natural gradients, from the curvature of mini-batches; locations by momentum over the gradient.

    As in VOGN and IVON (Khan et al., 2018; Shen et al., 2024), with the cavity where they have an isotropic prior:
    Λ ← Λ + r (Λ_cavity + curvature - Λ). Curvature is the precision of the problem's message: the Fisher information
    with `GaussNewton`, the Hessian by reparameterisation with `MonteCarlo`. Locations move by ρ v / scale, where v
    averages the gradient of the local free energy. If `adaptive`, scales are the root mean squares of gradients, as
    Adam's, which did better on MNIST; else the precisions, as IVON's. ρ falls to zero within a refinement, so that
    noise does not end up in the factor.

    Args:
        learning_rate: ρ at the beginning; about ten times larger if not `adaptive`.
        precision_rate: r, at every step.
        momentum: how much of v is kept from step to step.
        adaptive: how steps of locations are scaled.
        floor: added to precisions before they scale a step, relative to their mean.
        epochs: passes over the shard.
        steps: instead of epochs.
        batch_size: rows of a mini-batch; the whole shard if not given.
    """

    learning_rate: float = 0.002
    precision_rate: float = 0.0005
    momentum: float = 0.9
    adaptive: bool = True
    floor: float = 0.1
    epochs: int = 1
    steps: int | None = None
    batch_size: int | None = 200

    def __check_init__(self) -> None:
        given = {name: getattr(self, name) for name in ("epochs", "steps", "batch_size")}
        check_count("NaturalGradient: ", **{name: value for name, value in given.items() if value is not None})
        check_positive("NaturalGradient: ", learning_rate=self.learning_rate)
        check_share("NaturalGradient: ", precision_rate=self.precision_rate)
        check_not_negative("NaturalGradient: ", floor=self.floor, momentum=self.momentum)
        if self.momentum >= 1:
            raise InputError(f"NaturalGradient: momentum: expected a number below 1, got {self.momentum}")

    @property
    def stochastic(self) -> bool:
        return self.batch_size is not None

    def refine(
        self, problem: LocalProblem, posterior: Family, factor: Family, *, key: Array
    ) -> tuple[Family, SolverInfo]:
        begun = self.begin(problem, posterior, factor)
        first, _ = self._batches(problem, key).take(jnp.asarray(0), begun.order)
        value = first.expected_log_prob(posterior.as_mean_field("NaturalGradient"), key)
        end = self.advance(problem, begun, self.limit(problem), key=key)
        moved = self.reached(problem, end)
        refined = jax.tree.map(lambda a, b: jnp.where(end.good, a, b), moved, problem.cavity * factor)
        outcome = jnp.where(end.good, Outcome.STEPS_DONE, Outcome.NOT_FINITE)
        return refined, SolverInfo(value, end.number, outcome)

    def limit(self, problem: LocalProblem) -> Array:
        return self._batches(problem, jax.random.key(0)).limit(self.epochs, self.steps)

    def begin(self, problem: LocalProblem, posterior: Family, factor: Family) -> _State:
        begin = posterior.as_mean_field("NaturalGradient")
        order = self._batches(problem, jax.random.key(0)).start()
        zeros = jax.tree.map(jnp.zeros_like, begin.location)
        return _State(jnp.asarray(0), order, begin.location, begin.precision, zeros, zeros, jnp.asarray(True))

    def advance(self, problem: LocalProblem, carried: _State, end: Array, *, key: Array) -> _State:
        batches, limit = self._batches(problem, key), self.limit(problem)
        return jax.lax.while_loop(
            lambda state: (state.number < jnp.minimum(end, limit)) & state.good,
            lambda state: self._step(batches, state, limit, key),
            carried,
        )

    def reached(self, problem: LocalProblem, carried: _State) -> MeanField:
        return MeanField.independent(carried.location, carried.precision)

    def _batches(self, problem: LocalProblem, key: Array) -> Batches:
        return Batches(problem, self.batch_size, jax.random.fold_in(key, 0))

    def _step(self, batches: Batches, state: _State, limit: Array, key: Array) -> _State:
        local, order = batches.take(state.number, state.order)
        q = MeanField.independent(state.location, state.precision)
        _, message = local.message(q, jax.random.fold_in(jax.random.fold_in(key, 1), state.number))
        # The gradient of the local free energy by the location is what the message and the cavity pull towards.
        cavity = local.cavity.as_mean_field("NaturalGradient")
        target = cavity * message.as_mean_field("NaturalGradient")
        gradient = jax.tree.map(
            lambda h, p, m: h - p * m, target.precision_times_location, target.precision, state.location
        )
        velocity = jax.tree.map(lambda v, g: self.momentum * v + (1 - self.momentum) * g, state.velocity, gradient)
        # Curvature may be negative where it is the Hessian's; what the cavity alone says is the least that is believed.
        precision = jax.tree.map(
            lambda p, t, c: jnp.maximum(p + self.precision_rate * (t - p), 0.5 * jnp.minimum(p, c)),
            state.precision,
            target.precision,
            cavity.precision,
        )
        number = (state.number + 1).astype(q.dtype)
        # Averages start at zero: divide by how much of them is there.
        rate = self.learning_rate * (1 - state.number / limit).astype(q.dtype) / (1 - self.momentum**number)
        square, scale = self._scale(state.square, gradient, precision, number)
        location = jax.tree.map(lambda m, v, s: m + rate * v / s, state.location, velocity, scale)
        good = all_finite((location, precision))
        return _State(state.number + 1, order, location, precision, velocity, square, good)

    def _scale(self, square: Any, gradient: Any, precision: Any, number: Array) -> tuple[Any, Any]:
        """What steps are divided by."""
        if not self.adaptive:
            leaves = jax.tree.leaves(precision)
            floor = self.floor * sum(jnp.sum(p) for p in leaves) / sum(p.size for p in leaves)
            return square, jax.tree.map(lambda p: p + floor, precision)
        square = jax.tree.map(lambda s, g: SQUARES * s + (1 - SQUARES) * g**2, square, gradient)
        return square, jax.tree.map(lambda s: jnp.sqrt(s / (1 - SQUARES**number)) + TINY, square)
