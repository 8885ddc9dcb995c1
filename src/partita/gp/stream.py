"""A Gaussian process that learns from a stream: batch after batch, with beliefs about its hyperparameters."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from partita.errors import ImproperDensity, InputError
from partita.families import Gaussian, MeanField
from partita.families.mean_field import MeanFieldMoments
from partita.foundation.checks import check_count, check_not_negative, check_positive
from partita.foundation.moments import Affine
from partita.foundation.runtime import Array, on_host, precision
from partita.gp.sparse import Batch, Factor, Sites, SparseGP, Step, Whitened, greedy
from partita.gp.whitened import for_each
from partita.server.ledger import Ledger
from partita.shards import rounded
from partita.wire.tasks import Update

# Capacities for points begin here: every one is compiled for, which takes longer than a few more points do.
SMALLEST = 128
# Of a padded batch.
FEWEST_ROWS = 32
# Standard deviation of the prior of every log hyperparameter.
PRIOR_SCALE = 1.0
# How far the mean or the logarithm of the spread of targets moves, in spreads, before beliefs about a kernel are stale.
STEADY = 0.1
# The first jitter, relative to the mean of the diagonal, and the largest before giving up.
JITTER = 1e-9
MOST_JITTER = 1e-3
SITE_STEPS = 40
# Spread of log hyperparameters that the first batch begins with. As wide as their prior it would see the worst of them,
# and run from a small noise and a large variance before it has seen what they explain.
NARROW = 0.1
# The first batch is learnt from again until log hyperparameters move no further than this, or so many times.
STILL, MOST_ROUNDS = 0.05, 12


class Hyper(NamedTuple):
    """Log hyperparameters by name: a Gaussian for each, or points, where scales are zero."""

    location: dict[str, Array]
    scale: dict[str, Array]


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
        known = {
            "hyperparameters": ("variational", "ml", "fixed"),
            "pseudo_points": ("private", "shared"),
            "selection": ("variance", "k-means"),
        }
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise InputError(f"{name}: expected one of {', '.join(values)}, got {getattr(self, name)!r}")
        check_count(points_per_batch=self.points_per_batch, steps=self.steps, samples=self.samples)
        if self.max_points is not None:
            check_count(max_points=self.max_points)
        check_positive(learning_rate=self.learning_rate)
        check_not_negative(variance_threshold=self.variance_threshold)

    @property
    def moves_points(self) -> bool:
        return self.pseudo_points == "shared" or self.moves


@dataclass(frozen=True)
class Stream:
    """What is kept of all batches: a factor at pseudo-points, and beliefs about the hyperparameters. Immutable."""

    gp: SparseGP
    learning: Learning
    hyper: Hyper
    factor: Factor
    # The share of what is believed of the kernel that was heard in units that are no more.
    stale: float = 0.0
    log_evidence: float = 0.0
    jitter: float = JITTER
    batches: int = 0
    # Each batch's own part of the factor, if asked for.
    parts: tuple[Factor, ...] | None = None
    seed: int = 0

    @classmethod
    def begin(
        cls, gp: SparseGP, learning: Learning, features: int, outputs: int = 1, seed: int = 0, keep_parts: bool = False
    ) -> "Stream":
        hyper = believed(gp, learning, features, outputs)
        if keep_parts and (learning.pseudo_points == "shared" or learning.max_points is not None):
            raise InputError("keep_factors: needs private pseudo-points and no max_points: others do not stay")
        capacity = capacity_of(1, learning.max_points)
        factor = Factor(
            np.zeros((capacity, features)),
            np.zeros(capacity),
            np.zeros((outputs, capacity)),
            np.zeros((outputs, capacity, capacity)),
        )
        return cls(gp, learning, hyper, factor, parts=() if keep_parts else None, seed=seed)

    @property
    def points(self) -> np.ndarray:
        """The pseudo-inputs."""
        return self.factor.points[self.factor.present > 0]

    @property
    def params(self) -> dict[str, np.ndarray]:
        """Hyperparameters at the middle of what is believed of them."""
        return {name: np.exp(value) for name, value in self.hyper.location.items()}

    def absorb(self, X: np.ndarray, y: np.ndarray) -> "Stream":
        """The stream after one more batch: X [rows, features], y [outputs, rows]."""
        batch = padded(X, y)
        with precision(np.float64):
            step, movable = self._placed(batch)
            # A batch that brings more than all before it is as good as the first: these may have been single rows.
            begins = 2 * self.factor.present.sum() < step.present.sum()
            if begins and self.learning.hyperparameters == "variational":
                learnt, jitter = self._settled(step, movable)
            else:
                learnt, jitter = self._learnt(self.learning, step, movable, self.hyper)
        return dataclasses.replace(
            self,
            hyper=learnt.hyper,
            factor=learnt.factor,
            stale=0.0,
            log_evidence=self.log_evidence + float(learnt.log_evidence),
            jitter=jitter,
            batches=self.batches + 1,
            parts=None if self.parts is None else (*self.parts, learnt.own),
        )

    def _first(self) -> Hyper:
        """The prior of the kernel's hyperparameters, and what is believed by now of the likelihood's.

        Beside it the factor says what old batches say of the kernel; of the likelihood it says nothing.
        """
        first = believed(self.gp, self.learning, self.factor.points.shape[1], len(self.factor.shift))
        known = [name for name in first.location if name.startswith("likelihood.")]
        return Hyper(
            first.location | {name: self.hyper.location[name] for name in known},
            first.scale | {name: self.hyper.scale[name] for name in known},
        )

    def _settled(self, step: Step, movable: np.ndarray) -> tuple["Learnt", float]:
        """The first batch has all the way to go from a guess, further than later ones: until nothing moves.

        Only a distribution: a point that nothing holds back would run off along what one batch says nothing about.
        """
        scale = {name: np.minimum(value, NARROW) for name, value in self.hyper.scale.items()}
        start = self.hyper._replace(scale=scale)
        for _ in range(MOST_ROUNDS):
            learnt, jitter = self._learnt(self.learning, step, movable, start)
            if _apart(learnt.hyper, start) < STILL:
                break
            start, step = learnt.hyper, step._replace(points=learnt.factor.points)
        return learnt, jitter

    def _learnt(self, learning: Learning, step: Step, movable: np.ndarray, start: Hyper) -> tuple["Learnt", float]:
        """With more jitter than before only where factorisations fail without."""
        key = jax.random.fold_in(jax.random.key(self.seed), self.batches)
        noise = self._same_for_outputs(mirrored(key, learning.steps * learning.samples, self._size))
        noise = noise.reshape(learning.steps, learning.samples, self._size)
        jitter = self.jitter
        while jitter <= MOST_JITTER:
            given = step._replace(jitter=np.asarray(jitter))
            beliefs = (start, self.hyper, self._first(), np.asarray(self.stale))
            learnt = on_host(learn(self.gp, learning, *beliefs, given, movable, noise))
            if all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(learnt)):
                return learnt, jitter
            jitter *= 10
        raise InputError("the covariance of the pseudo-points cannot be factorised: are inputs scaled, targets finite?")

    @property
    def _size(self) -> int:
        """How many hyperparameters there are."""
        return sum(np.size(value) for value in self.hyper.location.values())

    def _same_for_outputs(self, noise: Array) -> Array:
        """Draws [number, hyperparameters] where what each output has of its own is drawn once for all of them.

        No term of the free energy knows those of two outputs, so expectations stay; equal columns learn equal things.
        """
        owner = {
            name: np.zeros(np.shape(at), int) if name.startswith("likelihood.") else np.arange(np.size(at))
            for name, at in self.hyper.location.items()
        }
        begin, index = 0, []
        for name in sorted(owner):  # the order in which trees are flattened
            index.append(begin + np.ravel(owner[name]))
            begin += np.size(self.hyper.location[name])
        return noise[:, np.concatenate(index)]

    def without(self, batch: int) -> "Stream":
        """As if a batch had not been seen, but for what it taught about hyperparameters: its factor is divided out."""
        parts = self._parts_of(batch)
        factor = divided(self.factor, parts[batch])
        with precision(np.float64):
            whitened = on_host(posterior(self.gp, self.params, factor, np.asarray(self.jitter)))
        if not all(np.all(np.isfinite(leaf)) for leaf in whitened):
            raise ImproperDensity(f"batch {batch}: without it the posterior would not be proper")
        others = (*parts[:batch], *parts[batch + 1 :])
        return dataclasses.replace(
            self, factor=factor, parts=others, batches=self.batches - 1, log_evidence=float("nan")
        )

    def refined(self, batch: int, X: np.ndarray, y: np.ndarray) -> "Stream":
        """The factor of a batch computed again from its data, with the points and hyperparameters of today."""
        parts = self._parts_of(batch)
        cavity = divided(self.factor, parts[batch])
        step = Step(cavity, padded(X, y), cavity.points, cavity.present, np.asarray(self.jitter), True)
        as_they_are = dataclasses.replace(
            self.learning, hyperparameters="fixed", pseudo_points="private", moves=False, max_points=None
        )
        with precision(np.float64):
            learnt, jitter = self._learnt(as_they_are, step, np.zeros_like(cavity.present), self.hyper)
        renewed = (*parts[:batch], learnt.own, *parts[batch + 1 :])
        return dataclasses.replace(self, factor=learnt.factor, parts=renewed, jitter=jitter, log_evidence=float("nan"))

    def _parts_of(self, batch: int) -> tuple[Factor, ...]:
        if self.parts is None:
            raise InputError("the factors of batches were not kept: begin with keep_factors=True")
        if not 0 <= batch < len(self.parts):
            raise InputError(f"batch {batch}: there are batches 0 to {len(self.parts) - 1}")
        return self.parts

    def ledger(self, output: int = 0) -> Ledger:
        """prior × ∏ factors with one site per batch, over v = L⁻¹ f(points), whose prior is N(0, I)."""
        parts = self._parts_of(0)
        size = len(self.factor.present)
        with precision(np.float64):
            L = on_host(posterior(self.gp, self.params, self.factor, np.asarray(self.jitter))).L
        ledger = Ledger(Gaussian(np.zeros(size), np.eye(size)), len(parts))
        tasks = ledger.dispatch(range(len(parts)), {})
        changes = []
        for task, part in zip(tasks, parts, strict=True):
            own = enlarged(part, size)
            matrix = L.T @ own.precision[output] @ L
            changes.append(
                Update(task.site, task.version, Gaussian(L.T @ own.shift[output], 0.5 * (matrix + matrix.T)), 0.0)
            )
        ledger.fold(changes)
        return ledger

    def rescaled(self, before: Affine, after: Affine, targets: tuple[Affine, Affine] | None) -> "Stream":
        """The same stream in other units of inputs and, where given, of targets."""
        outputs = len(self.factor.shift)
        if targets is None:
            targets = (Affine(np.zeros(outputs), np.ones(outputs)),) * 2
        old, new = targets
        larger, moved = new.scale / old.scale, (new.mean - old.mean) / old.scale

        def changed(factor: Factor) -> Factor:
            points = (factor.points * before.scale + before.mean - after.mean) / after.scale
            shift = factor.shift - moved[:, None] * (factor.precision @ factor.present)
            matrix = factor.precision * larger[:, None, None] ** 2
            return Factor(points * factor.present[:, None], factor.present, shift * larger[:, None], matrix)

        return dataclasses.replace(
            self,
            hyper=self._in_other_units(self.gp.in_units(before.scale / after.scale, 1 / larger)),
            factor=changed(self.factor),
            stale=1 - (1 - self.stale) * np.exp(-np.max(np.abs(moved) + np.abs(np.log(larger))) / STEADY),
            parts=None if self.parts is None else tuple(map(changed, self.parts)),
        )

    def _in_other_units(self, grown: dict[str, Any]) -> Hyper:
        """Beliefs about hyperparameters whose values grow by so much in other units.

        q(log ε) is their prior, which is relative to the units, times what batches have said, which is about the data
        and has to be converted. Both are Gaussian: a location moves by the batches' share of the precision.
        """

        def moved(name: str, location: Array) -> Array:
            learnt = 1 - (self.hyper.scale[name] / PRIOR_SCALE) ** 2
            if name not in grown:
                return location
            return location + np.clip(learnt, 0, 1) * np.reshape(np.log(grown[name]), np.shape(location))

        if self.learning.hyperparameters == "fixed":
            return self.hyper
        return self.hyper._replace(location={name: moved(name, at) for name, at in self.hyper.location.items()})

    def _placed(self, batch: Batch) -> tuple[Step, np.ndarray]:
        """Points for a new batch, and which of them may move."""
        learning, old = self.learning, self.factor
        have = int(old.present.sum())
        wanted = min(learning.points_per_batch, int(batch.weights.astype(bool).sum()))
        new = self._chosen(batch, wanted)
        limit = learning.max_points
        full = limit is not None and have + len(new) > limit
        points = np.concatenate([self.points, new])
        if full:
            points = self._thinned(points, limit)  # type: ignore[arg-type]
        capacity = capacity_of(len(points), limit)
        shared = learning.pseudo_points == "shared"
        movable = np.zeros(capacity)
        if shared:
            movable[: len(points)] = 1
        elif learning.moves and not full:
            movable[have : len(points)] = 1
        present = np.zeros(capacity)
        present[: len(points)] = 1
        places = np.pad(points, ((0, capacity - len(points)), (0, 0)))
        keeps = not (full or shared)
        room = enlarged(old, capacity) if keeps else old
        return Step(room, batch, places, present, np.asarray(self.jitter), keeps), movable

    def _chosen(self, batch: Batch, count: int) -> np.ndarray:
        if self.learning.selection == "k-means":
            from sklearn.cluster import KMeans

            rows = batch.X[batch.weights > 0]
            count = min(count, len(np.unique(rows, axis=0)))
            return KMeans(count, n_init=1, random_state=self.seed).fit(rows).cluster_centers_.astype(float)
        chosen, values = self._greedy(self.factor.points, self.factor.present, batch.X, batch.weights, count)
        scale = float(np.mean(on_host(self.gp.kernel.diagonal(self.gp.split(self.params)[0], batch.X[:1]))))
        # Rows that are determined already, such as copies of others, would only make matrices singular.
        enough = values > max(self.learning.variance_threshold, 1e-8) * scale
        if self.batches == 0:
            enough[0] = True
        return batch.X[chosen[enough]]

    def _thinned(self, candidates: np.ndarray, limit: int) -> np.ndarray:
        capacity = capacity_of(len(candidates), None)
        padded_points = np.pad(candidates, ((0, capacity - len(candidates)), (0, 0)))
        allowed = (np.arange(capacity) < len(candidates)).astype(float)
        nothing = np.zeros_like(self.factor.points[:1])
        chosen, values = self._greedy(nothing, np.zeros(1), padded_points, allowed, limit)
        return padded_points[np.sort(chosen[np.isfinite(values)])]

    def _greedy(self, points: Any, present: Any, X: Any, allowed: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
        jitter = self.jitter
        while True:
            given = (self.params, points, present, X, allowed, np.asarray(jitter), int(count))
            chosen, values = on_host(greedy(self.gp, *given))
            if not np.any(np.isnan(values)) or jitter > MOST_JITTER:
                return chosen, values
            jitter *= 10

    def latent(self, X: np.ndarray, samples: int = 8) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Mean and variance [draws, outputs, rows] of f(X), for draws of the hyperparameters, which come third."""
        with precision(np.float64):
            drawn, places = self.draws(samples, by_output=True), X[padding(len(X))]
            m, v = on_host(predict(self.gp, drawn, self.factor, places, np.asarray(self.jitter)))
        return m[..., : len(X)], v[..., : len(X)], drawn

    def draws(self, samples: int, by_output: bool = False) -> dict[str, np.ndarray]:
        """Hyperparameters with a leading axis; only their point, where nothing else is believed.

        Where outputs are looked at one by one, what each has of its own need not be drawn apart.
        """
        if self.learning.hyperparameters != "variational" or self.batches == 0:
            return {name: value[None] for name, value in self.params.items()}
        with precision(np.float64):
            (mean, unravel), (spread, _) = ravel_pytree(self.hyper.location), ravel_pytree(self.hyper.scale)
            noise = mirrored(jax.random.key(self.seed), samples, len(mean))
            logs = mean + spread * (self._same_for_outputs(noise) if by_output else noise)
            return on_host(exponentials(jax.vmap(unravel)(logs)))

    def joint(self, X: np.ndarray, samples: int) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """As `latent`, with covariances [draws, outputs, rows, rows]."""
        with precision(np.float64):
            drawn = self.draws(samples)
            m, S = on_host(predict_jointly(self.gp, drawn, self.factor, X, np.asarray(self.jitter)))
        return m, S, drawn


def believed(gp: SparseGP, learning: Learning, features: int, outputs: int) -> Hyper:
    """Beliefs about hyperparameters before there are any data."""
    logs = {name: np.log(np.asarray(value, float)) for name, value in gp.initial(features, outputs).items()}
    spread = PRIOR_SCALE if learning.hyperparameters == "variational" else 0.0
    return Hyper(logs, {name: np.full_like(value, spread) for name, value in logs.items()})


class Learnt(NamedTuple):
    hyper: Hyper
    factor: Factor
    own: Factor
    log_evidence: Array


@eqx.filter_jit
def learn(
    gp: SparseGP,
    learning: Learning,
    start: Hyper,
    hyper: Hyper,
    first: Hyper,
    stale: Array,
    given: Step,
    movable: Array,
    noise: Array,
) -> Learnt:
    """Hyperparameters and points that raise the free energy of a batch, then its factor.

    The search begins at `start`; `hyper` is what was believed before the batch. `noise`, [steps, samples,
    hyperparameters], makes draws of the hyperparameters.

    What old batches say about the kernel is known twice: in what is believed of it, and in the evidence of the factor,
    which with the `first` prior makes the same belief. The latter does not know what points do not hold. The former
    has forgotten which hyperparameters go together, and was heard in other units: it counts by the share that is not
    `stale`, the latter for the rest.
    """
    variational = learning.hyperparameters == "variational"
    draws = learning.samples if variational else 1
    (mean, unravel), (spread, _) = ravel_pytree(hyper.location), ravel_pytree(hyper.scale)
    begun = MeanField.from_moments(ravel_pytree(first.location)[0], ravel_pytree(first.scale)[0])
    remembered = MeanField.from_moments(mean, spread) ** (1 - stale) * begun**stale if variational else begun

    def values(logs: Array, places: Array, sites: Sites) -> tuple[Array, Sites]:
        return gp.free_energy(exponentials(unravel(logs)), given._replace(points=places), sites)

    def divergence(free: Free, other: MeanField) -> Array:
        return MeanFieldMoments(free.location, free.log_scale).kl(other)

    def before(logs: Array) -> Array:
        return gp.old_evidence(exponentials(unravel(logs)), given.old, given.jitter)

    def settled(logs: Array, places: Array, state: tuple[Sites, Array]) -> tuple[Sites, Array]:
        logs, places = jax.lax.stop_gradient((logs, places))
        return gp.improved(*state, lambda sites: values(logs, places, sites))

    def loss(moved: Free, states: Any, noise: Array) -> tuple[Array, tuple[Any, Array]]:
        free = completed(moved)
        logs = free.location + jnp.exp(free.log_scale) * noise if variational else free.location[None]

        def one(pair: Any) -> tuple[Array, Array, Any]:
            logs, state = pair
            if not gp.likelihood.exact:
                state = settled(logs, free.points, state)
            known = (1 - stale) * before(logs) if variational else 0.0
            total = values(logs, free.points, state[0])[0]
            return total - known, total, state

        each, totals, states = for_each(one, (logs, states))
        cost = divergence(free, remembered) if variational else 0.0
        return cost - jnp.mean(each), (states, jnp.mean(totals))

    sites = (gp.first_sites(given.batch), jnp.ones((), given.batch.y.dtype))
    states = jax.tree.map(lambda a: jnp.broadcast_to(a, (draws, *a.shape)), sites)
    old = Free(mean, jnp.log(spread) if variational else spread, given.points)
    at, width = (ravel_pytree(part)[0] for part in start)
    begin = Free(at, jnp.log(width) if variational else width, given.points)
    moving = (learning.hyperparameters != "fixed", variational, learning.moves_points)
    free = Free(*(part if moves else None for part, moves in zip(begin, moving, strict=True)))
    steps = learning.steps if any(moving) else 0
    optimiser = optax.adam(optax.cosine_decay_schedule(learning.learning_rate, max(1, steps)))

    def completed(free: Free) -> Free:
        return Free(*(fixed if moved is None else moved for moved, fixed in zip(free, begin, strict=True)))

    def step(carry: Any, noise: Array) -> tuple[Any, Array]:
        free, state, states = carry
        (_, (states, total)), gradient = jax.value_and_grad(loss, has_aux=True)(free, states, noise)
        if gradient.points is not None:
            gradient = gradient._replace(points=gradient.points * movable[:, None])
        updates, state = optimiser.update(gradient, state)
        return (optax.apply_updates(free, updates), state, states), total

    totals = None
    if steps:
        (free, _, states), totals = jax.lax.scan(step, (free, optimiser.init(free), states), noise)
    free = completed(free)
    last = jax.tree.map(lambda a: a[0], states)
    if not gp.likelihood.exact:
        last = jax.lax.fori_loop(0, SITE_STEPS, lambda _, state: settled(free.location, free.points, state), last)
    total, target = values(free.location, free.points, last[0])
    settled_sites = target if gp.likelihood.exact else last[0]
    scale = jnp.exp(free.log_scale) if variational else spread
    new = Hyper(unravel(free.location), unravel(scale))
    factor, own = gp.absorbed(exponentials(new.location), given._replace(points=free.points), settled_sites)
    if variational and totals is not None:
        # At rates near zero: draws of what is believed in the end, from the last steps.
        drawn = mean + spread * noise[-max(1, steps // 4) :, 0]
        gained = jnp.mean(totals[-len(drawn) :]) - jnp.mean(jax.lax.map(before, drawn))
        gained += divergence(old, begun) - divergence(free, begun)
    else:
        gained = total - before(mean)
    return Learnt(new, factor, own, gained)


class Free(NamedTuple):
    """What can be optimised: of the log hyperparameters, side by side, and of the points. None where it is not."""

    location: Any
    log_scale: Any
    points: Any


@eqx.filter_jit
def predict(gp: SparseGP, drawn: Any, factor: Factor, X: Array, jitter: Array) -> tuple[Array, Array]:
    """Mean and variance of f(X) for every draw of the hyperparameters."""
    return jax.lax.map(lambda params: gp.predicted(params, factor, X, jitter), drawn)


@eqx.filter_jit
def predict_jointly(gp: SparseGP, drawn: Any, factor: Factor, X: Array, jitter: Array) -> tuple[Array, Array]:
    return jax.lax.map(lambda params: gp.predicted_jointly(params, factor, X, jitter), drawn)


@eqx.filter_jit
def posterior(gp: SparseGP, params: Any, factor: Factor, jitter: Array) -> Whitened:
    return gp.posterior(params, factor, jitter)


def _apart(one: Hyper, other: Hyper) -> float:
    """How far locations are from each other, at most."""
    return max(float(np.max(np.abs(at - other.location[name]))) for name, at in one.location.items())


def exponentials(logs: Any) -> Any:
    return jax.tree.map(jnp.exp, logs)


def mirrored(key: Array, samples: int, size: int) -> Array:
    """Standard normal draws [samples, size], each followed by its negative."""
    half = jax.random.normal(key, ((samples + 1) // 2, size), jnp.float64)
    return jnp.stack([half, -half], axis=1).reshape(-1, size)[:samples]


def capacity_of(points: int, limit: int | None) -> int:
    """One of few sizes, so that shapes seldom change: 128, 192, 256, 384, …; or the limit itself."""
    double = max(SMALLEST, 1 << (points - 1).bit_length())
    between = 3 * double // 4
    capacity = between if points <= between and double > 128 else double
    return capacity if limit is None else max(points, min(capacity, limit))


def enlarged(factor: Factor, capacity: int) -> Factor:
    """The same factor with room for more points."""
    extra = capacity - len(factor.present)
    return Factor(
        np.pad(factor.points, ((0, extra), (0, 0))),
        np.pad(factor.present, (0, extra)),
        np.pad(factor.shift, ((0, 0), (0, extra))),
        np.pad(factor.precision, ((0, 0), (0, extra), (0, extra))),
    )


def divided(factor: Factor, part: Factor) -> Factor:
    """Without one of its parts."""
    own = enlarged(part, len(factor.present))
    return factor._replace(shift=factor.shift - own.shift, precision=factor.precision - own.precision)


def padded(X: np.ndarray, y: np.ndarray) -> Batch:
    """Rows with their padding, which weighs nothing."""
    index = padding(len(X))
    return Batch(X[index], y[:, index], (np.arange(len(index)) < len(X)).astype(float))


def padding(rows: int) -> np.ndarray:
    """Indices of so many rows, then of the first one over and over, up to one of a few sizes."""
    numbers = np.arange(rounded(max(FEWEST_ROWS, rows)))
    return np.where(numbers < rows, numbers, 0)
