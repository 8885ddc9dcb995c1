"""Small Bayesian networks of neurons, beside the sampler, an automatic guide and online gradient descent.

The prior has random means, which tell hidden units from each other: without them, every permutation of units would be
as good, and moments of the posterior would say nothing.
"""

import warnings
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partita.datasets import load
from partita.expectations import MonteCarlo
from partita.families import MeanField
from partita.fitting import evidence
from partita.foundation.runtime import ravel
from partita.models import Network, prior_of
from partita.result import Result
from partita.studies.methods.comparisons import RATES, Comparison
from partita.studies.methods.problems import Problem, standardise_irises, take
from partita.studies.nuts import Plan, import_numpyro, sample_density

# How many rows are learnt from; the others are kept for predictions.
FLOWERS, DIGITS = 75, 1300
# How many rows of a stream come together.
TOGETHER = 10
PLAN = Plan(300, 500, chains=4)


def _flowers() -> tuple[np.ndarray, np.ndarray]:
    """Lengths of sepals and petals, and whether an iris is a versicolor, which is between the two others."""
    from sklearn.datasets import load_iris

    order = np.random.default_rng(0).permutation(150)
    return standardise_irises((0, 2))[order], (load_iris().target == 1)[order].astype(float)


def flowers() -> Problem:
    """Irises of one kind, through four hidden units."""
    network = Network([2, 4, 1], activation="tanh", likelihood="bernoulli")
    generator = np.random.default_rng(1)
    centre = jax.tree.map(lambda a: generator.normal(size=a.shape).astype(np.float32), network.network.shapes)
    X, y = (part[:FLOWERS] for part in _flowers())
    return Problem(network.with_prior(MeanField.from_moments(centre, np.float32(1.0))), (X, y))


def digits() -> Problem:
    """Images of digits, through thirty hidden units; the prior is as narrow as linearised steps need it."""
    network = Network([64, 30, 10])
    X, y = _digits()
    prior = MeanField.from_moments(network.network.start(0), np.float32(0.2))
    return Problem(network.with_prior(prior), (X[:DIGITS], y[:DIGITS]))


def _digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load("digits")
    order = np.random.default_rng(0).permutation(len(X))
    return X[order] / 16, y[order].astype(float)


def few_rows(data: Any) -> list[Any]:
    """A stream of ten rows at a time."""
    rows = len(data[0])
    return [take(data, part) for part in np.array_split(np.arange(rows), rows // TOGETHER)]


def automatic_network(problem: Problem, result: Result) -> Comparison:
    """NumPyro's stochastic variational inference of the same network and AutoNormal, from the same place."""
    numpyro, distributions = import_numpyro()
    from numpyro.infer import SVI, Trace_ELBO, autoguide, init_to_value

    X, y = problem.data
    prior: Any = prior_of(problem.model, problem.model.hyper)
    centre, whole = ravel(prior.location)

    def model() -> None:
        theta = whole(numpyro.sample("weights", distributions.Normal(centre, 1.0).to_event(1)))
        hidden = jnp.tanh(X @ theta[0].weights + theta[0].bias)
        f = hidden @ theta[1].weights + theta[1].bias
        numpyro.sample("y", distributions.Bernoulli(logits=f[:, 0]), obs=y)

    guide = autoguide.AutoNormal(model, init_loc_fn=init_to_value(values={"weights": centre}))
    svi = SVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO(num_particles=4))
    run = svi.run(jax.random.key(0), 1500, progress_bar=False)
    theirs = -float(Trace_ELBO(num_particles=20000).loss(jax.random.key(1), run.params, model, guide))
    ours = evidence(problem.model, [problem.data], result.posterior, expectation=MonteCarlo(20000))
    return Comparison(float(theirs - ours), f"nats below the bound of NumPyro's AutoNormal, {theirs:.2f}")


@lru_cache(maxsize=1)
def sample_flowers() -> np.ndarray:
    """Probabilities of the flowers that were kept, by NUTS in a network written without Partita."""
    prior: Any = prior_of(flowers().model, {"prior_scale": 1.0})
    centre, whole = ravel(prior.location)
    X, y = _flowers()

    def logits(place: Any, rows: np.ndarray) -> Any:
        theta = whole(place)
        return (jnp.tanh(rows @ theta[0].weights + theta[0].bias) @ theta[1].weights + theta[1].bias)[:, 0]

    def energy(place: Any) -> Any:
        f = logits(place, X[:FLOWERS])
        return 0.5 * jnp.sum((place - centre) ** 2) - jnp.sum(y[:FLOWERS] * f - jax.nn.softplus(f))

    draws = sample_density(energy, PLAN, jnp.tile(jnp.asarray(centre), (PLAN.chains, 1)))
    found = jax.vmap(lambda place: jax.nn.sigmoid(logits(place, X[FLOWERS:])))(draws)
    return np.mean(np.asarray(found, float), axis=0)


def sampled_predictions(problem: Problem, result: Result) -> Comparison:
    """Probabilities of rows that were kept, and those of NUTS."""
    X, y = (part[FLOWERS:] for part in _flowers())
    theirs = sample_flowers()
    ours = np.asarray(result.predict_proba(X, samples=2000), float)[:, 1]
    losses = [-np.mean(np.log(np.where(y == 1, p, 1 - p))) for p in (ours, theirs)]
    words = f"from the probabilities of NUTS, root mean square; NLL {losses[0]:.3f}, of NUTS {losses[1]:.3f}"
    return Comparison(float(np.sqrt(np.mean((ours - theirs) ** 2))), words)


def online_descent(problem: Problem, result: Result) -> Comparison:
    """One pass of scikit-learn's gradient descent over the same batches and a network of the same size: the best of
    four rates.
    """
    from sklearn.neural_network import MLPClassifier

    X, y = _digits()
    kept = np.arange(len(y) - DIGITS), y[DIGITS:].astype(int)

    def loss(probabilities: np.ndarray) -> float:
        return -float(np.mean(np.log(np.maximum(probabilities[kept], 1e-12))))

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the largest rate leads astray
        for rate in RATES:
            network = MLPClassifier(
                30, solver="sgd", learning_rate_init=rate, momentum=0, alpha=0, batch_size=TOGETHER, random_state=0
            )
            for rows, labels in few_rows((X[:DIGITS], y[:DIGITS])):
                network.partial_fit(rows, labels, classes=np.arange(10))
            found.append(loss(network.predict_proba(X[DIGITS:])))
    best, ours = min(found), loss(np.asarray(result.predict_proba(X[DIGITS:]), float))
    return Comparison(ours - best, f"nats of NLL above scikit-learn's descent after one pass, {best:.3f}")
