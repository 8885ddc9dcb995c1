"""Means and deviations of columns, from rows that are in several places or arrive over time; units made of them."""

from typing import Any, NamedTuple

import numpy as np

from partita.foundation.fields import number


class Affine(NamedTuple):
    """value = mean + scale × standardised value."""

    mean: np.ndarray
    scale: np.ndarray


class Moments:
    """Running means and variances of columns, over all rows so far (Chan, Golub and LeVeque, 1983)."""

    def __init__(self, count: float = 0.0, mean: Any = 0.0, total: Any = 0.0):
        self.count, self.mean, self.total = count, mean, total

    @classmethod
    def of(cls, rows: np.ndarray, weights: np.ndarray) -> "Moments":
        """The moments of rows that count for so much each, of which one at least counts for something."""
        mean = np.average(rows, axis=0, weights=weights)
        return cls(float(weights.sum()), mean, weights @ (rows - mean) ** 2)

    @classmethod
    def checked(cls, count: Any, mean: Any, total: Any, size: int | None = None) -> "Moments":
        """Moments from a file, checked; they are of so many columns, if that is known."""
        number(0)(count, "count")
        mean, total = np.asarray(mean, float), np.asarray(total, float)
        if mean.shape != total.shape or mean.ndim > 1 or (size is not None and mean.shape != (size,)):
            raise ValueError(f"means and squares of columns have the shapes {mean.shape} and {total.shape}")
        if not (np.isfinite(mean).all() and np.isfinite(total).all() and np.all(total >= 0)):
            raise ValueError("means of columns are not finite, or squares of them negative")
        return cls(count, mean, total)

    def with_rows(self, rows: np.ndarray) -> "Moments":
        return self.with_others(Moments.of(rows, np.ones(len(rows))))

    def with_others(self, others: "Moments") -> "Moments":
        """The moments of the rows of both."""
        count = self.count + others.count
        delta = others.mean - self.mean
        mean = self.mean + delta * others.count / count
        total = self.total + others.total
        return Moments(count, mean, total + delta**2 * self.count * others.count / count)

    @property
    def deviation(self) -> np.ndarray:
        return np.sqrt(np.asarray(self.total) / max(self.count, 1))

    @property
    def affine(self) -> Affine:
        """Columns that do not vary are left in their own units."""
        scale = self.deviation
        return Affine(np.asarray(self.mean, float), np.where(self._varies(scale), scale, 1.0))

    def _varies(self, scale: np.ndarray) -> np.ndarray:
        return np.asarray(scale > 1e-12 * np.abs(self.mean))
