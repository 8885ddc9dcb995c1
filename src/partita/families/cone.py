"""Where a density is proper: a cone of positive numbers and positive definite matrices.

Every family says which affine functions of its natural parameters have to be positive (elementwise) or
positive definite. Whether a density is proper, how much of a change it can take, and a common lower
bound of several densities then need writing only once.

All but `is_inside` work on the host, in NumPy: they serve the ledger, not traced code. `admissible_share` and
`is_surely_inside` take stacks of densities too, with a leading axis.
"""

import operator
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.linalg

from partita.foundation.runtime import Array

# A change may use up at most this share of the way to the boundary: a posterior that is barely proper
# is of no more use than an improper one.
REACH = 0.99
# Stacks of more bytes than this are looked at row by row: what is computed on the way stays in the cache.
LARGE = 2**20
# Multiples of the machine's precision, relative to the size of what was added and subtracted.
ROUNDING = 64


class Cone(NamedTuple):
    """`positive`: arrays, positive elementwise; `definite`: symmetric matrices, positive definite.

    They are JAX's in traced code only. Floors are cones too, with the diagonal of a matrix in its place.
    """

    positive: tuple[Any, ...] = ()
    definite: tuple[Any, ...] = ()


def is_inside(cone: Cone) -> Array:
    """Whether every coordinate is positive; may be traced."""
    checks = [jnp.all(values > 0) for values in cone.positive]
    checks += [jnp.all(jnp.isfinite(jnp.linalg.cholesky(matrix))) for matrix in cone.definite]
    return jnp.all(jnp.stack(checks)) if checks else jnp.asarray(True)


def is_surely_inside(cone: Cone) -> bool:
    """The same on the host, for one density or a stack."""
    return all(map(_is_positive, cone.positive)) and all(map(_is_definite, cone.definite))


def is_clear_of(cone: Cone, floor: Cone) -> bool:
    """Whether what exceeds a floor is inside, for one density or a stack."""
    pairs = zip(cone.positive, floor.positive, strict=True)
    return all(_exceeds(a, least) for a, least in pairs) and all(
        _is_definite(a - np.diag(least)) for a, least in zip(cone.definite, floor.definite, strict=True)
    )


def _exceeds(values: np.ndarray, floor: np.ndarray) -> bool:
    """Whether all do: at once, if the smallest exceeds the largest, and otherwise one by one."""
    return bool(np.min(values, initial=np.inf) > np.max(floor, initial=0.0)) or _is_positive(values - floor)


def exceeds_rounding(ends: tuple[np.ndarray, np.ndarray], floor: np.ndarray) -> bool:
    """Whether the smallest of two arrays' numbers exceeds all of a floor, and what rounding leaves of the largest."""
    lost = [ROUNDING * float(np.finfo(end.dtype).eps) * float(np.max(end, initial=0.0)) for end in ends]
    bound = max(*lost, float(np.max(floor, initial=0.0)))
    return all(float(np.min(end, initial=np.inf)) > bound for end in ends)


def rounding_floor(cone: Cone) -> Cone:
    """What cannot be told from zero beside coordinates as large as these: an array each, and a diagonal per matrix.

    No number of a definite A exceeds √(Aᵢᵢ Aⱼⱼ), so what is lost of it is below a small multiple of its own diagonal: a
    direction in which little is known is not lost beside another, in other units, in which much is.
    """
    return Cone(
        tuple(ROUNDING * np.finfo(a.dtype).eps * np.abs(a) for a in cone.positive),
        tuple(ROUNDING * np.finfo(a.dtype).eps * _largest_diagonal(a) for a in cone.definite),
    )


def _largest_diagonal(matrices: np.ndarray) -> np.ndarray:
    """Elementwise the largest of the diagonals of one matrix or a stack."""
    diagonals = np.abs(np.diagonal(matrices, axis1=-2, axis2=-1))
    largest: np.ndarray = diagonals.reshape(-1, diagonals.shape[-1]).max(axis=0)
    return largest


def admissible_share(start: Cone, end: Cone, floor: Cone | None = None) -> float:
    """The largest ρ in [0, 1] for which what falls of `start + ρ (end - start)` stays clear of `floor`.

    Positive coordinates have a closed form; definite ones take the smallest generalised eigenvalue of the
    change relative to the start, looked for only where a Cholesky factorisation says that it is needed.
    """
    if floor is None:
        floor = Cone((0.0,) * len(start.positive), tuple(np.zeros(a.shape[-1]) for a in start.definite))
    share = 1.0
    for a, b, least in zip(start.positive, end.positive, floor.positive, strict=True):
        share = min(share, _positive_share(a, b, least))
    for a, b, least in zip(start.definite, end.definite, floor.definite, strict=True):
        share = min(share, _definite_share(np.asarray(a, np.float64), np.asarray(b, np.float64), least))
    return max(share, 0.0)


def _positive_share(start: np.ndarray, end: np.ndarray, floor: Any) -> float:
    if start.ndim > np.ndim(floor) > 0 and start.nbytes > LARGE:
        return min(_positive_share(a, b, floor) for a, b in zip(start, end, strict=True))
    change, least = end - start, -REACH * (start - floor)
    stays = change >= least
    if np.all(stays):
        return 1.0
    # Only what falls too far is looked at more closely: there are few such numbers among many, or none.
    far = (change < 0) & ~stays
    if not np.any(far):
        return 1.0
    room, change = np.asarray((start - floor)[far], np.float64), np.asarray(change[far], np.float64)
    return REACH * float(np.min(room / -change))


def _definite_share(start: np.ndarray, end: np.ndarray, floor: np.ndarray) -> float:
    change = end - start
    room = start - np.diag(floor)
    if _is_definite(room + change / REACH) and _is_definite(room):
        return 1.0
    if start.ndim > 2:
        return min(_definite_share(a, b, floor) for a, b in zip(start, end, strict=True))
    try:
        if not _is_definite(room):
            slack = ROUNDING * np.finfo(np.float64).eps * np.max(np.abs(change))
            return 1.0 if np.linalg.eigvalsh(change)[0] >= -slack else 0.0
        lowest = scipy.linalg.eigh(change, room, eigvals_only=True, subset_by_index=[0, 0])[0]
    except (np.linalg.LinAlgError, ValueError):  # numbers too large to work with
        return 0.0
    return 1.0 if lowest >= -REACH else REACH / -float(lowest)


def _is_positive(values: np.ndarray) -> bool:
    """Whether all are; what is no number is not."""
    return bool(np.min(values, initial=np.inf) > 0)


def _is_definite(matrix: np.ndarray) -> bool:
    try:
        return bool(np.all(np.isfinite(np.linalg.cholesky(matrix))))
    except np.linalg.LinAlgError:
        return False


def lower_bound(cones: Iterable[Cone]) -> Cone | None:
    """A point that all exceed; none, where they are so close to the boundary that rounding leaves none inside."""
    try:
        return reduce(_lower_bound, cones)
    except np.linalg.LinAlgError:
        return None


def _lower_bound(first: Cone, second: Cone) -> Cone:
    """Elementwise the smaller; for matrices in the Loewner order."""
    return _combine(np.minimum, _matrix_lower_bound, first, second)


def _matrix_lower_bound(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """L U min(1, D) Uᵀ Lᵀ, where first = L Lᵀ and L⁻¹ second L⁻ᵀ = U D Uᵀ."""
    L = np.linalg.cholesky(np.asarray(first, np.float64))
    half = scipy.linalg.solve_triangular(L, second, lower=True)
    whitened = scipy.linalg.solve_triangular(L, half.T, lower=True)
    D, U = np.linalg.eigh(0.5 * (whitened + whitened.T))
    LU = L @ U
    return (LU * np.minimum(D, 1.0)) @ LU.T


def larger_floor(first: Cone, second: Cone) -> Cone:
    """Elementwise the larger of two floors."""
    return _combine(np.maximum, np.maximum, first, second)


def subtract_floor(cone: Cone, floor: Cone) -> Cone:
    """`cone - floor`, for one density or a stack."""
    return _combine(operator.sub, lambda a, least: a - np.diag(least), cone, floor)


def shift_cone(cone: Cone, start: Cone, end: Cone) -> Cone:
    """`cone + (end - start)`: what becomes of a bound when what it bounds moves from start to end."""

    def shift(bound: Any, a: Any, b: Any) -> Any:
        return bound + (b - a)

    return _combine(shift, shift, cone, start, end)


def _combine(on_arrays: Callable[..., Any], on_matrices: Callable[..., Any], *cones: Cone) -> Cone:
    """One function of all cones' positive arrays in turn, and another of their matrices."""
    return Cone(
        tuple(on_arrays(*parts) for parts in zip(*(cone.positive for cone in cones), strict=True)),
        tuple(on_matrices(*parts) for parts in zip(*(cone.definite for cone in cones), strict=True)),
    )
