"""Off-the-shelf optimisers on the local free energy."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from partita.errors import InputError
from partita.families import Family
from partita.foundation.checks import check_count, check_not_negative, check_positive
from partita.foundation.runtime import Array
from partita.free_energy import LocalProblem
from partita.solvers.base import Batches, Outcome, SolverInfo, SteppedSolver

OPTIMISERS: dict[str, Callable[[float], optax.GradientTransformation]] = {
    "adam": optax.adam,
    "rmsprop": optax.rmsprop,
    "sgd": optax.sgd,
}


class Descent(NamedTuple):
    """What an optimiser carries: steps so far, the order of rows, where it began, where it is, and what it remembers.

    `slope` is the largest entry of the latest gradient, if somebody wants to know it, else infinite.
    """

    number: Array
    order: Array
    begun: Family
    free: Any
    memory: Any
    slope: Array


class Gradient(SteppedSolver):
    """Any Optax optimiser, by name or as an object, or "lbfgs", over unconstrained coordinates of q.

    Works for `epochs` of shuffled batches (without `batch_size`, an epoch is one step), or for `steps` if given.
    Stops early when the largest entry of the gradient falls below `tolerance`. With `blocks`, batches are rows that
    follow each other in the shard, and only the order of the batches is shuffled.

    With a `power` α between 0 and 1 the α-divergence to the tilted distribution is minimised instead of KL, which is
    its limit at 0: then fixed points are those of power EP (Minka, 2004). Where a shard is more than one row of a model
    with a linear predictor, that takes `draws` of the posterior. The free energy in a run's history is still the
    variational one, which these steps need not raise.
    """

    optimiser: str | optax.GradientTransformation = eqx.field(static=True, default="adam")
    learning_rate: float = 0.01
    epochs: int = 100
    steps: int | None = None
    batch_size: int | None = None
    tolerance: float = 1e-8
    blocks: bool = False
    power: float = 0.0
    draws: int = 100

    def __check_init__(self) -> None:
        named = isinstance(self.optimiser, str) and self.optimiser in (*OPTIMISERS, "lbfgs")
        if not named and not isinstance(self.optimiser, optax.GradientTransformation):
            known = ", ".join([*OPTIMISERS, "lbfgs"])
            raise InputError(f"Gradient: optimiser {self.optimiser!r} is not known: use one of {known}, or Optax's")
        if self.optimiser == "lbfgs" and self.batch_size is not None:
            raise InputError("Gradient: L-BFGS needs the whole shard: leave batch_size out")
        given = {name: getattr(self, name) for name in ("epochs", "steps", "batch_size")}
        check_count("Gradient: ", **{name: value for name, value in given.items() if value is not None})
        check_positive("Gradient: ", learning_rate=self.learning_rate)
        check_not_negative("Gradient: ", tolerance=self.tolerance, power=self.power)
        check_count("Gradient: ", draws=self.draws)
        if self.power > 0 and self.batch_size is not None:
            raise InputError("Gradient: a power needs the whole shard: leave batch_size out")
        if self.power >= 1:
            raise InputError("Gradient: power: expected less than 1; MomentMatching takes 1")

    @property
    def stochastic(self) -> bool:
        return self.batch_size is not None or self.power > 0

    def refine(
        self, problem: LocalProblem, posterior: Family, factor: Family, *, key: Array
    ) -> tuple[Family, SolverInfo]:
        batches = self._batches(problem, key)
        first, _ = batches.take(jnp.asarray(0), batches.start())
        value = first.expected_log_prob(posterior.mean() if problem.expectation.of_mean else posterior, key)
        carried = self.begin(problem, posterior, factor)
        end = self.advance(problem, carried, self.limit(problem), key=key)
        refined = posterior.from_free(end.free)
        good = refined.is_proper()
        refined = jax.tree.map(lambda a, b: jnp.where(good, a, b), refined, problem.cavity * factor)
        outcome = jnp.where(end.slope <= self.tolerance, Outcome.CONVERGED, Outcome.STEPS_DONE)
        return refined, SolverInfo(value, end.number, jnp.where(good, outcome, Outcome.NOT_FINITE))

    def limit(self, problem: LocalProblem) -> Array:
        return self._batches(problem, jax.random.key(0)).limit(self.epochs, self.steps)

    def begin(self, problem: LocalProblem, posterior: Family, factor: Family) -> "Descent":
        free = posterior.to_free()
        order = self._batches(problem, jax.random.key(0)).start()
        unknown = jnp.asarray(jnp.inf, posterior.dtype)
        return Descent(jnp.asarray(0), order, posterior, free, self._transform().init(free), unknown)

    def advance(self, problem: LocalProblem, carried: "Descent", end: Array, *, key: Array) -> "Descent":
        batches = self._batches(problem, key)

        def again(state: Descent) -> Array:
            return (state.number < end) & ~(state.slope <= self.tolerance) & ~jnp.isnan(state.slope)

        return jax.lax.while_loop(again, lambda state: self._step(batches, state, key), carried)

    def reached(self, problem: LocalProblem, carried: "Descent") -> Family:
        return carried.begun.from_free(carried.free)

    def _batches(self, problem: LocalProblem, key: Array) -> Batches:
        return Batches(problem, self.batch_size, jax.random.fold_in(key, 0), self.blocks)

    def _step(self, batches: Batches, state: "Descent", key: Array) -> "Descent":
        transform, posterior = self._transform(), state.begun
        local, order = batches.take(state.number, state.order)
        sample_key = jax.random.fold_in(jax.random.fold_in(key, 1), state.number)

        # Optax hands on to `value_fn` what no transformation asked for.
        def loss(free: Any, family: Family | None = None) -> Array:
            if self.power > 0:
                return -local.renyi_bound(posterior.from_free(free), self.power, self.draws, sample_key)
            return -local.free_energy(posterior.seen_from_free(free), sample_key)

        value, gradient = jax.value_and_grad(loss)(state.free)
        takes_more = isinstance(transform, optax.GradientTransformationExtraArgs)
        known = {"value": value, "grad": gradient, "value_fn": loss, "family": posterior.from_free(state.free)}
        extra = known if takes_more else {}
        updates, memory = transform.update(gradient, state.memory, state.free, **extra)
        # Looking at every entry takes time: only where somebody wants to know.
        slope = _largest(gradient) if self.tolerance > 0 else jnp.asarray(jnp.inf, posterior.dtype)
        free = optax.apply_updates(state.free, updates)
        return Descent(state.number + 1, order, posterior, free, memory, slope)

    def _transform(self) -> optax.GradientTransformation:
        if not isinstance(self.optimiser, str):
            return self.optimiser
        return optax.lbfgs() if self.optimiser == "lbfgs" else OPTIMISERS[self.optimiser](self.learning_rate)


def natural_means(optimiser: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimiser that sees natural gradients of means, times what they vary by (Honkela et al., 2010): those of
    Gaussians, and of the components of a mixture. Those of everything else are left as they are.
    """

    def update(updates: Any, state: Any, params: Any = None, *, family: Family, **others: Any) -> tuple[Any, Any]:
        return family.natural_locations(updates), state

    scale = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
    return optax.chain(scale, optimiser)


def _largest(gradient: Any) -> Array:
    return jnp.max(jnp.stack([jnp.max(jnp.abs(g)) for g in jax.tree.leaves(gradient)]))
