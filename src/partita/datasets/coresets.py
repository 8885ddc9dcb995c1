"""Rows of a shard that are kept for later: memories of a task, which `schedules.Rehearsal` visits again."""

import numpy as np

Data = tuple[np.ndarray, np.ndarray]


def k_centre(X: np.ndarray, number: int, first: int = 0) -> np.ndarray:
    """Rows that leave no row far from all of them: each is the one farthest from those before it (Gonzalez, 1985)."""
    norms = np.einsum("ij,ij->i", X, X)
    chosen = [first]
    distance = np.full(len(X), np.inf)
    while len(chosen) < number:
        centre = chosen[-1]
        distance = np.minimum(distance, norms - 2 * (X @ X[centre]) + norms[centre])
        distance[chosen] = -np.inf
        chosen.append(int(distance.argmax()))
    return np.array(chosen)


def random_rows(X: np.ndarray, number: int, generator: np.random.Generator) -> np.ndarray:
    return generator.choice(len(X), number, replace=False)


def k_centre_rows(X: np.ndarray, number: int, generator: np.random.Generator) -> np.ndarray:
    return k_centre(X, number, int(generator.integers(len(X))))


def hold_out(data: Data, rows: np.ndarray) -> tuple[Data, Data]:
    """Those rows of the data, and all others."""
    X, y = data
    others = np.setdiff1d(np.arange(len(y)), rows)
    return (X[rows], y[rows]), (X[others], y[others])
