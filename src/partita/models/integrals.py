"""Integrals over a few local variables, by quadrature around their mode."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from partita.foundation.runtime import Array

# How many points each of one, two or three variables has.
POINTS = {1: 15, 2: 9, 3: 7}
STEPS = np.array([1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.0])
MOST_STEPS = 40
# How near the mode is found, in standard deviations; the integral hardly depends on it.
TOLERANCE = 1e-4
LEAST_CURVATURE = 1e-8


class Peak(NamedTuple):
    """Where a log-density is largest, and a root of the covariance that its curvature there stands for."""

    mode: Array
    root: Array


def log_integral(function: Callable[[Any, Array], Array], given: Any, dimension: int) -> Array:
    """log ∫ exp f(given, u) du, as mixed models are commonly fitted (Pinheiro and Bates, 1995).

    Exact where f is quadratic in u, as are its first two derivatives by what is given. The points move with the mode,
    but nothing is differentiated through that: the integral does not depend on where they are.
    """
    peak = find_peak(function, given, dimension)
    nodes, log_weights = (jnp.asarray(a, peak.mode.dtype) for a in _grid(dimension))
    values = jax.vmap(lambda z: function(given, peak.mode + peak.root @ z))(nodes)
    size = 0.5 * dimension * np.log(2 * np.pi) + jnp.linalg.slogdet(peak.root)[1]
    return jax.nn.logsumexp(values + 0.5 * jnp.sum(nodes**2, axis=1) + log_weights) + size


def find_peak(function: Callable[[Any, Array], Array], given: Any, dimension: int) -> Peak:
    """Find the peak by Newton's method from zero, with the best of a few lengths of each step."""
    given = jax.lax.stop_gradient(given)

    def slope(u: Array) -> tuple[Array, Array]:
        gradient = jax.grad(lambda v: function(given, v))(u)
        return gradient, gradient

    def step(state: tuple[jax.Array, Peak, jax.Array]) -> tuple[jax.Array, Peak, jax.Array]:
        number, (u, _), _ = state
        H, gradient = jax.jacfwd(slope, has_aux=True)(u)
        root = _root(H)
        direction = root @ (root.T @ gradient)
        direction = jnp.where(jnp.isfinite(direction), direction, 0)
        lengths = jnp.asarray(STEPS, u.dtype)
        reached = jax.vmap(lambda length: function(given, u + length * direction))(lengths)
        length = lengths[jnp.argmax(jnp.where(jnp.isnan(reached), -jnp.inf, reached))]
        moved = jnp.max(jnp.abs(length * root.T @ gradient))
        return number + 1, Peak(u + length * direction, root), jnp.where(jnp.isnan(moved), 0, moved)

    def again(state: tuple[jax.Array, Peak, jax.Array]) -> jax.Array:
        return (state[0] < MOST_STEPS) & (state[2] > TOLERANCE)

    dtype = jnp.result_type(*jax.tree.leaves(given), 0.0)
    begin = Peak(jnp.zeros(dimension, dtype), jnp.eye(dimension, dtype=dtype))
    first = (jnp.zeros((), jnp.int32), begin, jnp.asarray(jnp.inf, dtype))
    return jax.lax.while_loop(again, step, first)[1]


def _root(H: Array) -> Array:
    """A root of the covariance that a Hessian stands for, its curvature made positive where it is not."""
    if len(H) == 1:
        return 1 / jnp.sqrt(jnp.maximum(jnp.abs(H), LEAST_CURVATURE))
    values, vectors = jnp.linalg.eigh(-0.5 * (H + H.T))
    return vectors / jnp.sqrt(jnp.maximum(jnp.abs(values), LEAST_CURVATURE))


@lru_cache
def _grid(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(POINTS[dimension])
    mesh = np.stack(np.meshgrid(*[nodes] * dimension, indexing="ij"), axis=-1).reshape(-1, dimension)
    logs = np.log(weights / weights.sum())
    total = np.sum(np.meshgrid(*[logs] * dimension, indexing="ij"), axis=0).reshape(-1)
    return mesh, total
