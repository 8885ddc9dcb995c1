"""Off-the-shelf optimisers on the local free energy."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from partita.errors import InputError
from partita.families import Family
from partita.foundation.checks import check_count, check_not_negative, check_positive
from partita.foundation.runtime import Array
from partita.free_energy import LocalProblem
from partita.solvers.base import Batches, Outcome, Solver, SolverInfo

OPTIMISERS: dict[str, Callable[[float], optax.GradientTransformation]] = {
    "adam": optax.adam,
    "rmsprop": optax.rmsprop,
    "sgd": optax.sgd,
}


class Gradient(Solver):
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
        batches = Batches(problem, self.batch_size, jax.random.fold_in(key, 0), self.blocks)
        first, _ = batches.take(jnp.asarray(0), batches.start())
        value = first.expected_log_prob(posterior.mean() if problem.expectation.of_mean else posterior, key)
        free, steps, outcome = self._optimise(batches, posterior, key)
        refined = posterior.from_free(free)
        good = refined.is_proper()
        refined = jax.tree.map(lambda a, b: jnp.where(good, a, b), refined, problem.cavity * factor)
        return refined, SolverInfo(value, steps, jnp.where(good, outcome, Outcome.NOT_FINITE))

    def _optimise(self, batches: Batches, posterior: Family, key: Array) -> tuple[Any, Array, Array]:
        transform = self._transform()
        limit = batches.limit(self.epochs, self.steps)
        needs_value = isinstance(transform, optax.GradientTransformationExtraArgs)

        def step(number: Array, local: LocalProblem, free: Any, state: Any) -> tuple[Any, Any, Array]:
            sample_key = jax.random.fold_in(jax.random.fold_in(key, 1), number)

            def loss(free: Any) -> Array:
                if self.power > 0:
                    return -local.renyi_bound(posterior.from_free(free), self.power, self.draws, sample_key)
                return -local.free_energy(posterior.seen_from_free(free), sample_key)

            value, gradient = jax.value_and_grad(loss)(free)
            extra = {"value": value, "grad": gradient, "value_fn": loss} if needs_value else {}
            updates, state = transform.update(gradient, state, free, **extra)
            # Looking at every entry takes time: only where somebody wants to know.
            size = _largest(gradient) if self.tolerance > 0 else jnp.asarray(jnp.inf, posterior.dtype)
            return optax.apply_updates(free, updates), state, size

        def body(carry: Any) -> Any:
            number, order, free, state, _ = carry
            local, order = batches.take(number, order)
            return number + 1, order, *step(number, local, free, state)

        def again(carry: Any) -> Array:
            number, *_, size = carry
            return (number < limit) & ~(size <= self.tolerance) & ~jnp.isnan(size)

        free = posterior.to_free()
        unknown = jnp.asarray(jnp.inf, posterior.dtype)
        first = (jnp.asarray(0), batches.start(), free, transform.init(free), unknown)
        steps, _, free, _, size = jax.lax.while_loop(again, body, first)
        return free, steps, jnp.where(size <= self.tolerance, Outcome.CONVERGED, Outcome.STEPS_DONE)

    def _transform(self) -> optax.GradientTransformation:
        if not isinstance(self.optimiser, str):
            return self.optimiser
        return optax.lbfgs() if self.optimiser == "lbfgs" else OPTIMISERS[self.optimiser](self.learning_rate)


def natural_means(optimiser: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimiser that sees natural gradients of a diagonal Gaussian's means: times its variances (Honkela et al.,
    2010). Those of its log scales are left as they are.
    """

    def scale_means(updates: Any, params: Any) -> Any:
        if len(params) != 2:
            raise InputError('natural_means: needs a diagonal Gaussian: posterior="mean-field"')
        (location, log_scale), (_, scales) = updates, params
        return jax.tree.map(lambda g, s: g * jnp.exp(2 * s), location, scales), log_scale

    return optax.chain(optax.stateless(scale_means), optimiser)


def _largest(gradient: Any) -> Array:
    return jnp.max(jnp.stack([jnp.max(jnp.abs(g)) for g in jax.tree.leaves(gradient)]))
