"""Streaming Gaussian processes as in the paper's appendix: its four forms as variants of one free energy.

Beliefs are q(f, θ) = p(f | u, θ) q(u) q(θ), with values u at pseudo-points that know nothing of hyperparameters θ. A
batch goes from old values a to new ones u by climbing

    F = E[log p(y | f)] + E[log p(u | θ)] + H[q(u)] + E[log q_old(a)] - E[log p(a | θ°)] - KL(q(θ) || q_old(θ)),

all over the new beliefs. Two choices make the four forms:

* shared points: u are values at points that all move, and a is seen through p(a | u, θ); private points: u = (a, b)
  with new points for b, q(u) = q(a) q(b | a), and q(a) stays;
* a distribution over θ: θ° is θ; maximum likelihood: q(θ) is a point, without its KL, and θ° is the point before.

`partita.gp` carries a factor on instead of q(a), which is not the same: see docs/streaming.md.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular

from partita.foundation.checks import check_one_of
from partita.foundation.runtime import Array
from partita.gaussian_processes.kernels import Params
from partita.gp.sparse import SparseGP
from partita.gp.whitened import cholesky

# Relative to the variance of the process, on the diagonal of covariances of points.
JITTER = 1e-6
# Added to variances of old values that shared points take the place of, in q_old(a) and in p(a | θ°): what their ratio
# says where both are all but singular is rounding. It is in the code of Bui, Nguyen and Turner (2017), too.
FLOOR = 1e-4
LOG_2PI = math.log(2 * math.pi)
KNOWN = {
    "pseudo_points": ("private", "shared"),
    "hyperparameters": ("variational", "ml"),
    "reading": ("before", "now", "printed"),
}


@dataclass(frozen=True)
class Form:
    """One of the four forms.

    The paper's last line for private points and maximum likelihood ends in `- H[q(a)] + ∫ q(a) log p(a | θ_θ) da`,
    where its own derivation gives `-E[log p(a | θ_old)]`: a sign and an index are misprinted.

    Args:
        pseudo_points: "private" gives each batch new ones and keeps q(a); "shared" moves all.
        hyperparameters: "variational" has a distribution over them, "ml" the point that maximises F.
        reading: which term of a point's bound remembers p(a): "before" is -E[log p(a | θ_old)], as it is derived; "now"
            -E[log p(a | θ_new)], the index read otherwise; "printed" +E[log p(a | θ_new)], with the printed sign too.
    """

    pseudo_points: Literal["private", "shared"]
    hyperparameters: Literal["variational", "ml"]
    reading: Literal["before", "now", "printed"] = "before"

    def __post_init__(self) -> None:
        for name, values in KNOWN.items():
            check_one_of("", values, **{name: getattr(self, name)})

    @property
    def is_variational(self) -> bool:
        return self.hyperparameters == "variational"

    @property
    def is_private(self) -> bool:
        return self.pseudo_points == "private"


class Values(NamedTuple):
    """q(u): a Gaussian over values of the function at points, u = mean + root × standard normal numbers."""

    points: Array
    mean: Array
    root: Array


class Old(NamedTuple):
    """What is known before a batch: q(a), and L Lᵀ = k(a's points) with the hyperparameters of that time."""

    values: Values
    L: Array


class Free(NamedTuple):
    """What is optimised with a batch; `root` has the logarithms of its diagonal there, and nothing above it.

    New values are whitened by what the prior says of them at the middle θ of q(θ): v = middle + tilt × (whitened a) +
    root × standard normal numbers, which is the prior where these are 0, 0 and the identity. Only private points
    with a distribution over θ have a `tilt` of their own; with a point, q(b | a) ∝ p(b | a, θ) t(b) says it.
    """

    location: Array
    log_scale: Array
    points: Array
    middle: Array
    root: Array
    tilt: Array


def combine(gp: SparseGP, form: Form, old: Values, free: Free, params: Params) -> Values:
    """The q(u) that free parameters say, whitened at `params`."""
    root = jnp.tril(free.root, -1) + jnp.diag(jnp.exp(jnp.diag(free.root)))
    if not form.is_private or not len(old.mean):
        L = factorise(gp, params, free.points)
        return Values(free.points, L @ free.middle, L @ root)
    number = len(old.mean)
    points = jnp.concatenate([old.points, free.points])
    L = factorise(gp, params, points)
    L_ba, L_bb = L[number:, :number], L[number:, number:]
    tilt = free.tilt
    if not form.is_variational:
        # Of p(b | a) t(b): precision (root rootᵀ)⁻¹ = I + L_bbᵀ Λ L_bb, where t(b) ∝ exp(-bᵀ Λ b / 2 + …).
        tilt = (root @ root.T - jnp.eye(len(root))) @ solve_triangular(L_bb, L_ba, lower=True)
    # b = L_ba v_a + L_bb v_b, of which v_b is `tilt` v_a and something of its own.
    along = solve_triangular(L[:number, :number].T, (L_ba + L_bb @ tilt).T, lower=False).T
    mean = jnp.concatenate([old.mean, along @ old.mean + L_bb @ free.middle])
    upper = jnp.concatenate([old.root, jnp.zeros((number, len(root)))], axis=1)
    return Values(points, mean, jnp.concatenate([upper, jnp.concatenate([along @ old.root, L_bb @ root], axis=1)]))


def bound(gp: SparseGP, form: Form, old: Old, new: Values, params: Params, X: Array, y: Array) -> Array:
    """F at hyperparameters `params`, but for KL(q(θ) || q_old(θ))."""
    L = factorise(gp, params, new.points)
    white = whiten(L, new)
    mean, variance = see(gp, params, L, white, X)
    expected = gp.likelihood.expected(gp.split(params)[1], mean, variance, y)
    total = jnp.sum(expected) + expected_log_prior(L, white) + entropy(new.root)
    values = old.values
    if not len(values.mean):
        return total
    if form.is_private:
        # q(a) is what it was.
        seen, left, L_old = values, None, L[: len(values.mean), : len(values.mean)]
        total -= entropy(values.root)
    else:
        seen, left = carry_back(gp, params, L, white, values.points)
        L_old = None
        away = seen._replace(mean=seen.mean - values.mean)
        total += expected_log_prior(values.root, whiten(values.root, away), left)
    if not form.is_variational and form.reading == "before":
        L_old = old.L
    elif L_old is None:
        L_old = factorise(gp, params, values.points, FLOOR)
    told = expected_log_prior(L_old, whiten(L_old, seen), left)
    return total + told if not form.is_variational and form.reading == "printed" else total - told


def factorise(gp: SparseGP, params: Params, points: Array, floor: float = 0.0) -> Array:
    """L Lᵀ = k(points, points), with something added to the variances."""
    K = gp.covariance(params, points, jnp.ones(len(points)), jnp.asarray(JITTER))
    return cholesky(K + floor * jnp.eye(len(points)))


def whiten(L: Array, values: Values) -> Values:
    """The beliefs about L⁻¹ u."""
    white = solve_triangular(L, jnp.column_stack([values.mean, values.root]), lower=True)
    return Values(values.points, white[:, 0], white[:, 1:])


def see(gp: SparseGP, params: Params, L: Array, white: Values, X: Array) -> tuple[Array, Array]:
    """Mean and variance of f(X) given q(L⁻¹ u) and hyperparameters."""
    V, left = gp.project(params, L, white.points, jnp.ones(len(white.points)), X)
    return V.T @ white.mean, left + jnp.sum((white.root.T @ V) ** 2, axis=0)


def carry_back(gp: SparseGP, params: Params, L: Array, white: Values, points: Array) -> tuple[Values, Array]:
    """q(a) = ∫ p(a | u, θ) q(u) du at old points: what comes from u, and the covariance that u leaves."""
    kernel = gp.split(params)[0]
    V = solve_triangular(L, gp.kernel.cross(kernel, white.points, points), lower=True)
    return Values(points, V.T @ white.mean, V.T @ white.root), gp.kernel.gram(kernel, points) - V.T @ V


def expected_log_prior(L: Array, white: Values, left: Any = None) -> Array:
    """E[log N(z; 0, L Lᵀ)] by what is believed of L⁻¹ z, where z has the covariance `left` beside that."""
    total = -0.5 * (jnp.sum(white.mean**2) + jnp.sum(white.root**2) + len(L) * LOG_2PI) - jnp.sum(jnp.log(jnp.diag(L)))
    return total if left is None else total - 0.5 * jnp.trace(cho_solve((L, True), left))


def recall(gp: SparseGP, form: Form, values: Values, params: Params) -> Old:
    """What is known before a batch, with hyperparameters as they are then."""
    if not len(values.mean):
        return Old(values, jnp.zeros((0, 0)))
    if form.is_private:
        return Old(values, factorise(gp, params, values.points))
    root = cholesky(values.root @ values.root.T + FLOOR * jnp.eye(len(values.mean)))
    return Old(values._replace(root=root), factorise(gp, params, values.points, FLOOR))


def entropy(root: Array) -> Array:
    """H of a Gaussian in nats."""
    return jnp.sum(jnp.log(jnp.diag(root))) + 0.5 * len(root) * (1 + LOG_2PI)
