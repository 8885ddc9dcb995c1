"""Arithmetic that is NumPy's and SciPy's on the host, and JAX's inside traced functions.

A program for a few small matrices takes a tenth of a second to compile, and microseconds to run: whatever the server
computes by itself is not worth one. What is written with these functions serves both sides.
"""

from typing import Any

import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import scipy.linalg

from partita.foundation.runtime import Array, is_traced


def numbers_of(*trees: Any) -> Any:
    """The module to compute with: `jax.numpy`, if any of these is traced, else `numpy`."""
    return jnp if is_traced(trees) else np


def cholesky(matrix: Array) -> Array:
    """L with L Lᵀ = matrix; NaN where that is not positive definite."""
    if is_traced(matrix):
        return jnp.linalg.cholesky(matrix)
    # As JAX does it: what rounding has made of the two triangles is averaged.
    try:
        L: np.ndarray = scipy.linalg.cholesky(0.5 * (matrix + matrix.T), lower=True, check_finite=False)
    except np.linalg.LinAlgError:
        return np.full_like(matrix, np.nan)
    return L


def solve_lower(L: Array, right: Array) -> Array:
    """L⁻¹ right."""
    if is_traced((L, right)):
        return jax.scipy.linalg.solve_triangular(L, right, lower=True)
    solved: np.ndarray = scipy.linalg.solve_triangular(L, right, lower=True, check_finite=False)
    return solved


def solve_definite(L: Array, right: Array) -> Array:
    """(L Lᵀ)⁻¹ right."""
    if is_traced((L, right)):
        return jax.scipy.linalg.cho_solve((L, True), right)
    solved: np.ndarray = scipy.linalg.cho_solve((L, True), right, check_finite=False)
    return solved
