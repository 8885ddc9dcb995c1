"""Who contributed to an estimator: sites that are groups of rows, or batches of a stream; and their weights."""

from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.utils.validation import _check_sample_weight

from partita.errors import InputError
from partita.foundation.moments import Moments


class Part(NamedTuple):
    """A site, or a batch of a stream."""

    name: Any
    rows: int
    # Of its columns, the target last; they count the weights of rows.
    moments: Moments

    @property
    def weight(self) -> float:
        return self.moments.count

    @classmethod
    def of(cls, name: Any, X: np.ndarray, y: np.ndarray, weights: np.ndarray) -> Self:
        return cls(name, len(X), Moments.of(np.column_stack([X, y]), weights))


def check_weights(sample_weight: Any, X: np.ndarray) -> np.ndarray:
    """A weight for every row, of which one at least is not zero."""
    weights: np.ndarray = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not weights.any():
        raise InputError("sample_weight: all are zero")
    return weights


def group_rows(groups: Any, weights: np.ndarray) -> dict[Any, np.ndarray]:
    """Which rows each site has, in the order of the sites' names; rows without weight are left out."""
    rows = len(weights)
    entries = np.zeros(rows, int) if groups is None else np.asarray(groups)
    if entries.shape != (rows,):
        raise InputError(f"groups: expected one entry per row, {rows}, got shape {entries.shape}")
    try:
        found, sites = np.unique(entries, return_inverse=True)
        missing = bool(np.any(found != found))
    except TypeError:  # they cannot be sorted
        missing = True
    if missing:
        raise InputError("groups: expected entries of one kind, and none missing")
    names = found.tolist() if found.dtype.kind in "OUSbiuf" else list(found)
    used = {name: np.flatnonzero((sites == number) & (weights > 0)) for number, name in enumerate(names)}
    return {name: part for name, part in used.items() if len(part)}
