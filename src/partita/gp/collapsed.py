"""The free energy of Gaussian terms with the function integrated out, and its gradient, in closed form.

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
from partita.foundation.shapes import PerRow, Scalar
from partita.gaussian_processes.shapes import PerPlace, PlaceByRow, Square
from partita.gp.whitened import cholesky, log_diagonal


class Seen(NamedTuple):
    """What bears on f(Z) ~ N(0, K) of one output: an old factor, and the Gaussian terms of rows."""

    K: Square
    # Covariances of the points with the old ones; None where those are the points themselves.
    old: Array | None  # [points, old]
    precision: Array  # [old, old]
    shift: Array  # [old]
    # Covariances of the points with the rows.
    rows: PlaceByRow
    h: PerRow
    g: PerRow


class Half(NamedTuple):
    """A factor of the precision of v, and its inverse times the shift."""

    L: Square
    solved: PerPlace


class Kept(NamedTuple):
    """What the gradient needs of the value's computation."""

    seen: Seen
    L: Square
    V: PlaceByRow
    V_old: Array  # [points, old]
    P: Square
    D: Square
    Vg: PerPlace
    half: Half


@jax.custom_vjp
def integrate_out(seen: Seen) -> Scalar:
    """log ∫ N(u; 0, K) t(u) ∏ exp(g f - h f² / 2) du with f and old values at their means given u = f(Z), plus half
    of what h and the old precision make of those means' variances: minus the same half of the prior's variances, this
    is the free energy.
    """
    return _forward(seen)[0]


def _forward(seen: Seen) -> tuple[Scalar, Kept]:
    L = cholesky(seen.K)
    V = solve_triangular(L, seen.rows, lower=True)
    V_old = L.T if seen.old is None else solve_triangular(L, seen.old, lower=True)
    P = V_old @ seen.precision @ V_old.T
    D = (V * seen.h) @ V.T
    Vg = V @ seen.g
    half = _factorise(P + D, V_old @ seen.shift + Vg)
    determined = jnp.trace(D) if seen.old is None else jnp.trace(D + P)
    value = 0.5 * jnp.sum(half.solved**2) - log_diagonal(half.L) + 0.5 * determined
    return value, Kept(seen, L, V, V_old, P, D, Vg, half)


def _backward(kept: Kept, upstream: Scalar) -> tuple[Seen]:
    seen, V, V_old, D = kept.seen, kept.V, kept.V_old, kept.D
    eye = jnp.eye(len(seen.K), dtype=seen.K.dtype)
    inverse = solve_triangular(kept.L, eye, lower=True)
    second, mean = _find_moments(kept.half)
    R = second - eye
    U = inverse.T @ (R @ V)
    by_rows = outer(mean @ inverse, seen.g) - U * seen.h
    by_h, by_g = -0.5 * jnp.sum(seen.rows * U, axis=0), mean @ V
    if seen.old is None:
        crossed = second @ D - outer(mean, kept.Vg)
        bracket = 0.5 * (R + crossed + crossed.T - D)
        # The old points' own variances cancel.
        by_old, old_moments = None, second
    else:
        bracket = -0.5 * (R + D + kept.P)
        by_old, old_moments = inverse.T @ (outer(mean, seen.shift) - R @ V_old @ seen.precision), R
    gradient = Seen(
        K=inverse.T @ bracket @ inverse,
        old=by_old,
        precision=-0.5 * V_old.T @ old_moments @ V_old,
        shift=mean @ V_old,
        rows=by_rows,
        h=by_h,
        g=by_g,
    )
    return (jax.tree.map(lambda part: upstream * part, gradient),)


integrate_out.defvjp(_forward, _backward)


def _factorise(precision: Square, shift: PerPlace) -> Half:
    L = cholesky(jnp.eye(len(precision), dtype=precision.dtype) + precision)
    return Half(L, solve_triangular(L, shift, lower=True))


def _find_moments(half: Half) -> tuple[Square, PerPlace]:
    """Σ + μ μᵀ, and μ."""
    inverse = solve_triangular(half.L, jnp.eye(len(half.L), dtype=half.L.dtype), lower=True)
    mean = half.solved @ inverse
    return inverse.T @ inverse + outer(mean, mean), mean
