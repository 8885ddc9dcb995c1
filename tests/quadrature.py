"""Linear regression with an unknown noise by brute force: a dense grid over log σ, and plain algebra at each point."""

from typing import NamedTuple

import numpy as np
from scipy import stats


class Exact(NamedTuple):
    log_evidence: float
    location: np.ndarray
    covariance: np.ndarray
    noise_variance: float
    # Of the mixture: log σ, shares, means and covariances of the weights.
    log_noise: np.ndarray
    shares: np.ndarray
    means: np.ndarray
    covariances: np.ndarray

    def interval(self, number: int, level: float) -> tuple[float, float]:
        """Of one weight, from the mixture's distribution function on a fine grid."""
        mean, deviation = self.means[:, number], np.sqrt(self.covariances[:, number, number])
        grid = self.location[number] + np.linspace(-15, 15, 60_001) * np.sqrt(self.covariance[number, number])
        below = sum(w * stats.norm.cdf(grid, m, s) for w, m, s in zip(self.shares, mean, deviation, strict=True))
        return tuple(np.interp([0.5 - level / 2, 0.5 + level / 2], below, grid))


def linear_regression(X, y, prior_scales, noise_scale=1.0, points=1201) -> Exact:
    """w ~ N(0, prior_scales²), σ ~ half a Student t with three degrees of freedom."""
    precision = np.diag(1 / np.asarray(prior_scales) ** 2)
    Q, R = np.linalg.qr(X)
    along, apart = Q.T @ y, y - Q @ (Q.T @ y)
    rest = apart @ apart

    def given(log_sigma):
        variance = np.exp(2 * log_sigma)
        V = np.linalg.inv(precision + R.T @ R / variance)
        m = V @ (R.T @ along) / variance
        off = along - R @ m
        log = stats.t.logpdf(np.exp(log_sigma), 3, 0, noise_scale) + np.log(2) + log_sigma
        log -= len(y) * (log_sigma + 0.5 * np.log(2 * np.pi)) + 0.5 * (rest + off @ off) / variance
        log += 0.5 * (np.linalg.slogdet(precision)[1] + np.linalg.slogdet(V)[1] - m @ precision @ m)
        return log, m, V

    low, high = np.log(noise_scale) - 14, np.log(noise_scale) + 16
    for _ in range(6):
        grid = np.linspace(low, high, 400)
        logs = np.array([given(s)[0] for s in grid])
        kept = grid[logs > logs.max() - 40]
        low, high = kept[0] - (grid[1] - grid[0]), kept[-1] + (grid[1] - grid[0])
    grid = np.linspace(low, high, points)
    logs, means, covariances = (np.array(part) for part in zip(*map(given, grid), strict=True))
    shares = np.exp(logs - logs.max())
    evidence = logs.max() + np.log(shares.sum() * (grid[1] - grid[0]))
    shares /= shares.sum()
    location = shares @ means
    apart = means - location
    covariance = np.tensordot(shares, covariances, 1) + (apart.T * shares) @ apart
    return Exact(evidence, location, covariance, shares @ np.exp(2 * grid), grid, shares, means, covariances)
