"""Whether predictions of a regression mean what they say: sums that a site makes of its rows, and what all say."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from partita.designs.design import Design, random_of_site
from partita.designs.responses import Sums

# Draws of so many rows' observations fit into memory.
ROWS_AT_ONCE = 10_000


class Draws(NamedTuple):
    """Draws of coefficients, in the units of the data; of noise, spread and size [draws, 1], in those of the model."""

    coefficients: np.ndarray
    others: Mapping[str, np.ndarray]


def predict_observations(design: Design, draws: Draws, X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws of new observations, in the units of the data, [draws, rows]; of probabilities, for two classes."""
    beta = draws.coefficients
    others = {name: design.target_unit * values for name, values in draws.others.items()}
    f: np.ndarray = beta[:, : len(design.names)] @ X.T + (beta[:, -1:] if design.intercept else 0.0)
    if "spread" in others:
        f = f + others["spread"] * rng.normal(size=f.shape)
    return design.response.draw(f, others, rng)


def begin_random(seed: int, site: str) -> tuple[int, np.random.Generator]:
    """The key that draws for a site are made with, and the randomness that the site goes on with."""
    rng = random_of_site(seed, site)
    return int(rng.integers(2**32)), rng


def sum_comparisons(design: Design, draws: Draws, X: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Sums:
    """Predictions of a site's rows beside what was observed, as sums over the rows."""
    means, ranks = [np.empty(0)], [np.empty(0)]
    for start in range(0, len(y), ROWS_AT_ONCE):
        piece = slice(start, start + ROWS_AT_ONCE)
        drawn = predict_observations(design, draws, X[piece], rng)
        means.append(drawn.mean(axis=0))
        # The share of draws below what was observed; equal ones count half.
        ranks.append(np.mean(drawn < y[piece], axis=0) + 0.5 * np.mean(drawn == y[piece], axis=0))
    return design.response.sum_comparisons(np.concatenate(means), np.concatenate(ranks), y)
