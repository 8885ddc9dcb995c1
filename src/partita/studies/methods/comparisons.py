"""What the answers of the methods of the paper's Table 1 are compared with."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from partita.expectations import MonteCarlo
from partita.fitting import evidence, fit
from partita.foundation.runtime import precision
from partita.models import GaussianMixture, prior_of
from partita.result import Result
from partita.server.schedules import Sequential
from partita.solvers import FixedPoint, Gradient, MomentMatching, Solver
from partita.studies.documents import compare_moments
from partita.studies.methods.problems import PARTS, Problem, each_row, rows_of
from partita.studies.nuts import Plan, import_numpyro, sample_density

# Incremental inference of topics, and the batch inference that it is compared with, take so many passes.
TOPIC_PASSES = 20
# Natural gradients, and the plain ones that they are compared with, take so many steps.
ASCENT_STEPS = 200
# Conjugate-computation inference, and the gradients that it is compared with, take so many passes.
GRADIENT_PASSES = 40
# These are numbers of NumPy's, so that solvers with different rates share one compiled program.
RATES = np.array([0.1, 0.3, 0.5, 1.0])


@dataclass(frozen=True)
class Comparison:
    """How far a method's answer is from its reference's, in which words."""

    difference: float
    words: str


Check = Callable[[Problem, Result], Comparison]


def fit_pooled(problem: Problem, solver: Solver, passes: int = 1) -> Result:
    """What a solver finds on all data at once, from where the problem starts."""
    return fit(
        problem.model,
        [problem.data],
        solver=solver,
        schedule=Sequential(passes),
        damping=1.0,
        start=problem.start,
    )


def fit_rows(problem: Problem, solver: Solver) -> Result:
    """What a solver finds row by row, in twenty passes."""
    return fit(problem.model, each_row(problem.data), solver=solver, schedule=Sequential(20), damping=1.0)


def batch_optimum(problem: Problem, result: Result) -> Comparison:
    """The optimum of global variational inference on all data, by fixed-point iteration until it stands."""
    best = fit_pooled(problem, FixedPoint(steps=500, tolerance=1e-10))
    bound = evidence(problem.model, [problem.data], result.posterior)
    return Comparison(
        float(best.log_evidence - bound), f"nats below the bound of batch inference, {best.log_evidence:.3f}"
    )


def variational_mixture(model: GaussianMixture, X: np.ndarray, seed: int = 0) -> Any:
    """The mixture that scikit-learn finds with the same priors, once it stands."""
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
    """Online inference by scikit-learn after ten passes: the mean over three starts, which end 0.04 apart."""
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
    batch = fit_pooled(problem, FixedPoint(step_size=1.0), TOPIC_PASSES)
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


def _between(result: Result, reference: Result, words: str) -> Comparison:
    """How far the posterior of a result is from that of another."""
    found: Any = reference.posterior
    return Comparison(_distance(result.posterior, found.location, found.scale), words)


def _distance(q: Any, mean: np.ndarray, spread: np.ndarray) -> float:
    """How far a Gaussian is from other moments: means in deviations, and deviations relative to the others."""
    gap = compare_moments(q.location, q.scale, mean, spread)
    return float(max(gap.means.max(), np.abs(gap.ratios - 1).max()))


def collapsed_bound(problem: Problem, result: Result) -> Comparison:
    """The bound of Titsias (2009) at the best posterior, by dense algebra."""
    from scipy.stats import multivariate_normal

    model: Any = problem.model
    X, y = problem.data
    V, left = model.project_rows(X)
    noise = model.likelihood.noise**2
    best = multivariate_normal(np.zeros(len(y)), V @ V.T + noise * np.eye(len(y))).logpdf(y) - 0.5 * left.sum() / noise
    gap = best - evidence(model, [problem.data], result.posterior)
    return Comparison(float(gap), f"nats below the collapsed bound, {best:.3f}")


def gradient_optimum(problem: Problem, result: Result) -> Comparison:
    """The optimum of the same bound, by quasi-Newton steps over means and covariances."""
    best = fit_pooled(replace(problem, start=None), Gradient("lbfgs", epochs=500, tolerance=1e-9))
    words = f"from the optimum that L-BFGS finds, whose bound is {best.log_evidence:.3f}"
    return _between(result, best, words)


def steepest_ascent(problem: Problem, result: Result) -> Comparison:
    """Plain gradients, as many steps, the best of four rates."""
    posteriors = [result.posterior]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a rate that is too large ends in values that are not finite
        for rate in RATES / 500:
            solver = Gradient("sgd", rate, steps=ASCENT_STEPS, tolerance=0.0)
            posteriors.append(fit_pooled(problem, solver).posterior)
    bounds = [evidence(problem.model, [problem.data], q, expectation=MonteCarlo(400)) for q in posteriors]
    best = np.nanmax(bounds[1:])
    return Comparison(float(best - bounds[0]), f"nats that plain gradients are ahead after as many steps, {best:.1f}")


def gradient_passes(problem: Problem, result: Result) -> Comparison:
    """Gradients (Adam) over as many passes, the best of four rates."""
    solvers = (Gradient("adam", rate, steps=GRADIENT_PASSES, tolerance=0.0) for rate in RATES)
    bounds = [fit_pooled(problem, solver).log_evidence for solver in solvers]
    best = float(np.nanmax(bounds))
    ours = evidence(problem.model, [problem.data], result.posterior)
    return Comparison(best - ours, f"nats that gradients are ahead after as many passes, {best:.1f}")


def automatic_guide(problem: Problem, result: Result) -> Comparison:
    """NumPyro's stochastic variational inference of the same model, written with constraints, and AutoNormal."""
    import jax

    numpyro, distributions = import_numpyro()
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
    """The fixed point of power EP with the same α, which moment matching finds."""
    limit = fit_rows(problem, MomentMatching(0.5))
    return _between(result, limit, "largest difference to the fixed point of power EP")


def tilted_moments(problem: Problem, result: Result) -> Comparison:
    """The fixed-point condition of EP, on a grid: every row's tilted distribution has the posterior's moments."""
    from scipy.stats import norm, t

    model: Any = problem.model
    q: Any = result.posterior
    covariance = np.linalg.inv(q.precision)
    f = np.linspace(-30, 30, 60001)
    worst = 0.0
    for x, y, factor in zip(*problem.data, result.factors, strict=True):
        mean, deviation = x @ q.location, np.sqrt(x @ covariance @ x)
        cavity: Any = q / factor
        spread = np.linalg.inv(cavity.precision)
        logs = t.logpdf(y, model.degrees, f, model.noise)
        logs += norm.logpdf(f, x @ spread @ cavity.precision_times_location, np.sqrt(x @ spread @ x))
        p = np.exp(logs - logs.max())
        p /= p.sum()
        tilted = p @ f
        gaps = (tilted - mean) / deviation, np.sqrt(p @ (f - tilted) ** 2) / deviation - 1
        worst = max(worst, *np.abs(gaps))
    return Comparison(worst, "largest difference of a tilted distribution's moments, in deviations")


def nuts_moments(problem: Problem, result: Result) -> Comparison:
    """Moments from 8,000 draws of the No-U-Turn Sampler, by NumPyro."""
    import_numpyro()
    model: Any = problem.model
    prior: Any = prior_of(model, model.hyper)
    shard = model.shard(0, problem.data)

    def energy(params: Any) -> Any:
        z = prior.precision @ (params - prior.location)
        return 0.5 * (params - prior.location) @ z - model.log_prob(params, shard.data, model.hyper)[: shard.rows].sum()

    with precision(np.float64):
        draws = sample_density(energy, Plan(1000, 8000), prior.location)
    words = "largest difference to means and deviations of NUTS, in its deviations"
    return Comparison(_distance(result.posterior, draws.mean(axis=0), draws.std(axis=0)), words)
