"""Gaussian processes seen at pseudo-points under power EP, and their references: dense algebra, and the textbook."""

from typing import Any

import numpy as np

from partita.gp import SparseProcess, kernels, likelihoods
from partita.result import Result
from partita.studies.methods.comparisons import Comparison
from partita.studies.methods.problems import Problem, read_diabetes, read_tumours

# The power of the rows that have one in between.
POWER = 0.5
# What a function varies by, over which distances, and the noise around it.
VARIANCE, LENGTHSCALE, NOISE = 2.0, 1.0, 0.75


def process_classes() -> Problem:
    """Breast cancer from two measurements, a function seen at all 60 rows, for whole powers."""
    X, y = read_tumours(60, (1, 4))
    return Problem(_process(X, likelihoods.Probit(), 1.0), (X, y))


def sparse_classes() -> Problem:
    """The same seen at ten points, for half powers."""
    X, y = read_tumours(60, (1, 4))
    return Problem(_process(X[:10], likelihoods.Probit(), POWER), (X, y))


def sparse_regression() -> Problem:
    """Diabetes from two measurements, 100 rows and ten points, for half powers."""
    X, y = (part[:100] for part in read_diabetes((2, 8)))
    return Problem(_process(X[:10], likelihoods.Normal(NOISE), POWER), (X, y))


def _process(points: np.ndarray, likelihood: Any, power: float) -> SparseProcess:
    return SparseProcess(points, kernels.SquaredExponential(VARIANCE, LENGTHSCALE), likelihood, power=power)


def _covariance(X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """The squared exponential kernel, without Partita."""
    return VARIANCE * np.exp(-0.5 * np.sum((X[:, None] - Z) ** 2, axis=-1) / LENGTHSCALE**2)


def _compare(problem: Problem, result: Result, found: tuple[Any, ...], words: str) -> Comparison:
    """Means and variances of f at all rows, and the log evidence where it is found too, beside a reference's."""
    mean, variance, *log_evidence = found
    model: Any = problem.model
    m, v = model.latent(result.posterior, problem.data[0])
    gaps = [np.abs((m - mean) / np.sqrt(variance)).max(), np.abs(v / variance - 1).max()]
    gaps += [abs(float(result.log_evidence) - value) for value in log_evidence]
    return Comparison(float(max(gaps)), words)


def process_propagation(problem: Problem, result: Result) -> Comparison:
    """EP of the full process."""
    X, y = problem.data
    found = textbook_propagation(_covariance(X, X), 2 * y - 1)
    return _compare(problem, result, found, "largest difference to EP of the full process, as in the textbook")


def sparse_closed_form(problem: Problem, result: Result) -> Comparison:
    """Regression in closed form (Bui, Yan and Turner, 2017): as if y ~ N(0, Q + α diag(K - Q) + σ²)."""
    from scipy.stats import multivariate_normal

    model: Any = problem.model
    X, y = problem.data
    Z = model.points
    cross = _covariance(X, Z)
    Q = cross @ np.linalg.solve(_covariance(Z, Z), cross.T)
    left = np.maximum(VARIANCE - np.diag(Q), 0)
    seen = Q + np.diag(POWER * left + NOISE**2)
    log_evidence = multivariate_normal(np.zeros(len(y)), seen).logpdf(y)
    log_evidence -= 0.5 * (1 / POWER - 1) * np.sum(np.log1p(POWER * left / NOISE**2))
    mean = Q @ np.linalg.solve(seen, y)
    variance = VARIANCE - np.sum(Q * np.linalg.solve(seen, Q).T, axis=1)
    words = f"largest difference to the closed form, whose energy is {log_evidence:.3f}, in deviations and nats"
    return _compare(problem, result, (mean, variance, log_evidence), words)


def sparse_propagation(problem: Problem, result: Result) -> Comparison:
    model: Any = problem.model
    X, y = problem.data
    found = propagate_at_points(X, 2 * y - 1, model.points, POWER)
    words = f"largest difference to power EP at points, in dense algebra, with energy {found[2]:.3f}"
    return _compare(problem, result, found, words)


def textbook_propagation(K: np.ndarray, y: np.ndarray, sweeps: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of f under EP for probit classification, labels ±1: Algorithm 3.5 of Rasmussen and Williams
    (2006), site after site with updates of rank one.
    """
    from scipy.stats import norm

    n = len(y)
    shift, precision = np.zeros(n), np.zeros(n)
    S, mean = K.copy(), np.zeros(n)
    for _ in range(sweeps):
        for i in range(n):
            cavity = 1 / S[i, i] - precision[i]
            m, v = (mean[i] / S[i, i] - shift[i]) / cavity, 1 / cavity
            z = y[i] * m / np.sqrt(1 + v)
            ratio = np.exp(norm.logpdf(z) - norm.logcdf(z))
            tilted_mean = m + y[i] * v * ratio / np.sqrt(1 + v)
            tilted = v - v**2 * ratio * (z + ratio) / (1 + v)
            change = 1 / tilted - cavity - precision[i]
            precision[i] += change
            shift[i] = tilted_mean / tilted - m / v
            S -= np.outer(S[:, i], S[:, i]) * (change / (1 + change * S[i, i]))
            mean = S @ shift
        root = np.sqrt(precision)
        half = np.linalg.solve(np.linalg.cholesky(np.eye(n) + root[:, None] * K * root), root[:, None] * K)
        S = K - half.T @ half
        mean = S @ shift
    return mean, np.diag(S)


def propagate_at_points(
    X: np.ndarray, y: np.ndarray, Z: np.ndarray, power: float, sweeps: int = 30
) -> tuple[np.ndarray, np.ndarray, float]:
    """Power EP of a probit process over u = f(Z), labels ±1, with integrals over f on a grid.

    Means and variances of f at all rows, and the energy (Bui, Yan and Turner, 2017, Equation 20): factors
    exp(g wᵀu - h (wᵀu)² / 2) with w = K(Z, Z)⁻¹ k(Z, x), fitted where (q / t^α) p(f | u) p(y | f)^α is.
    """
    from scipy.special import log_ndtr

    prior = _covariance(Z, Z)
    W = np.linalg.solve(prior, _covariance(Z, X)).T
    left = np.maximum(VARIANCE - np.sum((W @ prior) * W, axis=1), 0)
    inverse = np.linalg.inv(prior)
    g, h = np.zeros(len(y)), np.zeros(len(y))
    steps = np.linspace(-12, 12, 4001)

    def posterior() -> tuple[np.ndarray, np.ndarray]:
        V = np.linalg.inv(inverse + (W.T * h) @ W)
        return V @ (W.T @ g), V

    def tilt(n: int) -> tuple[float, float, float, float, float]:
        """Mean and variance of wᵀu in q and in the tilted distribution, and the latter's share of the energy."""
        m, V = posterior()
        mean, variance = W[n] @ m, W[n] @ V @ W[n]
        precision = 1 / variance - power * h[n]
        centre, v = (mean / variance - power * g[n]) / precision, 1 / precision
        f = centre + np.sqrt(v + left[n]) * steps
        p = np.exp(power * log_ndtr(y[n] * f) - 0.5 * steps**2)
        log_z = np.log(p.sum() * (steps[1] - steps[0]) / np.sqrt(2 * np.pi))
        p /= p.sum()
        # What f is drawn to, wᵀu follows by its share of the variance of both.
        share = v / (v + left[n])
        tilted_mean = p @ f
        tilted = share**2 * (p @ (f - tilted_mean) ** 2) + v * (1 - share)
        log_z += 0.5 * (np.log(v) + centre**2 / v - np.log(variance) - mean**2 / variance)
        return mean, variance, centre + share * (tilted_mean - centre), tilted, log_z / power

    for _ in range(sweeps):
        for n in range(len(y)):
            mean, variance, tilted_mean, tilted, _ = tilt(n)
            g[n] += (tilted_mean / tilted - mean / variance) / power
            h[n] += (1 / tilted - 1 / variance) / power
    m, V = posterior()
    energy = 0.5 * (np.linalg.slogdet(V @ inverse)[1] + m @ np.linalg.solve(V, m))
    energy += sum(tilt(n)[4] for n in range(len(y)))
    return W @ m, np.sum((W @ V) * W, axis=1) + left, float(energy)
