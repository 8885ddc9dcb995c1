"""Small real problems for the methods of the paper's Table 1, and what their answers are compared with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.expectations import MonteCarlo
from partita.families import Family, Gaussian, MeanField
from partita.gp import SparseProcess, kernels, likelihoods
from partita.models import (
    AbstractModel,
    GaussianMixture,
    HeteroscedasticRegression,
    LatentDirichletAllocation,
    LinearRegression,
    LogisticRegression,
    Model,
    ProbitRegression,
    prior_of,
)
from partita.result import Result
from partita.run import evidence, fit
from partita.runtime import precision
from partita.schedules import Sequential
from partita.solvers import FixedPoint, Gradient, MomentMatching

PARTS = 5
# Of incremental inference of topics, and of batch inference that it is compared with.
TOPIC_PASSES = 20
# Of natural and plain gradients that are compared.
ASCENT_STEPS = 200


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
    X = _irises((0, 2))
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


def _diabetes(columns: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    X = X[:, list(columns)]
    return X / X.std(axis=0), (y - y.mean()) / y.std()


def _irises(columns: Sequence[int]) -> np.ndarray:
    from sklearn.datasets import load_iris

    X = load_iris().data[:, list(columns)]
    return (X - X.mean(axis=0)) / X.std(axis=0)


def logistic() -> Problem:
    """Breast cancer from five measurements, 150 rows."""
    return Problem(LogisticRegression(5), _tumours(150, range(5)))


def logistic_mean_field() -> Problem:
    return Problem(LogisticRegression(5, posterior="mean-field"), _tumours(150, range(5)))


def logistic_narrow() -> Problem:
    """The same with a narrow prior of the intercept too, as linearised steps need it."""
    return Problem(LogisticRegression(5, posterior="mean-field", intercept_scale=1.0), _tumours(150, range(5)))


def probit() -> Problem:
    """Breast cancer from two measurements without an intercept, 60 rows: small enough for a grid."""
    return Problem(ProbitRegression(2, intercept=False, prior_scale=1.5), _tumours(60, (1, 4)))


def regression() -> Problem:
    """Diabetes, ten features."""
    return Problem(LinearRegression(10, noise=0.7), _diabetes(range(10)))


def heteroscedastic() -> Problem:
    """Diabetes from two measurements, whose noise may depend on them."""
    return Problem(HeteroscedasticRegression(2, intercept_scale=2.0), _diabetes((2, 8)))


def cities() -> Problem:
    """Deaths from stomach cancer in 20 cities of Missouri (Tsutakawa et al., 1985): a beta-binomial model of rates,
    over the logit of their mean and the logarithm of their prior's size.
    """
    import jax
    import jax.numpy as jnp
    from jax.scipy.special import betaln

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
    X, y = _diabetes((2, 8))
    points = X[np.random.default_rng(0).choice(len(X), 20, replace=False)]
    return Problem(SparseProcess(points, kernels.SquaredExponential(1.0, 1.5), likelihoods.Normal(0.75)), (X, y))


def process_classes() -> Problem:
    """Breast cancer from two measurements, a function seen at all 60 rows, for whole powers."""
    X, y = _tumours(60, (1, 4))
    return Problem(SparseProcess(X, kernels.SquaredExponential(2.0, 1.0), likelihoods.Probit(), power=1.0), (X, y))


def process_means() -> Problem:
    """The same with twenty points, for variational inference."""
    X, y = _tumours(60, (1, 4))
    return Problem(SparseProcess(X[:20], kernels.SquaredExponential(2.0, 1.0), likelihoods.Probit()), (X, y))


def factor_analysis() -> Problem:
    """Irises from two latent numbers each, through a small network: non-linear factor analysis."""
    import jax.numpy as jnp

    X = _irises(range(4))
    shapes = {"latent": (len(X), 2), "first": (2, 6), "bias": (6,), "second": (6, 4), "level": (4,)}

    def log_prob(params: Any, rows: Any) -> Any:
        number, x = rows
        hidden = jnp.tanh(params["latent"][number] @ params["first"] + params["bias"])
        gap = (x - hidden @ params["second"] - params["level"]) / 0.4
        return jnp.sum(-0.5 * gap**2 - np.log(0.4 * np.sqrt(2 * np.pi)), axis=1)

    prior = MeanField.from_moments({name: np.zeros(shape) for name, shape in shapes.items()}, 1.0)
    generator = np.random.default_rng(0)
    start = MeanField.from_moments({name: 0.3 * generator.normal(size=shape) for name, shape in shapes.items()}, 0.3)
    return Problem(Model(prior, log_prob), (np.arange(len(X)), X), start)


def unknown_noise() -> Problem:
    """Diabetes from four measurements, with a noise of unknown size: σ = exp(z), z ~ N(0, 1)."""
    import jax.numpy as jnp

    X, y = _diabetes(range(2, 6))

    def log_prob(params: Any, rows: Any) -> Any:
        X, y = rows
        noise = jnp.exp(params[4])
        return -0.5 * ((y - X @ params[:4]) / noise) ** 2 - jnp.log(noise * np.sqrt(2 * np.pi))

    start = MeanField.from_moments(np.zeros(5), 0.1)
    return Problem(Model(MeanField.from_moments(np.zeros(5), 1.0), log_prob), (X, y), start)


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


def batch_topics(problem: Problem, result: Result) -> Comparison:
    """Batch inference from the same start, as many passes."""
    words = problem.data.sum()
    batch = fit(
        problem.model,
        [problem.data],
        solver=FixedPoint(step_size=1.0),
        schedule=Sequential(TOPIC_PASSES),
        damping=1.0,
        start=problem.start,
    )
    theirs, ours = (evidence(problem.model, [problem.data], one.posterior) / words for one in (batch, result))
    return Comparison(float(theirs - ours), f"below the bound per word of batch inference, {theirs:.4f}")


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
    """The exact posterior of two weights of a probit regression, on a grid."""
    from scipy.special import log_ndtr

    model: Any = problem.model
    X, y = problem.data
    theta = _grid(np.linspace(-7, 7, 281), np.linspace(-7, 7, 281))
    logs = log_ndtr((theta @ X.T) * (2 * y - 1)).sum(axis=1) - 0.5 * np.sum(theta**2, axis=1) / model.prior_scale**2
    return _from_grid(theta, logs, result)


def grid_rates(problem: Problem, result: Result) -> Comparison:
    """The exact posterior of a beta-binomial model, on a grid."""
    from scipy.special import betaln, expit

    y, n = problem.data
    theta = _grid(np.linspace(-10, -4, 201), np.linspace(0, 18, 301))
    prior: Any = result.prior
    size = np.exp(theta[:, 1:])
    a, b = expit(theta[:, :1]) * size, expit(-theta[:, :1]) * size
    logs = np.sum(betaln(a + y, b + n - y) - betaln(a, b), axis=1)
    return _from_grid(theta, logs - 0.5 * np.sum(((theta - prior.location) / prior.scale) ** 2, axis=1), result)


def _grid(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.stack(np.meshgrid(first, second, indexing="ij"), axis=-1).reshape(-1, 2)


def _from_grid(theta: np.ndarray, logs: np.ndarray, result: Result) -> Comparison:
    p = np.exp(logs - logs.max())
    p /= p.sum()
    mean = p @ theta
    spread = np.sqrt(p @ (theta - mean) ** 2)
    words = "largest difference to exact means and deviations, in exact deviations"
    return Comparison(_distance(result.posterior, mean, spread), words)


def _distance(q: Any, mean: np.ndarray, spread: np.ndarray) -> float:
    """Of a Gaussian from other moments: of means in deviations, and of deviations relative to the others."""
    return float(max(np.abs((q.location - mean) / spread).max(), np.abs(q.scale / spread - 1).max()))


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


def gradient_optimum(problem: Problem, result: Result) -> Comparison:
    """Of the same bound, by quasi-Newton steps over means and covariances."""
    solver = Gradient("lbfgs", epochs=500, tolerance=1e-9)
    best = fit(problem.model, [problem.data], solver=solver, schedule=Sequential(1), damping=1.0)
    found: Any = best.posterior
    words = f"from the optimum that L-BFGS finds, whose bound is {best.log_evidence:.3f}"
    return Comparison(_distance(result.posterior, found.location, found.scale), words)


def steepest_ascent(problem: Problem, result: Result) -> Comparison:
    """Plain gradients, as many steps, the best of three rates."""
    bounds = [
        evidence(problem.model, [problem.data], posterior, expectation=MonteCarlo(400))
        for posterior in (
            result.posterior,
            *(
                fit(
                    problem.model,
                    [problem.data],
                    solver=Gradient("sgd", rate, steps=ASCENT_STEPS, tolerance=0.0),
                    schedule=Sequential(1),
                    damping=1.0,
                    start=problem.start,
                ).posterior
                for rate in (0.0003, 0.0006, 0.001)
            ),
        )
    ]
    best = np.nanmax(bounds[1:])
    return Comparison(float(best - bounds[0]), f"nats that plain gradients are ahead after as many steps, {best:.1f}")


def automatic_guide(problem: Problem, result: Result) -> Comparison:
    """NumPyro's stochastic variational inference of the same model, written with constraints, and AutoNormal."""
    import jax
    import numpyro
    from numpyro import distributions
    from numpyro.infer import SVI, Trace_ELBO, autoguide

    X, y = problem.data

    def model() -> None:
        weights = numpyro.sample("weights", distributions.Normal(0, 1).expand([X.shape[1]]).to_event(1))
        noise = numpyro.sample("noise", distributions.LogNormal(0, 1))
        numpyro.sample("y", distributions.Normal(X @ weights, noise), obs=y)

    with precision(np.float64):
        guide = autoguide.AutoNormal(model)
        svi = SVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO(num_particles=20))
        run = svi.run(jax.random.key(0), 3000, progress_bar=False)
        theirs = -float(Trace_ELBO(num_particles=20000).loss(jax.random.key(1), run.params, model, guide))
    ours = evidence(problem.model, [problem.data], result.posterior, expectation=MonteCarlo(20000))
    return Comparison(abs(ours - theirs), f"nats from the bound of NumPyro's AutoNormal, {theirs:.2f}")


def power_fixed_point(problem: Problem, result: Result) -> Comparison:
    """Of power EP with the same α, which moment matching finds."""
    limit: Any = fit(
        problem.model, each_row(problem.data), solver=MomentMatching(0.5), schedule=Sequential(20), damping=1.0
    ).posterior
    return Comparison(
        _distance(result.posterior, limit.location, limit.scale), "largest difference to the fixed point of power EP"
    )


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


def sampled(problem: Problem, result: Result) -> Comparison:
    """Moments from 8,000 draws of the No-U-Turn Sampler, by NumPyro."""
    import jax
    from numpyro.infer import MCMC, NUTS

    model: Any = problem.model
    prior: Any = prior_of(model, model.hyper)
    shard = model.shard(0, problem.data)

    def energy(params: Any) -> Any:
        z = prior.precision @ (params - prior.location)
        return 0.5 * (params - prior.location) @ z - model.log_prob(params, shard.data, model.hyper)[: shard.rows].sum()

    with precision(np.float64):
        sampler = MCMC(NUTS(potential_fn=energy), num_warmup=1000, num_samples=8000, progress_bar=False)
        sampler.run(jax.random.key(0), init_params=prior.location)
        draws = np.asarray(sampler.get_samples())
    words = "largest difference to means and deviations of NUTS, in its deviations"
    return Comparison(_distance(result.posterior, draws.mean(axis=0), draws.std(axis=0)), words)


def fixed_point_limit(problem: Problem, result: Result) -> Comparison:
    """What power EP tends to as α falls."""
    limit: Any = fit(
        problem.model, each_row(problem.data), solver=FixedPoint(), schedule=Sequential(passes=20), damping=1.0
    ).posterior
    words = "largest difference to the fixed point of local variational inference"
    return Comparison(_distance(result.posterior, limit.location, limit.scale), words)


Check = Callable[[Problem, Result], Comparison]
