"""How numbers are distributed, as far as counts of bins tell: quantiles with bounds, and shares of wider bins."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Quantile(NamedTuple):
    """A quantile, and between which two numbers that of the pooled rows is for sure."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Distribution:
    """Rows below each edge: at least, at most, and about; bins that are counted together take equal shares of it.

    Args:
        edges: of the bins, in order.
        rows: how many there are.
        least: rows that are surely below each edge.
        most: rows that may be below each edge.
        about: between the two.
        whole: whether all numbers are whole.
    """

    edges: np.ndarray
    rows: int
    least: np.ndarray
    most: np.ndarray
    about: np.ndarray
    whole: bool = False

    @classmethod
    def of_counts(cls, edges: Sequence[float], counts: Sequence[np.ndarray], whole: bool = False) -> "Distribution":
        """From the counts of several places, in which -1 stands for a bin that is counted in the one before it."""
        number = len(edges)
        least, most, about = (np.zeros(number) for _ in range(3))
        for own in counts:
            begins = np.flatnonzero(own >= 0)
            ends = np.append(begins[1:], len(own))
            before = np.cumsum(own[begins]) - own[begins]
            group = np.cumsum(own >= 0) - 1
            # The bin above edge i is i + 1: where it begins a group, all of the groups below are below the edge.
            above = np.arange(1, number + 1)
            inside = group[above]
            share = (above - begins[inside]) / (ends[inside] - begins[inside])
            least += before[inside]
            most += before[inside] + np.where(share > 0, own[begins][inside], 0)
            about += before[inside] + share * own[begins][inside]
        rows = int(sum(np.maximum(own, 0).sum() for own in counts))
        return cls(np.asarray(edges, float), rows, least, most, about, whole)

    def quantile(self, share: float) -> Quantile:
        """Where so large a share of the rows lies below, between neighbours as NumPy and pandas do it by default."""
        if not self.rows:
            return Quantile(np.nan, np.nan, np.nan)
        place = (self.rows - 1) * share
        below = self.edges[self.most <= np.floor(place)]
        above = self.edges[self.least >= np.ceil(place) + 1]
        low, high = (below[-1] if len(below) else -np.inf), (above[0] if len(above) else np.inf)
        value = np.nan
        if np.isfinite(low) and np.isfinite(high):
            value = float(np.interp(place + 0.5, self.about, self.edges))
            if self.whole:
                low, high = np.ceil(low), np.ceil(high) - 1
            value = float(np.clip(value, low, high))
        return Quantile(value, float(low), float(high))

    def shares(self, edges: np.ndarray) -> np.ndarray:
        """About which share of the rows lies in each of some wider bins; all rows in the first and last are counted."""
        if not self.rows or not len(self.edges):
            return np.zeros(len(edges) - 1)
        below = np.interp(edges, self.edges, self.about)
        below[0], below[-1] = 0.0, self.rows
        shares: np.ndarray = np.diff(below) / self.rows
        return shares
