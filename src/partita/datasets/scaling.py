"""Columns in units of their standard deviation."""

import numpy as np


def standardised(X: np.ndarray, like: np.ndarray | None = None) -> np.ndarray:
    """Columns with mean 0 and standard deviation 1, by the figures of `like` (X itself, if not given)."""
    X = np.asarray(X, float)
    reference = X if like is None else np.asarray(like, float)
    centre, unit, varies = _measure_columns(reference)
    return np.where(varies, (X - centre) / unit, 0.0)


def column_units(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What `standardised` subtracts from columns, and divides them by: one, where they do not vary."""
    return _measure_columns(np.asarray(X, float))[:2]


def _measure_columns(X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The means and units of columns, and which of them vary beyond rounding."""
    centre, spread = X.mean(axis=0), X.std(axis=0)
    varies = spread > 1e-12 * np.abs(centre)
    return centre, np.where(varies, spread, 1.0), varies
