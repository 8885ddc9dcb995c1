"""How a stream learns from one batch: hyperparameters and points by gradient, then the batch's factor."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from partita.families.mean_field import MeanField, MeanFieldMoments
from partita.foundation.checks import check_count, check_not_negative, check_one_of, check_positive
from partita.foundation.runtime import Array, compile_quickly, ravel
from partita.foundation.shapes import Scalar
from partita.gaussian_processes.shapes import Draws, Logs, PerPlace, Places, StepDraws
from partita.gp.beliefs import Beliefs, exponentials
from partita.gp.sparse import Factor, SparseGP, Step, Terms
from partita.gp.whitened import for_each

# Steps in which terms of a likelihood that is not Gaussian settle, after the hyperparameters have been learnt.
TERM_STEPS = 40
KNOWN = {
    "hyperparameters": ("variational", "ml", "fixed"),
    "pseudo_points": ("private", "shared"),
    "selection": ("variance", "k-means"),
}


@dataclass(frozen=True)
class Learning:
    """How a stream learns.

    Args:
        hyperparameters: "variational" keeps a distribution; "ml" a point that maximises the free energy of old factor
            and new batch; "fixed" leaves them as they are.
        pseudo_points: "private" gives each batch new points and leaves the old ones where they are; "shared" moves all.
        points_per_batch: how many are added with a batch.
        max_points: how many there may be; beyond, those that the others determine least well are kept, unmoved.
        variance_threshold: fewer points are added where all rows are determined up to this share of the prior variance;
            with "variance" only.
        selection: of new points among the batch's rows: "variance" takes those that are determined least, "k-means" the
            centres of clusters.
        moves: whether new points are moved by gradient too, where points are private.
        steps: of Adam, per batch.
        learning_rate: of Adam; falls to zero within a batch.
        samples: draws of the hyperparameters per step; every second one mirrors the one before.
    """

    hyperparameters: Literal["variational", "ml", "fixed"] = "variational"
    pseudo_points: Literal["private", "shared"] = "private"
    points_per_batch: int = 10
    max_points: int | None = None
    variance_threshold: float = 0.0
    selection: Literal["variance", "k-means"] = "variance"
    moves: bool = False
    steps: int = 60
    learning_rate: float = 0.05
    samples: int = 1

    def __post_init__(self) -> None:
        for name, values in KNOWN.items():
            check_one_of("", values, **{name: getattr(self, name)})
        check_count(points_per_batch=self.points_per_batch, steps=self.steps, samples=self.samples)
        if self.max_points is not None:
            check_count(max_points=self.max_points)
        check_positive(learning_rate=self.learning_rate)
        check_not_negative(variance_threshold=self.variance_threshold)

    @property
    def is_variational(self) -> bool:
        return self.hyperparameters == "variational"

    @property
    def moves_points(self) -> bool:
        return self.pseudo_points == "shared" or self.moves


class Given(NamedTuple):
    """What a batch is learnt beside: beliefs about the hyperparameters from three points of view.

    What old batches say about the kernel is known twice: in what is believed of it, and in the evidence of the factor,
    which with the `first` prior makes the same belief. The latter does not know what points do not hold. The former
    has forgotten which hyperparameters go together, and was heard in other units: it counts by the share that is not
    `stale`, the latter for the rest.
    """

    start: Beliefs  # where the search begins
    before: Beliefs  # what was believed before the batch
    first: Beliefs  # the prior of the kernel's hyperparameters, and what is believed by now of the likelihood's
    stale: Scalar


class Free(NamedTuple):
    """What can be optimised: of the log hyperparameters, side by side, and of the points. None where it is not."""

    location: Any
    log_scale: Any
    points: Any


class Learnt(NamedTuple):
    """What one batch has taught: beliefs, the factor of all batches, the batch's own, and what it adds in nats."""

    hyper: Beliefs
    factor: Factor
    own: Factor
    log_evidence: Scalar


@dataclass(frozen=True)
class Objective:
    """What the search for hyperparameters and points climbs: the free energy of a batch beside the old factor."""

    gp: SparseGP
    learning: Learning
    step: Step
    stale: Scalar
    unravel: Callable[[Logs], Any]
    # Where the search begins; what is not searched stays there.
    begin: Free
    # The prior of the log hyperparameters, where they have a distribution.
    remembered: MeanField

    def bound(self, logs: Logs, points: Places, terms: Terms) -> tuple[Scalar, Terms]:
        return self.gp.free_energy(exponentials(self.unravel(logs)), self.step._replace(points=points), terms)

    def old_evidence(self, logs: Logs) -> Scalar:
        return self.gp.old_evidence(exponentials(self.unravel(logs)), self.step.old, self.step.jitter)

    def settle(self, logs: Logs, points: Places, state: tuple[Terms, Array]) -> Any:
        """One step of the terms of a likelihood that is not Gaussian."""
        logs, points = jax.lax.stop_gradient((logs, points))
        return self.gp.improve_terms(*state, lambda terms: self.bound(logs, points, terms))

    def complete(self, moved: Free) -> Free:
        return Free(*(fixed if part is None else part for part, fixed in zip(moved, self.begin, strict=True)))

    def loss(self, moved: Free, states: Any, noise: Draws) -> tuple[Scalar, tuple[Any, Scalar]]:
        """The negative free energy, averaged over draws of the hyperparameters; and terms and energies beside it."""
        free, variational = self.complete(moved), self.learning.is_variational
        logs = free.location + jnp.exp(free.log_scale) * noise if variational else free.location[None]

        def one(pair: Any) -> tuple[Scalar, Scalar, Any]:
            logs, state = pair
            if not self.gp.likelihood.exact:
                state = self.settle(logs, free.points, state)
            known = (1 - self.stale) * self.old_evidence(logs) if variational else 0.0
            total = self.bound(logs, free.points, state[0])[0]
            return total - known, total, state

        each, totals, states = for_each(one, (logs, states))
        cost = divergence(free, self.remembered) if variational else 0.0
        return cost - jnp.mean(each), (states, jnp.mean(totals))

    def search(self, states: Any, movable: PerPlace, noise: StepDraws) -> tuple[Free, Any, Array | None]:
        """Where Adam ends, with the terms there, and the free energy of every step, if there are any."""
        moving = (
            self.learning.hyperparameters != "fixed",
            self.learning.is_variational,
            self.learning.moves_points,
        )
        free = Free(*(part if moves else None for part, moves in zip(self.begin, moving, strict=True)))
        steps = self.learning.steps if any(moving) else 0
        optimiser = optax.adam(optax.cosine_decay_schedule(self.learning.learning_rate, max(1, steps)))

        def step(carry: Any, noise: Any) -> tuple[Any, Array]:
            free, state, states = carry
            (_, (states, total)), gradient = jax.value_and_grad(self.loss, has_aux=True)(free, states, noise)
            if gradient.points is not None:
                gradient = gradient._replace(points=gradient.points * movable[:, None])
            updates, state = optimiser.update(gradient, state)
            return (optax.apply_updates(free, updates), state, states), total

        totals = None
        if steps:
            (free, _, states), totals = jax.lax.scan(step, (free, optimiser.init(free), states), noise)
        return self.complete(free), states, totals


def divergence(free: Free, other: MeanField) -> Scalar:
    return MeanFieldMoments(free.location, free.log_scale).kl(other)


@compile_quickly
def learn(gp: SparseGP, learning: Learning, given: Given, step: Step, movable: PerPlace, noise: StepDraws) -> Learnt:
    """Hyperparameters and points that raise the free energy of a batch, then its factor.

    `noise` makes draws of the hyperparameters, some for every step.
    """
    variational = learning.is_variational
    draws = learning.samples if variational else 1
    (mean, unravel), (spread, _) = ravel(given.before.location), ravel(given.before.scale)
    first = MeanField.from_moments(ravel(given.first.location)[0], ravel(given.first.scale)[0])
    stale = given.stale
    remembered = MeanField.from_moments(mean, spread) ** (1 - stale) * first**stale if variational else first
    terms = (gp.first_terms(step.batch), jnp.ones((), step.batch.y.dtype))
    states = jax.tree.map(lambda a: jnp.broadcast_to(a, (draws, *a.shape)), terms)
    old = Free(mean, jnp.log(spread) if variational else spread, step.points)
    at, width = (ravel(part)[0] for part in given.start)
    begin = Free(at, jnp.log(width) if variational else width, step.points)
    objective = Objective(gp, learning, step, stale, unravel, begin, remembered)
    free, states, totals = objective.search(states, movable, noise)
    last = jax.tree.map(lambda a: a[0], states)
    if not gp.likelihood.exact:
        settle = objective.settle
        last = jax.lax.fori_loop(0, TERM_STEPS, lambda _, state: settle(free.location, free.points, state), last)
    total, target = objective.bound(free.location, free.points, last[0])
    scale = jnp.exp(free.log_scale) if variational else spread
    new = Beliefs(unravel(free.location), unravel(scale))
    factor, own = gp.absorb(
        exponentials(new.location), step._replace(points=free.points), target if gp.likelihood.exact else last[0]
    )
    if variational and totals is not None:
        # The last steps, at rates near zero, have drawn from what is believed in the end.
        drawn = mean + spread * noise[-max(1, learning.steps // 4) :, 0]
        gained = jnp.mean(totals[-len(drawn) :]) - jnp.mean(jax.lax.map(objective.old_evidence, drawn))
        gained += divergence(old, first) - divergence(free, first)
    else:
        gained = jnp.asarray(total) - objective.old_evidence(mean)
    return Learnt(new, factor, own, gained)
