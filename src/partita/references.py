"""Small real problems for the methods of the paper's Table 1, and what their answers are compared with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.families import Family
from partita.gp import SparseProcess, kernels, likelihoods
from partita.models import (
    AbstractModel,
    GaussianMixture,
    LatentDirichletAllocation,
    LinearRegression,
    LogisticRegression,
    ProbitRegression,
)
from partita.result import Result
from partita.run import evidence, fit
from partita.schedules import Sequential
from partita.solvers import FixedPoint

PARTS = 5


@dataclass(frozen=True)
class Problem:
    """A model, all data as one shard, and where to start if not at the prior."""

    model: AbstractModel
    data: Any
    start: Family | None = None


@dataclass(frozen=True)
class Comparison:
    """How far a method's answer is from its reference's, in which words."""

    difference: float
    words: str


def mixture() -> Problem:
    """Lengths of sepals and petals of irises, three components."""
    from sklearn.datasets import load_iris

    X = load_iris().data[:, [0, 2]]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    X = X[np.random.default_rng(0).permutation(len(X))]
    model = GaussianMixture(2, 2, concentration=0.5, strength=0.7, degrees=6.0, scale=1.5)
    return Problem(model, X, model.begin(X))


def topics() -> Problem:
    """Images of digits as documents whose words are pixels, eight topics."""
    from sklearn.datasets import load_digits

    model = LatentDirichletAllocation(8, 64, concentration=0.1, document_concentration=0.1)
    return Problem(model, load_digits().data[:400], model.begin())


def _tumours(rows: int, columns: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    X = X[:rows, list(columns)]
    return (X - X.mean(axis=0)) / X.std(axis=0), y[:rows].astype(float)


def logistic() -> Problem:
    """Breast cancer from five measurements, 150 rows."""
    return Problem(LogisticRegression(5), _tumours(150, range(5)))


def logistic_mean_field() -> Problem:
    return Problem(LogisticRegression(5, posterior="mean-field"), _tumours(150, range(5)))


def probit() -> Problem:
    """Breast cancer from two measurements without an intercept, 60 rows: small enough for a grid."""
    return Problem(ProbitRegression(2, intercept=False, prior_scale=1.5), _tumours(60, (1, 4)))


def regression() -> Problem:
    """Diabetes, ten features."""
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    return Problem(LinearRegression(10, noise=0.7), (X / X.std(axis=0), (y - y.mean()) / y.std()))


def process() -> Problem:
    """Diabetes from two measurements, a function seen at twenty points."""
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    X, y = X[:, [2, 8]] / X[:, [2, 8]].std(axis=0), (y - y.mean()) / y.std()
    points = X[np.random.default_rng(0).choice(len(X), 20, replace=False)]
    return Problem(SparseProcess(points, kernels.SquaredExponential(1.0, 1.5), likelihoods.Normal(0.75)), (X, y))


def process_classes() -> Problem:
    """Breast cancer from two measurements, a function seen at all 60 rows, for whole powers."""
    X, y = _tumours(60, (1, 4))
    return Problem(SparseProcess(X, kernels.SquaredExponential(2.0, 1.0), likelihoods.Probit(), power=1.0), (X, y))


def rows_of(data: Any) -> int:
    return len(data[0]) if isinstance(data, tuple) else len(data)


def taken(data: Any, index: Any) -> Any:
    return tuple(part[index] for part in data) if isinstance(data, tuple) else data[index]


def whole(data: Any) -> list[Any]:
    """All data at one site: global inference."""
    return [data]


def batches(data: Any) -> list[Any]:
    """A few sites, or a few moments of a stream."""
    return [taken(data, part) for part in np.array_split(np.arange(rows_of(data)), PARTS)]


def each_row(data: Any) -> list[Any]:
    """Every row is a site of its own."""
    return [taken(data, slice(i, i + 1)) for i in range(rows_of(data))]


def batch_optimum(problem: Problem, result: Result) -> Comparison:
    """Of global variational inference on all data, by fixed-point iteration until it stands."""
    best = fit(
        problem.model,
        [problem.data],
        solver=FixedPoint(steps=500, tolerance=1e-10),
        schedule=Sequential(passes=1),
        damping=1.0,
        start=problem.start,
    )
    bound = evidence(problem.model, [problem.data], result.posterior)
    return Comparison(
        float(best.log_evidence - bound), f"nats below the bound of batch inference, {best.log_evidence:.3f}"
    )


def variational_mixture(model: GaussianMixture, X: np.ndarray, seed: int = 0) -> Any:
    """scikit-learn's, with the same priors, until it stands."""
    from sklearn.mixture import BayesianGaussianMixture

    full, d = model.covariance == "full", model.features
    reference = BayesianGaussianMixture(
        n_components=model.components,
        covariance_type="full" if full else "diag",
        weight_concentration_prior_type="dirichlet_distribution",
        weight_concentration_prior=model.concentration,
        mean_precision_prior=model.strength,
        mean_prior=np.full(d, model.location),
        degrees_of_freedom_prior=model.degrees,
        covariance_prior=model.scale * (np.eye(d) if full else np.ones(d)),
        max_iter=5000,
        tol=1e-13,
        random_state=seed,
    )
    return reference.fit(X)


def scikit_learn_mixture(problem: Problem, result: Result) -> Comparison:
    model: Any = problem.model
    other = variational_mixture(model, problem.data)
    parts: Any = result.posterior
    each = parts.parts["components"].each
    ours = np.column_stack(
        [parts.parts["weights"].concentration, each.strength_times_location / each.strength[:, None]]
    )
    theirs = np.column_stack([other.weight_concentration_, other.means_])
    gap = np.abs(ours[np.argsort(ours[:, 0])] - theirs[np.argsort(theirs[:, 0])])
    return Comparison(float(gap.max()), "largest difference to weights and means of BayesianGaussianMixture")


def scikit_learn_topics(problem: Problem, result: Result) -> Comparison:
    """Its online inference after ten passes: the mean over three starts, which end 0.04 apart."""
    from sklearn.decomposition import LatentDirichletAllocation as Reference

    model: Any = problem.model
    words = problem.data.sum()
    settings = {
        "topic_word_prior": model.concentration,
        "doc_topic_prior": model.document_concentration,
        "learning_method": "online",
        "batch_size": rows_of(problem.data) // PARTS,
        "max_iter": 10,
    }
    fits = [Reference(model.topics, random_state=seed, **settings).fit(problem.data) for seed in range(3)]
    theirs = float(np.mean([one.score(problem.data) for one in fits]) / words)
    bound = evidence(model, [problem.data], result.posterior) / words
    return Comparison(
        float(theirs - bound), f"below the bound per word of scikit-learn's online inference, {theirs:.3f}"
    )


def exact_regression(problem: Problem, result: Result) -> Comparison:
    """The normal equations."""
    model: Any = problem.model
    X, y = problem.data
    A = np.column_stack([X, np.ones(len(X))])
    prior = np.diag([1 / model.prior_scale**2] * X.shape[1] + [1 / model.intercept_scale**2])
    precision = prior + A.T @ A / model.noise**2
    location = np.linalg.solve(precision, A.T @ y / model.noise**2)
    q: Any = result.posterior
    gap = max(np.abs(q.location - location).max(), np.abs(q.precision - precision).max() / precision.max())
    return Comparison(float(gap), "largest difference to the exact posterior")


def grid_moments(problem: Problem, result: Result) -> Comparison:
    """The exact posterior of two parameters, on a grid."""
    from scipy.special import log_ndtr

    model: Any = problem.model
    X, y = problem.data
    axis = np.linspace(-7, 7, 281)
    theta = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    logs = log_ndtr((theta @ X.T) * (2 * y - 1)).sum(axis=1) - 0.5 * np.sum(theta**2, axis=1) / model.prior_scale**2
    p = np.exp(logs - logs.max())
    p /= p.sum()
    mean = p @ theta
    spread = np.sqrt(p @ (theta - mean) ** 2)
    q: Any = result.posterior
    gap = max(np.abs((q.location - mean) / spread).max(), np.abs(q.scale / spread - 1).max())
    return Comparison(float(gap), "largest difference to exact means and deviations, in exact deviations")


def collapsed_bound(problem: Problem, result: Result) -> Comparison:
    """Of Titsias (2009), by dense algebra: the bound at the best posterior."""
    from scipy.stats import multivariate_normal

    model: Any = problem.model
    X, y = problem.data
    V, left = model.seen(X)
    noise = model.likelihood.noise**2
    best = multivariate_normal(np.zeros(len(y)), V @ V.T + noise * np.eye(len(y))).logpdf(y) - 0.5 * left.sum() / noise
    gap = best - evidence(model, [problem.data], result.posterior)
    return Comparison(float(gap), f"nats below the collapsed bound, {best:.3f}")


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


def process_propagation(problem: Problem, result: Result) -> Comparison:
    model: Any = problem.model
    X, y = problem.data
    kernel = model.kernel
    K = np.asarray(kernel.gram(kernel.initial(X.shape[1]), X))
    mean, variance = textbook_propagation(K, 2 * y - 1)
    m, v = model.latent(result.posterior, X)
    gap = max(np.abs((m - mean) / np.sqrt(variance)).max(), np.abs(v / variance - 1).max())
    return Comparison(float(gap), "largest difference to EP of the full process, as in the textbook")


def fixed_point_limit(problem: Problem, result: Result) -> Comparison:
    """What power EP tends to as α falls."""
    limit: Any = fit(
        problem.model, each_row(problem.data), solver=FixedPoint(), schedule=Sequential(passes=20), damping=1.0
    ).posterior
    q: Any = result.posterior
    gap = max(np.abs((q.location - limit.location) / limit.scale).max(), np.abs(q.scale / limit.scale - 1).max())
    return Comparison(float(gap), "largest difference to the fixed point of local variational inference")


Check = Callable[[Problem, Result], Comparison]
