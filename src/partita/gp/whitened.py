"""Linear algebra of posteriors over whitened values, one for each output."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from partita.foundation.shapes import Scalar
from partita.gaussian_processes.shapes import OutputByPlace, OutputByRow, PlaceByRow, Square, Squares, Stack


def cholesky(K: Square) -> Square:
    """The lower factor of a symmetric matrix; NaN where that is not positive definite."""
    return jax.lax.linalg.cholesky(jnp.asarray(K), symmetrize_input=False)


def log_diagonal(L: Stack) -> Scalar:
    """The sum of the logarithms of the diagonal, or of several."""
    return jnp.sum(jnp.log(jnp.sum(L * jnp.eye(L.shape[-1], dtype=L.dtype), axis=-1)))


def for_each(function: Callable[[Any], Any], parts: Any) -> Any:
    """One after the other, because batched factorisations are slow on few cores; without a loop where there is one."""
    if len(jax.tree.leaves(parts)[0]) == 1:
        return jax.tree.map(lambda a: a[None], function(jax.tree.map(lambda a: a[0], parts)))
    return jax.lax.map(function, parts)


def weigh(V: PlaceByRow, precision: OutputByRow) -> Squares:
    """V diag(precision) Vᵀ for each output."""
    each: Squares = for_each(lambda h: (V * h) @ V.T, precision)
    return each


def solve_half(precision: Squares, shift: OutputByPlace) -> tuple[Squares, OutputByPlace]:
    """The factors of I + precision, and what solves its half of the equations."""
    eye = jnp.eye(precision.shape[-1], dtype=precision.dtype)
    L_B = for_each(lambda part: cholesky(eye + part), precision)
    return L_B, for_each(lambda pair: solve_triangular(pair[0], pair[1], lower=True), (L_B, shift))


def log_partition(L_B: Squares, half: OutputByPlace) -> Scalar:
    """log ∫ N(v; 0, I) t(v) dv, summed over outputs."""
    return 0.5 * jnp.sum(half**2) - log_diagonal(L_B)


def moments(L_B: Squares, half: OutputByPlace, V: PlaceByRow) -> tuple[OutputByRow, OutputByRow]:
    """Mean and variance [outputs, rows] of Vᵀ v."""
    whole = for_each(lambda part: solve_triangular(part, V, lower=True), L_B)
    return jnp.einsum("oc,ocn->on", half, whole), jnp.sum(whole**2, axis=1)
