"""Streaming classification as in the paper's appendix: beliefs about old function values are never touched again.

A new batch adds values b at new points to those at the old ones, a: q(a) q(b | a), of which q(a) stays. What old
batches say about hyperparameters θ is in the distribution over them, where there is one, and in -KL(q(a) || p(a | θ)),
where θ is a point. `partita.gp` carries a factor on instead of q(a), and lets every batch change the beliefs about all
of the function; this here is for comparison.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.linalg import cho_solve, solve_triangular

from partita.families import MeanField
from partita.families.mean_field import MeanFieldMoments
from partita.foundation.runtime import Array, on_host, precision, ravel
from partita.gp.beliefs import PRIOR_SCALE, exponentials, mirrored_normals
from partita.gp.kernels import SquaredExponential
from partita.gp.likelihoods import Probit
from partita.gp.sparse import SparseGP

JITTER = np.asarray(1e-6)
DRAWS = 4
GP = SparseGP(SquaredExponential(), Probit())


class Beliefs(NamedTuple):
    """A Gaussian over function values at points."""

    points: Array
    mean: Array
    covariance: Array


class Free(NamedTuple):
    """Log hyperparameters, and t(b) = exp(shiftᵀ b - |rootᵀ b|² / 2), where q(b | a) ∝ p(b | a) t(b)."""

    location: Array
    log_scale: Array
    shift: Array
    root: Array


class FrozenClassifier:
    """A probit GP with private points, and points or distributions for hyperparameters."""

    def __init__(self, points: int, hyperparameters: str, steps: int, seed: int):
        self.points, self.variational, self.steps, self.seed = points, hyperparameters == "variational", steps, seed
        self.log_evidence_ = 0.0

    def partial_fit(self, X: np.ndarray, y: np.ndarray, classes: Any = None) -> "FrozenClassifier":
        from sklearn.cluster import KMeans

        if not hasattr(self, "beliefs_"):
            self.beliefs_ = Beliefs(np.empty((0, X.shape[1])), np.empty(0), np.empty((0, 0)))
            logs, self.unravel = ravel({k: np.log(v) for k, v in GP.initial(X.shape[1]).items()})
            self.location_, self.scale_ = np.asarray(logs, float), np.full(len(logs), PRIOR_SCALE)
        new = KMeans(min(self.points, len(X)), n_init=4, random_state=self.seed).fit(X).cluster_centers_
        with precision(np.float64):
            free, beliefs, gained = on_host(self._learn(new.astype(float), X, y))
        self.location_, self.beliefs_ = free.location, beliefs
        self.scale_ = np.exp(free.log_scale) if self.variational else self.scale_
        self.log_evidence_ += float(gained)
        return self

    @property
    def pseudo_points_(self) -> np.ndarray:
        return np.asarray(self.beliefs_.points)

    def hyperparameter_draws(self, number: int) -> dict[str, np.ndarray]:
        drawn = self._draw(number)
        return {name.removeprefix("kernel."): value for name, value in drawn.items()}

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        with precision(np.float64):
            p = on_host(probabilities(self._draw(8), self.beliefs_, X))
        return np.stack([1 - p, p], axis=1)

    def _draw(self, number: int) -> dict[str, np.ndarray]:
        with precision(np.float64):
            noise = mirrored_normals(jax.random.key(self.seed), number, len(self.location_))
            logs: Any = self.location_ + self.scale_ * noise if self.variational else self.location_[None]
            drawn: dict[str, np.ndarray] = on_host(exponentials(jax.vmap(self.unravel)(logs)))
        return drawn

    def _learn(self, new: np.ndarray, X: np.ndarray, y: np.ndarray) -> tuple[Free, Beliefs, Array]:
        prior = MeanField.from_moments(self.location_, self.scale_)
        free = Free(self.location_, np.log(self.scale_), np.zeros(len(new)), 0.3 * np.eye(len(new)))
        optimiser = optax.adam(optax.cosine_decay_schedule(0.03, self.steps))
        before = exponentials(self.unravel(jnp.asarray(self.location_)))

        def loss(free: Free, key: Array) -> Array:
            if not self.variational:
                params = exponentials(self.unravel(free.location))
                return -bound(params, self.beliefs_, new, free, X, y)[0] - recall(params, before, self.beliefs_)
            logs = free.location + jnp.exp(free.log_scale) * mirrored_normals(key, DRAWS, len(free.location))
            each = jax.lax.map(
                lambda one: bound(exponentials(self.unravel(one)), self.beliefs_, new, free, X, y)[0], logs
            )
            return MeanFieldMoments(free.location, free.log_scale).kl(prior) - jnp.mean(each)

        @jax.jit
        def train(free: Free) -> tuple[Free, Beliefs, Array]:
            def step(carry: Any, key: Array) -> tuple[Any, Array]:
                free, state = carry
                value, gradient = jax.value_and_grad(loss)(free, key)
                updates, state = optimiser.update(gradient, state)
                return (optax.apply_updates(free, updates), state), value

            keys = jax.random.split(
                jax.random.fold_in(jax.random.key(self.seed), len(self.beliefs_.points)), self.steps
            )
            (free, _), losses = jax.lax.scan(step, (free, optimiser.init(free)), keys)
            params = exponentials(self.unravel(free.location))
            return free, bound(params, self.beliefs_, new, free, X, y)[1], -jnp.mean(losses[-max(1, self.steps // 4) :])

        learnt: tuple[Free, Beliefs, Array] = train(free)
        return learnt


def bound(params: Any, old: Beliefs, new: Array, free: Free, X: Array, y: Array) -> tuple[Array, Beliefs]:
    """E_q[log p(y | f)] - E_q(a)[KL(q(b | a) || p(b | a))], and q(a) q(b | a)."""
    points, number = jnp.concatenate([old.points, new]), len(old.points)
    L = GP.cholesky(params, points, jnp.ones(len(points)), JITTER)
    whiten = solve_triangular(L[:number, :number], jnp.eye(number), lower=True)
    m_a, S_a = whiten @ old.mean, whiten @ old.covariance @ whiten.T
    # q(v_b | v_a), where b = L_ba v_a + L_bb v_b: of mean c + H v_a.
    L_ba, L_bb = L[number:, :number], L[number:, number:]
    root = jnp.tril(free.root).T
    factor = jnp.linalg.cholesky(jnp.eye(len(new)) + (root @ L_bb).T @ (root @ L_bb))
    H = -cho_solve((factor, True), (root @ L_bb).T @ (root @ L_ba))
    m_b = cho_solve((factor, True), L_bb.T @ free.shift) + H @ m_a
    S_b = cho_solve((factor, True), jnp.eye(len(new))) + H @ S_a @ H.T
    kl = 0.5 * (jnp.trace(S_b) + m_b @ m_b - len(new)) + jnp.sum(jnp.log(jnp.diag(factor)))
    m, S = jnp.concatenate([m_a, m_b]), jnp.block([[S_a, S_a @ H.T], [H @ S_a, S_b]])
    V, left = GP.project(params, L, points, jnp.ones(len(points)), X)
    expected = GP.likelihood.expected({}, V.T @ m, jnp.sum(V * (S @ V), axis=0) + left, y)
    return jnp.sum(expected) - kl, Beliefs(points, L @ m, L @ S @ L.T)


def recall(params: Any, before: Any, old: Beliefs) -> Array:
    """E_q(a)[log p(a | θ) - log p(a | θ before)]: what the paper's bound for a point θ has beside `bound`.

    It is KL(q(a) || p(a | θ before)) - KL(q(a) || p(a | θ)), of the appendix on private pseudo-points with maximum
    likelihood. With a distribution over θ it cancels, because the old one has heard it.
    """

    def expected_log_prior(params: Any) -> Array:
        L = GP.cholesky(params, old.points, jnp.ones(len(old.points)), JITTER)
        mean = solve_triangular(L, old.mean, lower=True)
        return -0.5 * (mean @ mean + jnp.trace(cho_solve((L, True), old.covariance))) - jnp.sum(jnp.log(jnp.diag(L)))

    return expected_log_prior(params) - expected_log_prior(before)


@jax.jit
def probabilities(drawn: Any, beliefs: Beliefs, X: Array) -> Array:
    def one(params: Any) -> Array:
        L = GP.cholesky(params, beliefs.points, jnp.ones(len(beliefs.points)), JITTER)
        V, left = GP.project(params, L, beliefs.points, jnp.ones(len(beliefs.points)), X)
        A = solve_triangular(L, V, lower=True, trans="T")
        v = left + jnp.sum(A * (beliefs.covariance @ A), axis=0)
        return jax.scipy.special.ndtr(A.T @ beliefs.mean / jnp.sqrt(1 + v))

    return jnp.mean(jax.lax.map(one, drawn), axis=0)
