"""What is known of single numbers: coefficients, predictors, or any other sums of parameters."""

from typing import NamedTuple, Self

import numpy as np
from scipy.special import ndtr

# Bisections of an interval of 80 deviations: to the last digit of a double.
BISECTIONS = 70


class Marginals(NamedTuple):
    """A mixture of normals for each of several numbers: shares [points], means and deviations [points, numbers].

    >>> both = Marginals(np.array([0.5, 0.5]), np.array([[-1.0], [1.0]]), np.array([[1.0], [1.0]]))
    >>> both.mean, both.deviation.round(4), both.quantile(0.5).round(4) + 0
    (array([0.]), array([1.4142]), array([0.]))
    """

    shares: np.ndarray
    means: np.ndarray
    deviations: np.ndarray

    @classmethod
    def normal(cls, mean: np.ndarray, deviation: np.ndarray) -> Self:
        return cls(np.ones(1), np.asarray(mean)[None], np.asarray(deviation)[None])

    @property
    def mean(self) -> np.ndarray:
        return self.shares @ self.means

    @property
    def deviation(self) -> np.ndarray:
        return np.sqrt(self.shares @ (self.deviations**2 + (self.means - self.mean) ** 2))

    def quantile(self, probability: float) -> np.ndarray:
        low = np.min(self.means - 40 * self.deviations, axis=0)
        high = np.max(self.means + 40 * self.deviations, axis=0)
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            below = self.shares @ ndtr((middle - self.means) / self.deviations) < probability
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return 0.5 * (low + high)

    def interval(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """The interval of this level, with as much on either side."""
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)

    def scaled(self, unit: float) -> Self:
        return self._replace(means=unit * self.means, deviations=unit * self.deviations)

    def shifted(self, by: np.ndarray) -> Self:
        return self._replace(means=self.means + by)
