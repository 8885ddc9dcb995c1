"""Columns in units of their standard deviation."""

import numpy as np

from partita.foundation.moments import Affine, has_spread


def standardised(X: np.ndarray, like: np.ndarray | None = None) -> np.ndarray:
    """Columns with mean 0 and standard deviation 1, by the figures of `like` (X itself, if not given)."""
    X = np.asarray(X, float)
    units, varies = _measure_columns(X if like is None else np.asarray(like, float))
    return np.where(varies, units.standardise(X), 0.0)


def column_units(X: np.ndarray) -> Affine:
    """What `standardised` subtracts from columns, and divides them by: one, where they do not vary."""
    return _measure_columns(np.asarray(X, float))[0]


def _measure_columns(X: np.ndarray) -> tuple[Affine, np.ndarray]:
    """The means and units of columns, and which of them vary beyond rounding."""
    centre, spread = X.mean(axis=0), X.std(axis=0)
    varies = has_spread(centre, spread)
    return Affine(centre, np.where(varies, spread, 1.0)), varies
