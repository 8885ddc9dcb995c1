"""Points that stand for normal variables: of quadratures, and of low discrepancy."""

from functools import lru_cache

import numpy as np


@lru_cache
def hermite(points: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for expectations under N(0, 1)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    return nodes, weights / weights.sum()


@lru_cache
def normal_points(samples: int, dimension: int, seed: int = 0) -> np.ndarray:
    """Symmetric low-discrepancy standard normal points, with unit second moment in every coordinate."""
    from scipy.stats import norm, qmc

    half = max(1, samples // 2)
    uniform = qmc.Sobol(dimension, rng=seed).random_base2(max(1, (half - 1).bit_length()))[:half]
    points = norm.ppf(np.clip(uniform, 1e-9, 1 - 1e-9))
    both = np.concatenate([points, -points])
    return both / np.sqrt(np.mean(both**2, axis=0))


def even_points(number: int, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Points spread evenly over a box: Hammersley's, the same to the last bit on every machine.

    >>> even_points(4, np.zeros(2), np.ones(2)).tolist()
    [[0.125, 0.125], [0.375, 0.625], [0.625, 0.875], [0.875, 0.375]]
    """
    from scipy.stats import qmc

    first = (np.arange(number) + 0.5) / number
    power = max(0, (number - 1).bit_length())
    others = qmc.Sobol(max(1, len(low) - 1), scramble=False).random_base2(power)[:number] + 0.5 ** (power + 1)
    places = np.column_stack([first, others])[:, : len(low)]
    return low + (high - low) * places


@lru_cache
def white_points(samples: int, dimension: int) -> np.ndarray:
    """The same, with the identity as their second moment; more of them, where there have to be."""
    points = normal_points(max(samples, 4 * dimension), dimension)
    L = np.linalg.cholesky(points.T @ points / len(points))
    return points @ np.linalg.inv(L).T
