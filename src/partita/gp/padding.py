"""Arrays of a few sizes, so that few programs have to be compiled: rows of batches, and room for points of a factor."""

import numpy as np

from partita.gp.sparse import Batch, Factor
from partita.shards import rounded_up

# Capacities for points begin here: every one is compiled for, which takes longer than a few more points do.
SMALLEST = 128


def capacity_for(points: int, limit: int | None) -> int:
    """One of few sizes, so that shapes seldom change: 128, 192, 256, 384, …; or the limit itself."""
    double = max(SMALLEST, 1 << (points - 1).bit_length())
    between = 3 * double // 4
    capacity = between if points <= between and double > 128 else double
    return capacity if limit is None else max(points, min(capacity, limit))


def empty_factor(capacity: int, features: int, outputs: int) -> Factor:
    """A factor that says nothing, with room for points."""
    return Factor(
        np.zeros((capacity, features)),
        np.zeros(capacity),
        np.zeros((outputs, capacity)),
        np.zeros((outputs, capacity, capacity)),
    )


def enlarge(factor: Factor, capacity: int) -> Factor:
    """The same factor with room for more points."""
    extra = capacity - len(factor.present)
    return Factor(
        np.pad(factor.points, ((0, extra), (0, 0))),
        np.pad(factor.present, (0, extra)),
        np.pad(factor.shift, ((0, 0), (0, extra))),
        np.pad(factor.precision, ((0, 0), (0, extra), (0, extra))),
    )


def divide(factor: Factor, part: Factor) -> Factor:
    """A factor without one of its parts."""
    own = enlarge(part, len(factor.present))
    return factor._replace(shift=factor.shift - own.shift, precision=factor.precision - own.precision)


def pad_batch(X: np.ndarray, y: np.ndarray) -> Batch:
    """Rows with their padding, which weighs nothing."""
    index = padded_indices(len(X))
    return Batch(X[index], y[:, index], (np.arange(len(index)) < len(X)).astype(float))


def padded_indices(rows: int) -> np.ndarray:
    """Indices of so many rows, then of the first one over and over, up to one of a few sizes."""
    numbers = np.arange(rounded_up(rows))
    return np.where(numbers < rows, numbers, 0)
