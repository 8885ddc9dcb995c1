"""What the table of regressions compares with, none of it Partita's code: problems, and quadrature for them.

The priors, for columns and target in units of their deviations (the target of gaussian regressions only, and centred):
coefficients N(0, prior_scale²), intercept N(0, 10²), noise half-Student-t with 3 degrees of freedom and scale 1, the
standard deviation of groups half-normal(1), the size of a negative binomial Gamma(2, 0.1).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import brentq
from scipy.special import logsumexp

from partita.foundation.checks import import_extra
from partita.studies.regressions.sets import DataSet


@dataclass(frozen=True)
class Problem:
    """A regression on pooled rows, columns in units of their deviations, and how to go back to those of the data."""

    # Names are as patsy writes them, the intercept last; X has no column for it.
    names: tuple[str, ...]
    family: str
    X: np.ndarray
    y: np.ndarray
    group: np.ndarray | None
    centre: np.ndarray
    unit: np.ndarray
    target_centre: float
    target_unit: float
    prior_scale: float = 2.5
    intercept_scale: float = 10.0

    @cached_property
    def design(self) -> np.ndarray:
        return np.column_stack([self.X, np.ones(len(self.X))])

    @property
    def scales(self) -> np.ndarray:
        """Standard deviations of coefficients under the prior."""
        return np.append(np.full(self.X.shape[1], self.prior_scale), self.intercept_scale)

    @property
    def back(self) -> np.ndarray:
        """T of β = Tθ (+ the target's centre), in the units of the data."""
        T = np.diag(np.append(1 / self.unit, 1.0))
        T[-1, :-1] = -self.centre / self.unit
        return self.target_unit * T

    def in_units_of_data(self, mean: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        T = self.back
        shift = np.append(np.zeros(len(mean) - 1), self.target_centre)
        return T @ mean + shift, np.sqrt(np.diag(T @ covariance @ T.T))

    def evidence(self, standardised: float) -> float:
        """The log evidence of the target in its own units."""
        return standardised - len(self.y) * float(np.log(self.target_unit))


@dataclass(frozen=True)
class Reference:
    """Means and deviations of coefficients in the units of the data, the intercept last."""

    mean: np.ndarray
    sd: np.ndarray
    log_evidence: float
    # Sampling has Monte Carlo errors: of standard deviations, relatively, and of the log evidence.
    sd_error: float = 0.0
    evidence_error: float = 0.0
    # The noise is its median. Intervals are those of 95 %, where they are known exactly.
    noise: float = np.nan
    interval: np.ndarray | None = None


def standardise(X: np.ndarray, y: np.ndarray, **settings: Any) -> Problem:
    """A problem in units of deviations; the target is left as it is if the family is not gaussian."""
    centre, unit = X.mean(axis=0), X.std(axis=0)
    gaussian = settings["family"] == "gaussian"
    target_centre, target_unit = (float(y.mean()), float(y.std())) if gaussian else (0.0, 1.0)
    scaled = (X - centre) / unit, (y - target_centre) / target_unit
    return Problem(
        X=scaled[0], y=scaled[1], centre=centre, unit=unit, target_centre=target_centre, target_unit=target_unit,
        **settings,
    )  # fmt: skip


def read(data: DataSet, table: Any) -> tuple[Problem, np.ndarray]:
    """A data set as patsy reads its formula, and which rows of the table are complete."""
    left, right = import_extra("patsy", "patsy", "dev").dmatrices(data.formula, table, return_type="dataframe")
    rows = right.index.to_numpy()
    X = right.drop(columns="Intercept")
    group = None if data.group is None else np.unique(table[data.group].to_numpy()[rows], return_inverse=True)[1]
    names = (*X.columns, "Intercept")
    return standardise(X.to_numpy(), left.to_numpy()[:, -1], family=data.family, names=names, group=group), rows


# Given the noise (and the spread of groups) all else is Gaussian, so these alone are integrated, on a grid.


def integrate(log_density: Callable[[np.ndarray], np.ndarray], low: float, high: float) -> tuple[np.ndarray, ...]:
    """Points and log weights (density times step) of the trapezoidal rule, where the density is not negligible.

    The density has one mode and is smooth, so that the error falls faster than any power of the step.
    """
    for _ in range(12):
        points = np.linspace(low, high, 2001)
        logs = log_density(points)
        kept = np.flatnonzero(logs > logs.max() - 60)
        before = low, high
        low, high = points[max(kept[0] - 1, 0)], points[min(kept[-1] + 1, len(points) - 1)]
        if high - low > 0.9 * (before[1] - before[0]):
            break
    return points, logs + np.log(points[1] - points[0])


def exact(problem: Problem) -> Reference:
    """The posterior by quadrature over log σ of N(y; 0, XSXᵀ + σ²I), through the singular values of XS^½."""
    U, s, Vt = np.linalg.svd(problem.design * problem.scales, full_matrices=False)
    fit = U.T @ problem.y
    rest = float(np.sum((problem.y - U @ fit) ** 2))
    n, k = len(problem.y), len(s)

    def log_density(log_noise: np.ndarray) -> np.ndarray:
        v = np.exp(2 * log_noise)[:, None]
        quadratic = rest / v[:, 0] + np.sum(fit**2 / (s**2 + v), axis=1)
        log_det = 2 * (n - k) * log_noise + np.sum(np.log(s**2 + v), axis=1)
        return np.asarray(-0.5 * (quadratic + log_det + n * np.log(2 * np.pi)) + _log_prior_of_noise(log_noise))

    points, logs = integrate(log_density, -40.0, 15.0)
    weights = np.exp(logs - logsumexp(logs))
    v = np.exp(2 * points)[:, None]
    # Means of the coefficients along Vt, for each noise.
    given = s * fit / (s**2 + v)
    mean = weights @ given
    off = given - mean
    covariance = (off * weights[:, None]).T @ off + np.diag(weights @ (v / (s**2 + v)))
    A = problem.back @ (problem.scales[:, None] * Vt.T)
    shift = np.append(np.zeros(k - 1), problem.target_centre)
    means, sds = given @ A.T + shift, np.sqrt((v / (s**2 + v)) @ (A**2).T)
    return Reference(
        A @ mean + shift,
        np.sqrt(np.diag(A @ covariance @ A.T)),
        problem.evidence(float(logsumexp(logs))),
        noise=problem.target_unit * _median(weights, np.exp(points)),
        interval=np.array([_quantiles(weights, means[:, i], sds[:, i]) for i in range(k)]),
    )


def _median(weights: np.ndarray, points: np.ndarray) -> float:
    """The weighted median, where half of a point's weight lies on either side of it."""
    return float(np.interp(0.5, np.cumsum(weights) - weights / 2, points))


def _quantiles(weights: np.ndarray, means: np.ndarray, sds: np.ndarray, level: float = 0.95) -> list[float]:
    """The ends of an interval that holds so much of a mixture of normals, and as much below as above."""
    kept = weights > 1e-12
    weights, means, sds = weights[kept], means[kept], sds[kept]
    low, high = np.min(means - 9 * sds), np.max(means + 9 * sds)
    return [
        float(brentq(lambda x, below=below: weights @ stats.norm.cdf(x, means, sds) - below, low, high, xtol=1e-300))
        for below in (0.5 - level / 2, 0.5 + level / 2)
    ]


def _log_prior_of_noise(log_noise: np.ndarray | float) -> np.ndarray:
    """The log density of a half-Student-t(3), with the Jacobian of the logarithm."""
    return np.asarray(np.log(2) + stats.t.logpdf(np.exp(log_noise), 3) + log_noise)


def exact_grouped(problem: Problem, points: int = 81) -> Reference:
    """The posterior by quadrature over log σ and the logarithm of the spread of groups."""
    assert problem.group is not None
    Z = np.eye(problem.group.max() + 1)[problem.group]
    columns = np.column_stack([problem.design, Z])
    G, h, size = columns.T @ columns, columns.T @ problem.y, len(problem.scales)
    n, square = len(problem.y), float(problem.y @ problem.y)

    def given(log_noise: float, log_spread: float) -> tuple[float, np.ndarray, np.ndarray]:
        v = np.exp(2 * log_noise)
        S = np.append(problem.scales, np.full(Z.shape[1], np.exp(log_spread)))
        A = np.eye(len(S)) + S[:, None] * G * S / v
        C = S[:, None] * np.linalg.inv(A) * S
        mean = C @ h / v
        log_det = np.linalg.slogdet(A)[1] + n * np.log(2 * np.pi * v)
        prior = _log_prior_of_noise(log_noise) + stats.halfnorm.logpdf(np.exp(log_spread)) + log_spread
        return -0.5 * (log_det + (square - h @ mean) / v) + prior, mean[:size], C[:size, :size]

    box = np.array([[-8.0, 2.0], [-8.0, 2.0]])
    for _ in range(3):
        axes = [np.linspace(low, high, points) for low, high in box]
        found = [[given(a, b) for b in axes[1]] for a in axes[0]]
        logs = np.array([[one[0] for one in row] for row in found])
        steps = [axis[1] - axis[0] for axis in axes]
        kept = np.nonzero(logs > logs.max() - 30)
        box = np.array([
            [axis[max(k.min() - 1, 0)], axis[min(k.max() + 1, points - 1)]] for axis, k in zip(axes, kept, strict=True)
        ])  # fmt: skip
    logs = logs + np.log(steps).sum()
    weights = np.exp(logs - logsumexp(logs))
    means = np.array([[one[1] for one in row] for row in found])
    mean = np.einsum("ab,abi->i", weights, means)
    covariance = np.einsum("ab,abij->ij", weights, np.array([[one[2] for one in row] for row in found]))
    covariance += np.einsum("ab,abi,abj->ij", weights, means - mean, means - mean)
    mean, sd = problem.in_units_of_data(mean, covariance)
    noise = problem.target_unit * _median(weights.sum(axis=1), np.exp(axes[0]))
    return Reference(mean, sd, problem.evidence(float(logsumexp(logs))), noise=noise)
