"""What `experiments.regression_table` compares with: quadrature, NUTS and bridge sampling, none of it Partita's code.

The priors, for columns and target in units of their deviations (the target of gaussian regressions only, and centred):
coefficients N(0, prior_scale²), intercept N(0, 10²), noise half-Student-t with 3 degrees of freedom and scale 1, the
standard deviation of groups half-normal(1), the size of a negative binomial Gamma(2, 0.1).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import patsy
from jax.scipy.special import gammaln
from jax.scipy.stats import gamma, norm
from jax.scipy.stats import t as student
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS
from scipy import stats
from scipy.optimize import minimize
from scipy.special import logsumexp

from experiments.regression_sets import DataSet

INTERCEPT_SCALE = 10.0
CHAINS, DRAWS, WARM_UP = 4, 6000, 1000
# Monte Carlo error of a standard deviation, relatively, at which sampling ends.
ERROR, MOST = 0.01, 8


@dataclass(frozen=True)
class Problem:
    """A regression on pooled rows, columns in units of their deviations, and how to go back to those of the data."""

    names: tuple[str, ...]  # as patsy writes them, the intercept last
    family: str
    X: np.ndarray  # without the intercept
    y: np.ndarray
    group: np.ndarray | None
    centre: np.ndarray
    unit: np.ndarray
    target_centre: float
    target_unit: float
    prior_scale: float = 2.5

    @cached_property
    def design(self) -> np.ndarray:
        return np.column_stack([self.X, np.ones(len(self.X))])

    @property
    def scales(self) -> np.ndarray:
        """Standard deviations of coefficients under the prior."""
        return np.append(np.full(self.X.shape[1], self.prior_scale), INTERCEPT_SCALE)

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
    # Monte Carlo errors: of standard deviations, relatively, and of the log evidence.
    sd_error: float = 0.0
    evidence_error: float = 0.0
    noise: float = np.nan  # its median
    noise_variance: float = np.nan  # its mean


def standardise(X: np.ndarray, y: np.ndarray, **settings: Any) -> Problem:
    """A gaussian problem, or another: its target is left as it is."""
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
    left, right = patsy.dmatrices(data.formula, table, return_type="dataframe")
    rows = right.index.to_numpy()
    X = right.drop(columns="Intercept")
    group = None if data.group is None else np.unique(table[data.group].to_numpy()[rows], return_inverse=True)[1]
    names = (*X.columns, "Intercept")
    return standardise(X.to_numpy(), left.to_numpy()[:, -1], family=data.family, names=names, group=group), rows


# Exact: given the noise (and the spread of groups) all else is Gaussian, and these are integrated on a grid.


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
    """By quadrature over log σ of N(y; 0, XSXᵀ + σ²I), through the singular values of XS^½."""
    U, s, Vt = np.linalg.svd(problem.design * problem.scales, full_matrices=False)
    fit = U.T @ problem.y
    rest = float(np.sum((problem.y - U @ fit) ** 2))
    n, k = len(problem.y), len(s)

    def log_density(log_noise: np.ndarray) -> np.ndarray:
        v = np.exp(2 * log_noise)[:, None]
        quadratic = rest / v[:, 0] + np.sum(fit**2 / (s**2 + v), axis=1)
        log_det = 2 * (n - k) * log_noise + np.sum(np.log(s**2 + v), axis=1)
        return -0.5 * (quadratic + log_det + n * np.log(2 * np.pi)) + _log_prior_of_noise(log_noise)

    points, logs = integrate(log_density, -40.0, 15.0)
    weights = np.exp(logs - logsumexp(logs))
    v = np.exp(2 * points)[:, None]
    given = s * fit / (s**2 + v)  # of the coefficients along Vt, for each noise
    mean = weights @ given
    off = given - mean
    covariance = (off * weights[:, None]).T @ off + np.diag(weights @ (v / (s**2 + v)))
    A = problem.scales[:, None] * Vt.T
    mean, sd = problem.in_units_of_data(A @ mean, A @ covariance @ A.T)
    noise = problem.target_unit * float(np.exp(np.interp(0.5, np.cumsum(weights), points)))
    variance = problem.target_unit**2 * float(weights @ v[:, 0])
    return Reference(mean, sd, problem.evidence(float(logsumexp(logs))), noise=noise, noise_variance=variance)


def _log_prior_of_noise(log_noise: Any) -> Any:
    """Half-Student-t(3), with the Jacobian of the logarithm."""
    return np.log(2) + stats.t.logpdf(np.exp(log_noise), 3) + log_noise


def exact_grouped(problem: Problem, points: int = 81) -> Reference:
    """By quadrature over log σ and the logarithm of the spread of groups."""
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
        axes = [np.linspace(*side, points) for side in box]
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
    middle = np.interp(0.5, np.cumsum(weights.sum(axis=1)), axes[0])
    return Reference(mean, sd, problem.evidence(float(logsumexp(logs))), noise=problem.target_unit * np.exp(middle))


# Sampled: one density over a flat vector (coefficients, then logarithms of what is positive, then groups).


def log_joint(problem: Problem) -> tuple[Callable[[Any], Any], int]:
    """The logarithm of prior times likelihood, with Jacobians, and the size of the vector."""
    scales, k = jnp.asarray(problem.scales), len(problem.scales)
    X, y, groups = jnp.asarray(problem.design), jnp.asarray(problem.y), problem.group
    gram, cross, square, n = X.T @ X, X.T @ y, y @ y, len(problem.y)

    def gaussian(z: Any) -> Any:
        """From sums over rows alone, so that many rows cost nothing."""
        w, log_noise = z[:k], z[k]
        residual = square - 2 * w @ cross + w @ gram @ w
        fit = -0.5 * residual * jnp.exp(-2 * log_noise) - n * (log_noise + 0.5 * jnp.log(2 * jnp.pi))
        return fit + _log_half_t(log_noise)

    def grouped(z: Any) -> Any:
        w, log_noise, log_spread, own = z[:k], z[k], z[k + 1], z[k + 2 :]
        f = X @ w + jnp.exp(log_spread) * own[groups]
        prior = norm.logpdf(jnp.exp(log_spread)) + jnp.log(2) + log_spread + norm.logpdf(own).sum()
        return norm.logpdf(y, f, jnp.exp(log_noise)).sum() + _log_half_t(log_noise) + prior

    def bernoulli(z: Any) -> Any:
        f = X @ z
        return jnp.sum(y * f - jax.nn.softplus(f))

    def poisson(z: Any) -> Any:
        f = X @ z
        return jnp.sum(y * f - jnp.exp(f) - gammaln(y + 1))

    def negative_binomial(z: Any) -> Any:
        f, size = X @ z[:k], jnp.exp(z[k])
        total = jnp.log(size + jnp.exp(f))
        seen = gammaln(y + size) - gammaln(size) - gammaln(y + 1) + size * (z[k] - total) + y * (f - total)
        return seen.sum() + gamma.logpdf(size, 2, scale=10) + z[k]

    kind = "grouped" if groups is not None else problem.family
    extra = {"gaussian": 1, "negative binomial": 1, "grouped": 2 + (0 if groups is None else int(groups.max()) + 1)}
    likelihoods = {
        "gaussian": gaussian, "grouped": grouped, "bernoulli": bernoulli, "poisson": poisson,
        "negative binomial": negative_binomial,
    }  # fmt: skip
    return (
        lambda z: norm.logpdf(z[:k], 0, scales).sum() + likelihoods[kind](z),
        k + extra.get(kind, 0),
    )


def _log_half_t(log_noise: Any) -> Any:
    return jnp.log(2) + student.logpdf(jnp.exp(log_noise), 3) + log_noise


def whiten(density: Callable[[Any], Any], start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mode m, and L with LLᵀ the inverse Hessian there: samplers work on u of z = m + Lu."""
    value = jax.jit(jax.value_and_grad(lambda z: -density(z)))
    hessian = jax.jit(jax.hessian(lambda z: -density(z)))
    found = minimize(
        lambda z: tuple(map(np.asarray, value(z))), start, jac=True, method="trust-exact",
        hess=lambda z: np.asarray(hessian(z)), options={"gtol": 1e-6, "maxiter": 2000},
    )  # fmt: skip
    values, vectors = np.linalg.eigh(np.asarray(hessian(found.x)))
    return found.x, vectors / np.sqrt(np.maximum(values, 1e-3 * np.median(np.abs(values))))


def sample(problem: Problem, chains: int = CHAINS, draws: int = DRAWS, error: float = ERROR) -> Reference:
    """NUTS in float64 until standard deviations are known to `error`; the evidence by a bridge from its draws."""
    with jax.enable_x64(True):
        density, size = log_joint(problem)
        start = np.zeros(size)
        if problem.family in ("poisson", "negative binomial"):
            start[len(problem.scales) - 1] = np.log(max(problem.y.mean(), 0.1))
        mode, L = whiten(density, start)
        log_scale = float(np.linalg.slogdet(L)[1])

        def whitened(u: Any) -> Any:
            return density(mode + L @ u) + log_scale

        kernel = NUTS(potential_fn=lambda u: -whitened(u), dense_mass=True, target_accept_prob=0.9)
        chain = MCMC(
            kernel, num_warmup=WARM_UP, num_samples=draws, num_chains=chains, chain_method="vectorized",
            progress_bar=False,
        )  # fmt: skip
        keys = jax.random.split(jax.random.key(1), MOST)
        chain.run(keys[0], init_params=0.1 * jax.random.normal(keys[0], (chains, size)))
        drawn = [np.asarray(chain.get_samples(group_by_chain=True))]
        while _worst_error(problem, _to_data(problem, drawn, mode, L)) > error and len(drawn) < MOST:
            chain.post_warmup_state = chain.last_state
            chain.run(keys[len(drawn)])
            drawn.append(np.asarray(chain.get_samples(group_by_chain=True)))
        beta, u = _to_data(problem, drawn, mode, L), np.concatenate(drawn, axis=1)
        evidence, evidence_error = bridge(jax.jit(jax.vmap(whitened)), u)
    flat = beta.reshape(-1, beta.shape[-1])
    return Reference(
        flat.mean(axis=0), flat.std(axis=0), problem.evidence(evidence), _worst_error(problem, beta), evidence_error,
        noise=_median_noise(problem, u, mode, L),
    )  # fmt: skip


def _to_data(problem: Problem, drawn: list[np.ndarray], mode: np.ndarray, L: np.ndarray) -> np.ndarray:
    """Draws of coefficients in the units of the data: chains, draws, coefficients."""
    k = len(problem.scales)
    theta = mode[:k] + np.concatenate(drawn, axis=1) @ L[:k].T
    beta = theta @ problem.back.T
    beta[..., -1] += problem.target_centre
    return beta


def _median_noise(problem: Problem, u: np.ndarray, mode: np.ndarray, L: np.ndarray) -> float:
    if problem.family != "gaussian":
        return float("nan")
    k = len(problem.scales)
    return problem.target_unit * float(np.exp(mode[k] + np.median(u @ L[k])))


def _worst_error(problem: Problem, beta: np.ndarray) -> float:
    """The largest relative Monte Carlo error of a standard deviation."""
    squares = (beta - beta.mean(axis=(0, 1))) ** 2
    squares = squares / squares.mean(axis=(0, 1))
    size = effective_sample_size(squares)
    return float(np.max(0.5 * squares.std(axis=(0, 1)) / np.sqrt(size)))


def bridge(log_density: Callable[[Any], Any], draws: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """log ∫ p by Meng and Wong's (1996) iterative bridge to a Gaussian, and its standard error over chains.

    The Gaussian for the draws of one chain has the moments of the others, so that it does not depend on them.
    """
    estimates = []
    rng = np.random.default_rng(seed)
    for number, own in enumerate(draws):
        others = np.concatenate([draws[i] for i in range(len(draws)) if i != number])
        proposal = stats.multivariate_normal(others.mean(axis=0), np.cov(others, rowvar=False))
        proposed = proposal.rvs(len(own), random_state=rng).reshape(own.shape)
        own_ratio, new_ratio = (np.asarray(log_density(z)) - proposal.logpdf(z) for z in (own, proposed))
        share = effective_sample_size(own[None, :, :]).min() / len(own)
        estimates.append(_meng_wong(own_ratio, new_ratio, min(float(share), 1.0)))
    return float(np.mean(estimates)), float(np.std(estimates, ddof=1) / np.sqrt(len(estimates)))


def _meng_wong(own: np.ndarray, new: np.ndarray, share: float) -> float:
    """The fixed point, from log p/g at draws of p and of g; draws of p count by their effective share."""
    shift = float(np.median(own))
    l1, l2 = own - shift, new - shift
    s1 = share / (1 + share)
    log_r = 0.0
    for _ in range(1000):
        bottom = partial(np.logaddexp, np.log(1 - s1) + log_r)
        above = logsumexp(l2 - bottom(np.log(s1) + l2)) - np.log(len(l2))
        below = logsumexp(-bottom(np.log(s1) + l1)) - np.log(len(l1))
        before, log_r = log_r, above - below
        if abs(log_r - before) < 1e-10:
            break
    return log_r + shift
