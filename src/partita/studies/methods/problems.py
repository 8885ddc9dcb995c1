"""Small real problems for the methods of the paper's Table 1, and ways to part their data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln

from partita.datasets import load, load_table, standardised
from partita.families import Family, Gamma, Gaussian, MeanField
from partita.gp import SparseProcess, kernels, likelihoods
from partita.models import (
    AbstractModel,
    GaussianMixture,
    HeteroscedasticRegression,
    LatentDirichletAllocation,
    LinearRegression,
    LogisticRegression,
    Model,
    PoissonFactorisation,
    ProbitRegression,
    RobustRegression,
)

PARTS = 5


@dataclass(frozen=True)
class Problem:
    """A model, all data as one shard, and where to start if not at the prior."""

    model: AbstractModel
    data: Any
    start: Family | None = None


def mixture() -> Problem:
    """Lengths of sepals and petals of irises, three components."""
    X = standardise_irises((0, 2))
    X = X[np.random.default_rng(0).permutation(len(X))]
    model = GaussianMixture(2, 2, concentration=0.5, strength=0.7, degrees=6.0, scale=1.5)
    return Problem(model, X, model.begin(X))


def topics() -> Problem:
    """Images of digits as documents whose words are pixels, eight topics."""
    model = LatentDirichletAllocation(8, 64, concentration=0.1, document_concentration=0.1)
    return Problem(model, load("digits")[0][:400], model.begin())


def read_tumours(rows: int, columns: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    X, y = load("breast-cancer")
    return standardised(X[:rows, list(columns)]), y[:rows].astype(float)


def read_diabetes(columns: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    X, y = load("diabetes")
    X = X[:, list(columns)]
    return X / X.std(axis=0), standardised(y)


def standardise_irises(columns: Sequence[int]) -> np.ndarray:
    from sklearn.datasets import load_iris

    return standardised(load_iris().data[:, list(columns)])


def logistic() -> Problem:
    """Breast cancer from five measurements, 150 rows."""
    return Problem(LogisticRegression(5), read_tumours(150, range(5)))


def logistic_mean_field() -> Problem:
    return Problem(LogisticRegression(5, posterior="mean-field"), read_tumours(150, range(5)))


def logistic_narrow() -> Problem:
    """The same with a narrow prior of the intercept too, as linearised steps need it."""
    return Problem(LogisticRegression(5, posterior="mean-field", intercept_scale=1.0), read_tumours(150, range(5)))


def probit() -> Problem:
    """Breast cancer from two measurements without an intercept, 60 rows: small enough for a grid."""
    return Problem(ProbitRegression(2, intercept=False, prior_scale=1.5), read_tumours(60, (1, 4)))


def regression() -> Problem:
    """Diabetes, ten features."""
    return Problem(LinearRegression(10, noise=0.7), read_diabetes(range(10)))


def heteroscedastic() -> Problem:
    """Diabetes from two measurements, whose noise may depend on them."""
    return Problem(HeteroscedasticRegression(2, intercept_scale=2.0), read_diabetes((2, 8)))


def outliers() -> Problem:
    """Twenty rows of diabetes, two measurements, noise with tails so heavy that rows disagree."""
    X, y = read_diabetes((2, 8))
    some = np.random.default_rng(3).choice(len(X), 20, replace=False)
    return Problem(RobustRegression(2, intercept=False, noise=0.2, degrees=1.0), (X[some], y[some]))


def cities() -> Problem:
    """Deaths from stomach cancer in 20 cities of Missouri (Tsutakawa et al., 1985): a beta-binomial model of rates,
    over the logit of their mean and the logarithm of their prior's size.
    """
    deaths = [0, 0, 2, 0, 1, 1, 0, 2, 1, 3, 0, 1, 1, 1, 54, 0, 0, 1, 3, 0]
    people = [1083, 855, 3461, 657, 1208, 1025, 527, 1668, 583, 582]
    people += [917, 857, 680, 917, 53637, 874, 395, 581, 588, 383]

    def log_prob(params: Any, rows: Any) -> Any:
        y, n = rows
        mean, size = jax.nn.sigmoid(params[0]), jnp.exp(params[1])
        a, b = mean * size, (1 - mean) * size
        return betaln(a + y, b + n - y) - betaln(a, b)

    prior = Gaussian.from_moments(np.array([-7.0, 7.0]), np.diag([1.0, 2.0]) ** 2)
    return Problem(Model(prior, log_prob), (np.array(deaths, float), np.array(people, float)))


def process() -> Problem:
    """Diabetes from two measurements, a function seen at twenty points."""
    X, y = read_diabetes((2, 8))
    points = X[np.random.default_rng(0).choice(len(X), 20, replace=False)]
    return Problem(SparseProcess(points, kernels.SquaredExponential(1.0, 1.5), likelihoods.Normal(0.75)), (X, y))


def process_means() -> Problem:
    """Breast cancer from two measurements, a function seen at twenty of 60 rows."""
    X, y = read_tumours(60, (1, 4))
    return Problem(SparseProcess(X[:20], kernels.SquaredExponential(2.0, 1.0), likelihoods.Probit()), (X, y))


def factor_analysis() -> Problem:
    """Irises from two latent numbers each, through a small network: non-linear factor analysis."""
    X = standardise_irises(range(4))
    shapes = {"latent": (len(X), 2), "first": (2, 6), "bias": (6,), "second": (6, 4), "level": (4,)}

    def log_prob(params: Any, rows: Any) -> Any:
        number, x = rows
        hidden = jnp.tanh(params["latent"][number] @ params["first"] + params["bias"])
        gap = (x - hidden @ params["second"] - params["level"]) / 0.4
        return jnp.sum(-0.5 * gap**2 - np.log(0.4 * np.sqrt(2 * np.pi)), axis=1)

    start = _standard(shapes, 0.3, np.random.default_rng(0))
    return Problem(Model(_standard(shapes), log_prob), (np.arange(len(X)), X), start)


def state_space() -> Problem:
    """How iris after iris differs, as if they came in time: states that a small network moves, seen through another."""
    X = standardise_irises(range(4))[::3]
    shapes = {"state": (len(X), 2), "move": (2, 4), "back": (4, 2), "first": (2, 6), "second": (6, 4), "level": (4,)}

    def log_prob(params: Any, rows: Any) -> Any:
        number, x = rows
        state, before = params["state"][number], params["state"][jnp.maximum(number - 1, 0)]
        step = before + jnp.tanh(before @ params["move"]) @ params["back"]
        gap = (x - jnp.tanh(state @ params["first"]) @ params["second"] - params["level"]) / 0.4
        moved = jnp.where(number[:, None] > 0, (state - step) / 0.3, 0.0)
        return -0.5 * (jnp.sum(gap**2, axis=1) + jnp.sum(moved**2, axis=1))

    start = _standard(shapes, 0.3, np.random.default_rng(0))
    return Problem(Model(_standard(shapes), log_prob), (np.arange(len(X)), X), start)


def _standard(
    shapes: dict[str, tuple[int, ...]], scale: float = 1.0, generator: np.random.Generator | None = None
) -> MeanField:
    """Independent numbers around zero, or around random ones of that scale."""
    centres = {name: np.zeros(shape) for name, shape in shapes.items()}
    if generator is not None:
        centres = {name: scale * generator.normal(size=shape) for name, shape in shapes.items()}
    return MeanField.from_moments(centres, scale)


def volatility() -> Problem:
    """How much the dollar moved against the mark on 150 days (Garch): a log variance that reverts to its mean, at all
    days.
    """
    y = 100 * load_table("Garch")["ddm"][-150:]
    days = np.arange(150.0)[:, None]
    process = SparseProcess(days, kernels.Matern12(0.8, 20.0), likelihoods.Volatility(float(y.std())))
    return Problem(process, (days, y))


def counts() -> Problem:
    """Images of digits as counts, six patterns."""
    model = PoissonFactorisation(64, 6)
    return Problem(model, load("digits")[0][:200], model.begin())


def gamma_factors() -> Problem:
    """Irises as sums of two patterns with weights that are never negative: gamma factors, seen with normal noise."""
    from sklearn.datasets import load_iris

    X = load_iris().data[::7]
    rows, patterns = len(X), 2

    def log_prob(params: Any, data: Any) -> Any:
        number, x = data
        weights, shapes = params[: rows * patterns].reshape(rows, patterns), params[rows * patterns :]
        gap = (x - weights[number] @ shapes.reshape(patterns, -1)) / 0.3
        return jnp.sum(-0.5 * gap**2 - np.log(0.3 * np.sqrt(2 * np.pi)), axis=1)

    size = patterns * (rows + X.shape[1])
    prior = Gamma.from_shape_rate(np.full(size, 1.0), np.full(size, 0.5))
    drawn = np.random.default_rng(0).gamma(20.0, 1 / 20.0, size)
    return Problem(Model(prior, log_prob), (np.arange(rows), X), Gamma.from_shape_rate(20 * drawn, np.full(size, 20.0)))


def unknown_noise() -> Problem:
    """Diabetes from four measurements, with a noise of unknown size: σ = exp(z), z ~ N(0, 1)."""
    X, y = read_diabetes(range(2, 6))

    def log_prob(params: Any, rows: Any) -> Any:
        X, y = rows
        noise = jnp.exp(params[4])
        return -0.5 * ((y - X @ params[:4]) / noise) ** 2 - jnp.log(noise * np.sqrt(2 * np.pi))

    start = MeanField.from_moments(np.zeros(5), 0.1)
    return Problem(Model(MeanField.from_moments(np.zeros(5), 1.0), log_prob), (X, y), start)


def rows_of(data: Any) -> int:
    return len(data[0]) if isinstance(data, tuple) else len(data)


def take(data: Any, index: Any) -> Any:
    return jax.tree.map(lambda part: part[index], data)


def whole(data: Any) -> list[Any]:
    """One site with all data: global inference."""
    return [data]


def batches(data: Any) -> list[Any]:
    """A few sites, or a few moments of a stream."""
    return [take(data, part) for part in np.array_split(np.arange(rows_of(data)), PARTS)]


def each_group(data: Any) -> list[Any]:
    """Everybody whose rows are several is a site: who that is comes second."""
    return [take(data, data[1] == who) for who in np.unique(data[1])]


def each_row(data: Any) -> list[Any]:
    """Every row is a site of its own."""
    return [take(data, slice(i, i + 1)) for i in range(rows_of(data))]
