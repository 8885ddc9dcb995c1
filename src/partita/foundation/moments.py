"""Means and deviations of columns, from rows that are in several places or arrive over time; units made of them."""

from collections.abc import Iterable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from partita.foundation.fields import number


class Affine(NamedTuple):
    """Units of columns: value = mean + scale × standardised value.

    >>> units = Affine(np.array([2.0, 0.0]), np.array([4.0, 1.0]))
    >>> units.standardise(np.array([10.0, 3.0])), units.restore(np.array([2.0, 3.0]))
    (array([2., 3.]), array([10.,  3.]))
    """

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def of_rows(cls, rows: np.ndarray) -> "Affine":
        """Units in which these rows have mean 0 and deviation 1."""
        return cls(rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-12))

    @classmethod
    def unchanged(cls, *shape: int) -> "Affine":
        """Units in which values are what they are."""
        return cls(np.zeros(shape), np.ones(shape))

    def standardise(self, values: np.ndarray) -> np.ndarray:
        standardised: np.ndarray = (values - self.mean) / self.scale
        return standardised

    def restore(self, values: np.ndarray) -> np.ndarray:
        """The inverse of `standardise`."""
        restored: np.ndarray = values * self.scale + self.mean
        return restored

    def same_as(self, other: "Affine") -> bool:
        return np.array_equal(self.mean, other.mean) and np.array_equal(self.scale, other.scale)


def has_spread(mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Which columns vary by more than rounding."""
    varies: np.ndarray = np.asarray(deviation > 1e-12 * np.abs(mean))
    return varies


def deviation_or_size(mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """The deviation; of columns that do not vary, their size, or one, where they are 0."""
    size = np.where(mean != 0, np.abs(mean), 1.0)
    return np.where(has_spread(mean, deviation), deviation, size)


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
        return Affine(np.asarray(self.mean, float), np.where(has_spread(self.mean, scale), scale, 1.0))

    @property
    def affine_or_size(self) -> Affine:
        """Columns that do not vary are in units of their size, of which alone is known; or of one, where they are 0."""
        mean = np.asarray(self.mean, float)
        return Affine(mean, deviation_or_size(mean, self.deviation))


def join_moments(each: Iterable[Moments]) -> Moments:
    """The moments of the rows of all places together."""
    return reduce(lambda so_far, own: so_far.with_others(own), each, Moments())


def round_up_sizes(sizes: np.ndarray) -> np.ndarray:
    """The next power of sixteen: the largest value of a column is one person's, and its order is all that is needed."""
    exponents = np.frexp(sizes)[1]
    return np.where(sizes > 0, np.ldexp(1.0, 4 * -(-exponents // 4)), 0.0)
