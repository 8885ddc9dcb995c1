"""What stacks of densities do with one of their arrays, whose rows belong to one density each."""

import math
from collections.abc import Sequence

import numpy as np


def as_slice(indices: Sequence[int]) -> slice | list[int]:
    """The same rows as a slice, if they follow each other: what it gives is a view, and quicker to write to."""
    first, number = (indices[0], len(indices)) if len(indices) else (0, 0)
    found = list(indices)
    return slice(first, first + number) if found == list(range(first, first + number)) else found


def is_finite(array: np.ndarray) -> bool:
    """A sum is quicker than a look at every number, and finite only if they all are."""
    return math.isfinite(np.sum(array)) or bool(np.all(np.isfinite(array)))


def scale_leaf(leaf: np.ndarray, shares: np.ndarray) -> np.ndarray:
    weights = shares.reshape(-1, *[1] * (leaf.ndim - 1)).astype(leaf.dtype)
    # A share of zero takes nothing, also of what is too large to be a number.
    with np.errstate(invalid="ignore"):
        return np.where(weights == 0, 0, leaf * weights).astype(leaf.dtype)


def sums_of_others(rows: np.ndarray) -> np.ndarray:
    before, after = np.zeros_like(rows), np.zeros_like(rows)
    np.cumsum(rows[:-1], axis=0, out=before[1:])
    after[:-1] = np.cumsum(rows[:0:-1], axis=0)[::-1]
    return before + after
