"""How good predictions are: error, negative log likelihood, calibration."""

from typing import NamedTuple

import numpy as np

Row = dict[str, float]


class Bins(NamedTuple):
    """Sums over the rows of each bin of confidence: of several sites they add up."""

    rows: np.ndarray
    claimed: np.ndarray
    found: np.ndarray


def sum_bins(claimed: np.ndarray, found: np.ndarray, bins: int) -> Bins:
    """Rows, claimed probabilities and what was found, summed within bins of equal width.

    >>> sum_bins(np.array([0.1, 0.2, 0.9]), np.array([0, 1, 1]), 2)
    Bins(rows=array([2, 1]), claimed=array([0.3, 0.9]), found=array([1., 1.]))
    """
    place = np.minimum((claimed * bins).astype(int), bins - 1)
    rows = np.bincount(place, minlength=bins)
    return Bins(rows, np.bincount(place, claimed, bins), np.bincount(place, found, bins))


def classification(probabilities: np.ndarray, labels: np.ndarray, bins: int = 15) -> Row:
    """Error, mean negative log likelihood and expected calibration error.

    >>> classification(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([0, 0]))["error"]
    0.5
    """
    labels = np.asarray(labels, int)
    chosen = probabilities[np.arange(len(labels)), labels]
    wrong = probabilities.argmax(axis=1) != labels
    nll = -np.log(np.maximum(chosen, np.finfo(float).tiny))
    _, confidence, accuracy, share = reliability(probabilities, labels, bins)
    return {
        "error": float(wrong.mean()),
        "nll": float(nll.mean()),
        "ece": float(np.sum(share * np.abs(confidence - accuracy))),
    }


def reliability(probabilities: np.ndarray, labels: np.ndarray, bins: int = 15) -> tuple[np.ndarray, ...]:
    """For each bin of confidence that is not empty: its middle, mean confidence, accuracy and share of rows."""
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == np.asarray(labels, int)
    count, claimed, found = sum_bins(confidence, right, bins)
    used = count > 0
    middle = (np.flatnonzero(used) + 0.5) / bins
    return middle, claimed[used] / count[used], found[used] / count[used], count[used] / len(confidence)


def intervals(mean: np.ndarray, std: np.ndarray, targets: np.ndarray) -> Row:
    """Mean negative log density under normal predictions, and the share of targets in their 95 % intervals."""
    residual = np.asarray(targets) - mean
    return {
        "nlpd": float(np.mean(0.5 * np.log(2 * np.pi * std**2) + 0.5 * (residual / std) ** 2)),
        "coverage": float(np.mean(np.abs(residual) <= 1.959964 * std)),
    }


def regression(prediction: np.ndarray, targets: np.ndarray) -> Row:
    """Root mean squared error, and mean squared error relative to the targets' variance."""
    residual = np.asarray(targets) - prediction
    mse = float(np.mean(residual**2))
    return {"rmse": mse**0.5, "smse": mse / float(max(np.var(targets), np.finfo(float).tiny))}
