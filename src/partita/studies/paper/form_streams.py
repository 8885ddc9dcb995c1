"""Streams that learn by one of the paper's four forms, with everything followed by gradient, pseudo-inputs too."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from partita.families.mean_field import MeanField, MeanFieldMoments
from partita.foundation.runtime import Array, compile_quickly, on_host, precision, ravel
from partita.gaussian_processes.kernels import SquaredExponential
from partita.gaussian_processes.likelihoods import Likelihood, Normal, Probit
from partita.gp.beliefs import Beliefs, draw_noise, exponentials
from partita.gp.sparse import SparseGP
from partita.gp.whitened import for_each
from partita.studies.paper.forms import Form, Free, Values, bound, combine, factorise, recall, see, whiten

# Draws of hyperparameters that predictions average over.
DRAWS = 16
# The share of shared points that begin a batch where they were, drawn at random; the others begin at rows of the
# batch. That is how streams of shared points are begun in the code of Bui, Nguyen and Turner (2017).
KEPT = 0.8


@dataclass(frozen=True)
class Search:
    """How F is climbed: by Adam, whose rate falls to zero within a batch, with draws of θ at every step."""

    steps: int = 1000
    rate: float = 0.03
    draws: int = 2


class Learnt(NamedTuple):
    """What one batch has taught: beliefs about θ and about values, and F."""

    hyper: Beliefs
    values: Values
    gained: Array


class FormStream:
    """A process with one latent function that follows a stream.

    Args:
        form: which of the paper's.
        points: with private points, how many a batch adds; with shared ones, how many there are.
        search: how long F is climbed.
        seed: of everything that is drawn.
    """

    likelihood: Likelihood

    def __init__(self, form: Form, points: int, search: Search, seed: int = 0):
        self.form, self.points, self.search, self.seed = form, points, search, seed
        self.gp = SparseGP(SquaredExponential(), self.likelihood)
        self.batches, self.log_evidence_ = 0, 0.0

    def partial_fit(self, X: np.ndarray, y: np.ndarray, classes: Any = None) -> Self:
        """One more batch, in units that do not change."""
        if not self.batches:
            self.hyper_ = Beliefs.begin(self.gp, self.form.is_variational, X.shape[1], 1)
            self.values_ = Values(np.empty((0, X.shape[1])), np.empty(0), np.empty((0, 0)))
        places = self._place(X)
        noise = draw_noise(self.seed, self.batches, self.search.steps * self.search.draws, self.hyper_.size)
        noise = noise.reshape(self.search.steps, self.search.draws, -1)
        with precision(np.float64):
            learnt = on_host(
                learn(
                    self.gp, self.form, self.search, self.values_, self.hyper_, places, X, np.asarray(y, float), noise
                )
            )
        if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(learnt)):
            raise FloatingPointError(f"batch {self.batches}: the free energy of {self.form} is no number")
        self.hyper_, self.values_ = learnt.hyper, learnt.values
        self.log_evidence_ += float(learnt.gained)
        self.batches += 1
        return self

    @property
    def pseudo_points_(self) -> np.ndarray:
        return np.asarray(self.values_.points)

    def hyperparameter_draws(self, number: int) -> dict[str, np.ndarray]:
        """Draws of q(θ) by name; the point, where there is one."""
        return {name.split(".")[1]: value for name, value in self._draw(number).items()}

    def latent(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Mean and variance [draws, rows] of f(X) for draws of θ, which come third."""
        drawn = self._draw(DRAWS)
        with precision(np.float64):
            mean, variance = on_host(look(self.gp, drawn, self.values_, X))
        return mean, variance, drawn

    def _draw(self, number: int) -> dict[str, np.ndarray]:
        if self.form.is_variational:
            return self.hyper_.draw(self.seed, number, by_output=False)
        return {name: value[None] for name, value in self.hyper_.params.items()}

    def _place(self, X: np.ndarray) -> np.ndarray:
        """Where the points of a batch begin: private ones at centres of clusters; shared ones, see `KEPT`."""
        from sklearn.cluster import KMeans

        if self.form.is_private:
            clusters = KMeans(min(self.points, len(X)), n_init=4, random_state=self.seed).fit(X)
            return np.asarray(clusters.cluster_centers_, float)
        generator = np.random.default_rng([self.seed, self.batches])
        old = self.values_.points
        new = min(len(X), self.points if not self.batches else self.points - int(KEPT * self.points))
        stays = generator.permutation(len(old))[: max(0, self.points - new)]
        return np.concatenate([old[stays], X[generator.permutation(len(X))[:new]]])


class FormClassifier(FormStream):
    """A probit process."""

    likelihood = Probit()

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Probabilities of both classes, averaged over draws of θ."""
        mean, variance, _ = self.latent(X)
        with precision(np.float64):
            p = np.asarray(jax.scipy.special.ndtr(mean / np.sqrt(1 + variance))).mean(axis=0)
        return np.stack([1 - p, p], axis=1)


class FormRegressor(FormStream):
    """A process with normal noise."""

    likelihood = Normal()

    def predict(self, X: np.ndarray, return_std: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """The mean of observations and their standard deviation, averaged over draws of θ."""
        mean, variance, drawn = self.latent(X)
        wide = variance + drawn["likelihood.noise"][:, None] ** 2
        return mean.mean(axis=0), np.sqrt(wide.mean(axis=0) + mean.var(axis=0))


@compile_quickly
def learn(
    gp: SparseGP,
    form: Form,
    search: Search,
    values: Values,
    hyper: Beliefs,
    places: Array,
    X: Array,
    y: Array,
    noise: Array,
) -> Learnt:
    """Climb F from the prior of new values and the beliefs about θ so far; `noise` makes draws for every step."""
    location, unravel = ravel(hyper.location)
    scale, _ = ravel(hyper.scale)
    old = recall(gp, form, values, exponentials(hyper.location))
    remembered = MeanField.from_moments(location, jnp.where(scale > 0, scale, 1.0))
    # A search over a prior as wide as it is would see the worst of θ first.
    width = jnp.where(scale > 0, jnp.minimum(scale, 0.1), 1.0)
    number, private = len(places), form.is_private
    tilt = jnp.zeros((number, len(values.mean) if private and form.is_variational else 0))
    begin = Free(location, jnp.log(width), places, jnp.zeros(number), jnp.zeros((number, number)), tilt)

    def loss(free: Free, noise: Array) -> jax.Array:
        new = combine(gp, form, values, free, exponentials(unravel(free.location)))
        logs: Any = free.location[None]
        cost: Any = 0.0
        if form.is_variational:
            logs = free.location + jnp.exp(free.log_scale) * noise
            cost = MeanFieldMoments(free.location, free.log_scale).kl(remembered)
        each = for_each(lambda one: bound(gp, form, old, new, exponentials(unravel(one)), X, y), logs)
        return jnp.asarray(cost - jnp.mean(each))

    optimiser = optax.adam(optax.cosine_decay_schedule(search.rate, search.steps))

    def step(carry: Any, noise: Any) -> tuple[Any, jax.Array]:
        free, state = carry
        value, gradient = jax.value_and_grad(loss)(free, noise)
        updates, state = optimiser.update(gradient, state)
        return (optax.apply_updates(free, updates), state), value

    (free, _), losses = jax.lax.scan(step, (begin, optimiser.init(begin)), noise)
    new = combine(gp, form, values, free, exponentials(unravel(free.location)))
    spread = unravel(jnp.exp(free.log_scale)) if form.is_variational else hyper.scale
    return Learnt(Beliefs(unravel(free.location), spread), new, -jnp.mean(losses[-max(1, search.steps // 4) :]))


@compile_quickly
def look(gp: SparseGP, drawn: Any, values: Values, X: Array) -> tuple[Array, Array]:
    """Mean and variance of f(X) for every draw of θ."""

    def one(params: Any) -> tuple[Array, Array]:
        L = factorise(gp, params, values.points)
        return see(gp, params, L, whiten(L, values), X)

    return jax.lax.map(one, drawn)
