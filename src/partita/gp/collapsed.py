"""The free energy of Gaussian sites with the function integrated out, and its gradient, in closed form.

Differentiating through the factorisations would be right as well, but slower to run and to compile. At the optimal
posterior over whitened values v (f(Z) = L v, L Lᵀ = K) its moments say all: with Σ and μ those of v, V = L⁻¹ C what
rows see of v, and D = V diag(h) Vᵀ what they say about it,

    ∂F/∂C = L⁻ᵀ (μ gᵀ - R V diag(h)),           R = Σ + μ μᵀ - I,
    ∂F/∂K = L⁻ᵀ (R / 2 + sym((Σ + μ μᵀ) D - μ (V g)ᵀ) - D / 2) L⁻¹

for each output, where the points hold all old ones. Where they do not, the old factor's points are seen as rows are,
and the bracket is -(R + D + P) / 2, P being what the old factor says about v.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from partita.gp.whitened import cholesky, log_partition, solved
from partita.runtime import Array


class Seen(NamedTuple):
    """What bears on f(Z) ~ N(0, K), for each output: an old factor and sites of rows."""

    K: Array  # [points, points]
    # Of the points with the old ones; None where those are the points themselves.
    old: Array | None
    precision: Array  # [old, old]
    shift: Array  # [outputs, old]
    rows: Array  # [points, rows]: of the points with the rows
    h: Array  # [rows]
    g: Array  # [outputs, rows]


class Half(NamedTuple):
    """A factor of the precision of v, [1, points, points], and its inverse times the shift, for each output."""

    L: Array
    solved: Array


class Kept(NamedTuple):
    """For the gradient."""

    seen: Seen
    L: Array
    V: Array
    V_old: Array
    P: Array
    D: Array
    Vg: Array
    before: Half | None
    after: Half


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def collapsed(relative: bool, seen: Seen) -> Array:
    """log ∫ N(u; 0, K) t(u) ∏ exp(g f - h f² / 2) du with f and old values at their means given u = f(Z), plus half
    of what h and the old precision make of those means' variances: minus the same half of the prior's variances, this
    is the free energy. `relative` subtracts log ∫ N(u; 0, K) t(u) du, where the old points are the points.
    """
    return _forward(relative, seen)[0]


def _forward(relative: bool, seen: Seen) -> tuple[Array, Kept]:
    outputs = len(seen.shift)
    L = cholesky(seen.K)
    V = solve_triangular(L, seen.rows, lower=True)
    V_old = L.T if seen.old is None else solve_triangular(L, seen.old, lower=True)
    P = V_old @ seen.precision @ V_old.T
    D = (V * seen.h) @ V.T
    shift, Vg = seen.shift @ V_old.T, seen.g @ V.T
    after = Half(*solved((P + D)[None], shift + Vg))
    determined = jnp.trace(D) if seen.old is None else jnp.trace(D + P)
    value = log_partition(*after) + 0.5 * outputs * determined
    before = Half(*solved(P[None], shift)) if relative else None
    if before is not None:
        value -= log_partition(*before)
    return value, Kept(seen, L, V, V_old, P, D, Vg, before, after)


def _backward(relative: bool, kept: Kept, upstream: Array) -> tuple[Seen]:
    seen, V, V_old, D = kept.seen, kept.V, kept.V_old, kept.D
    outputs = len(seen.shift)
    eye = jnp.eye(len(seen.K), dtype=seen.K.dtype)
    inverse = solve_triangular(kept.L, eye, lower=True)
    covariance, mean = _moments(kept.after)
    covariance, outer = outputs * covariance, mean.T @ mean
    R = covariance + outer - outputs * eye
    U = inverse.T @ (R @ V)
    by_rows = (mean @ inverse).T @ seen.g - U * seen.h
    by_h, by_g = -0.5 * jnp.sum(seen.rows * U, axis=0), mean @ V
    if seen.old is None:
        crossed = covariance @ D + mean.T @ (mean @ D - kept.Vg)
        bracket = 0.5 * (R + crossed + crossed.T - outputs * D)
        by_old = None
        # The old points' own variances cancel.
        told, told_mean = covariance + outer, mean
        if kept.before is not None:
            covariance_before, mean_before = _moments(kept.before)
            told_before = outputs * covariance_before + mean_before.T @ mean_before
            bracket -= 0.5 * (told_before - outputs * eye)
            told, told_mean = told - told_before, mean - mean_before
    else:
        bracket = -0.5 * (R + outputs * (D + kept.P))
        by_old = inverse.T @ (mean.T @ seen.shift - R @ V_old @ seen.precision)
        told, told_mean = R, mean
    gradient = Seen(
        K=inverse.T @ bracket @ inverse,
        old=by_old,
        precision=-0.5 * V_old.T @ told @ V_old,
        shift=told_mean @ V_old,
        rows=by_rows,
        h=by_h,
        g=by_g,
    )
    return (jax.tree.map(lambda part: upstream * part, gradient),)


collapsed.defvjp(_forward, _backward)


def _moments(half: Half) -> tuple[Array, Array]:
    """Covariance, and means of all outputs."""
    (L,) = half.L
    inverse = solve_triangular(L, jnp.eye(len(L), dtype=L.dtype), lower=True)
    return inverse.T @ inverse, half.solved @ inverse
