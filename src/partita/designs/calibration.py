"""Whether predictions of a regression mean what they say: sums that a site makes of its rows, and what all say."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from partita.designs.design import COUNTS, Design, random_of_site
from partita.metrics import sum_bins

LEVELS = (0.5, 0.8, 0.95)
# Bins of confidence for the calibration error, and of probability for the curve.
BINS, CURVE_BINS = 15, 10
# Draws of so many rows' observations fit into memory.
ROWS_AT_ONCE = 10_000
Sums = dict[str, np.ndarray]


class Draws(NamedTuple):
    """Draws of coefficients, in the units of the data; of noise, spread and size [draws, 1], in those of the model."""

    coefficients: np.ndarray
    others: Mapping[str, np.ndarray]


def predict_observations(design: Design, draws: Draws, X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws of new observations, in the units of the data, [draws, rows]; of probabilities, for two classes."""
    beta, others = draws
    f: np.ndarray = beta[:, : len(design.names)] @ X.T + (beta[:, -1:] if design.intercept else 0.0)
    if "spread" in others:
        f = f + design.target_unit * others["spread"] * rng.normal(size=f.shape)
    if design.family == "bernoulli":
        f = 1 / (1 + np.exp(-f))
    elif design.family == "gaussian":
        f = f + design.target_unit * others["noise"] * rng.normal(size=f.shape)
    elif design.family in COUNTS:
        rate = np.exp(np.minimum(f, 30.0))
        if design.family == "negative binomial":
            rate = rate * rng.gamma(others["size"], 1 / others["size"], f.shape)
        f = rng.poisson(rate)
    else:
        raise NotImplementedError(f"draws of the response {design.family!r}")
    return f


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
    mean = np.concatenate(means)
    if design.family == "bernoulli":
        return _sum_classes(mean, y)
    off = np.abs(np.concatenate(ranks) - 0.5)
    return {
        "squares": np.array([np.sum((mean - y) ** 2)]),
        "inside": np.array([np.sum(off <= level / 2) for level in LEVELS], float),
    }


def _sum_classes(p: np.ndarray, y: np.ndarray) -> Sums:
    chosen = np.where(y == 1, p, 1 - p)
    confidence, right = np.maximum(p, 1 - p), (p > 0.5) == (y == 1)
    by_confidence, by_probability = sum_bins(confidence, right, BINS), sum_bins(p, y, CURVE_BINS)
    return {
        "wrong": np.array([np.sum(~right)], float),
        "nll": np.array([np.sum(-np.log(np.maximum(chosen, np.finfo(float).tiny)))]),
        "rows by confidence": by_confidence.rows.astype(float),
        "confidence": by_confidence.claimed,
        "right": by_confidence.found,
        "rows by probability": by_probability.rows.astype(float),
        "predicted": by_probability.claimed,
        "observed": by_probability.found,
    }


def describe_calibration(family: str, sums: Sums, rows: int) -> dict[str, Any]:
    """Error, log likelihood and calibration, from the sums over the rows of all sites."""
    if family != "bernoulli":
        inside = dict(zip(LEVELS, (sums["inside"] / rows).tolist(), strict=True))
        return {"rmse": float(np.sqrt(sums["squares"][0] / rows)), "inside": inside}
    off = np.abs(sums["confidence"] - sums["right"])
    return {
        "error": float(sums["wrong"][0] / rows),
        "nll": float(sums["nll"][0] / rows),
        "ece": float(np.sum(off / rows)),
        "curve": [
            {"predicted": float(predicted / count), "observed": float(observed / count), "rows": int(count)}
            for predicted, observed, count in zip(
                sums["predicted"], sums["observed"], sums["rows by probability"], strict=True
            )
            if count
        ],
    }
