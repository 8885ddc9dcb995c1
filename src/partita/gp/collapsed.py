"""The free energy of Gaussian sites with the function integrated out, and its gradient, in closed form.

Differentiating through the factorisations would be right as well, but slower to run and to compile. At the optimal
posterior over whitened values v (f(Z) = L v, L Lᵀ = K) its moments say all: with Σ and μ those of v, V = L⁻¹ C what
rows see of v, and D = V diag(h) Vᵀ what they say about it,

    ∂F/∂C = L⁻ᵀ (μ gᵀ - R V diag(h)),           R = Σ + μ μᵀ - I,
    ∂F/∂K = L⁻ᵀ (R / 2 + sym((Σ + μ μᵀ) D - μ (V g)ᵀ) - D / 2) L⁻¹

where the points hold all old ones. Where they do not, the old factor's points are seen as rows are, and the bracket is
-(R + D + P) / 2, P being what the old factor says about v.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from partita.foundation.runtime import Array, outer
from partita.gp.whitened import cholesky, log_diagonal


class Seen(NamedTuple):
    """What bears on f(Z) ~ N(0, K) of one output: an old factor and sites of rows."""

    K: Array  # [points, points]
    # Of the points with the old ones; None where those are the points themselves.
    old: Array | None
    precision: Array  # [old, old]
    shift: Array  # [old]
    rows: Array  # [points, rows]: of the points with the rows
    h: Array  # [rows]
    g: Array  # [rows]


class Half(NamedTuple):
    """A factor of the precision of v, and its inverse times the shift."""

    L: Array
    solved: Array


class Kept(NamedTuple):
    """What the gradient needs of the value's computation."""

    seen: Seen
    L: Array
    V: Array
    V_old: Array
    P: Array
    D: Array
    Vg: Array
    half: Half


@jax.custom_vjp
def collapsed(seen: Seen) -> Array:
    """log ∫ N(u; 0, K) t(u) ∏ exp(g f - h f² / 2) du with f and old values at their means given u = f(Z), plus half
    of what h and the old precision make of those means' variances: minus the same half of the prior's variances, this
    is the free energy.
    """
    return _forward(seen)[0]


def _forward(seen: Seen) -> tuple[Array, Kept]:
    L = cholesky(seen.K)
    V = solve_triangular(L, seen.rows, lower=True)
    V_old = L.T if seen.old is None else solve_triangular(L, seen.old, lower=True)
    P = V_old @ seen.precision @ V_old.T
    D = (V * seen.h) @ V.T
    Vg = V @ seen.g
    half = _half(P + D, V_old @ seen.shift + Vg)
    determined = jnp.trace(D) if seen.old is None else jnp.trace(D + P)
    value = 0.5 * jnp.sum(half.solved**2) - log_diagonal(half.L) + 0.5 * determined
    return value, Kept(seen, L, V, V_old, P, D, Vg, half)


def _backward(kept: Kept, upstream: Array) -> tuple[Seen]:
    seen, V, V_old, D = kept.seen, kept.V, kept.V_old, kept.D
    eye = jnp.eye(len(seen.K), dtype=seen.K.dtype)
    inverse = solve_triangular(kept.L, eye, lower=True)
    second, mean = _moments(kept.half)
    R = second - eye
    U = inverse.T @ (R @ V)
    by_rows = outer(mean @ inverse, seen.g) - U * seen.h
    by_h, by_g = -0.5 * jnp.sum(seen.rows * U, axis=0), mean @ V
    if seen.old is None:
        crossed = second @ D - outer(mean, kept.Vg)
        bracket = 0.5 * (R + crossed + crossed.T - D)
        # The old points' own variances cancel.
        by_old, told = None, second
    else:
        bracket = -0.5 * (R + D + kept.P)
        by_old, told = inverse.T @ (outer(mean, seen.shift) - R @ V_old @ seen.precision), R
    gradient = Seen(
        K=inverse.T @ bracket @ inverse,
        old=by_old,
        precision=-0.5 * V_old.T @ told @ V_old,
        shift=mean @ V_old,
        rows=by_rows,
        h=by_h,
        g=by_g,
    )
    return (jax.tree.map(lambda part: upstream * part, gradient),)


collapsed.defvjp(_forward, _backward)


def _half(precision: Array, shift: Array) -> Half:
    L = cholesky(jnp.eye(len(precision), dtype=precision.dtype) + precision)
    return Half(L, solve_triangular(L, shift, lower=True))


def _moments(half: Half) -> tuple[Array, Array]:
    """Σ + μ μᵀ, and μ."""
    inverse = solve_triangular(half.L, jnp.eye(len(half.L), dtype=half.L.dtype), lower=True)
    mean = half.solved @ inverse
    return inverse.T @ inverse + outer(mean, mean), mean
