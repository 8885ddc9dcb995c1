"""How many rounds it takes to come within 0.1 nats of the pooled optimum: problems × partitions × schedules × damping.

    python -m benchmarks.rounds [--only "PROBLEM;…"] [--partitions HOW,…] [--schedules NAME,…] [--damping NAME,…]

A round is as many updates as there are sites. The pooled optimum is the best of SciPy's L-BFGS over means and log
precisions, which starts where secants do and whose evaluations of the gradient are counted, and of all runs. "shares"
is automatic damping by shares, which is the default for full covariances, too.
"""

import argparse
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from scipy.optimize import minimize

import partita as pt
from partita.expectations import choose
from partita.foundation.runtime import precision, ravel
from partita.free_energy import LocalProblem
from partita.models import prior_of
from partita.site.worker import load_shard

SITES, WITHIN = 10, 0.1
SCHEDULES = {
    "synchronous": pt.schedules.Synchronous(rounds=100),
    "sequential": pt.schedules.Sequential(passes=60),
    "random order": pt.schedules.RandomOrder(passes=60),
    "asynchronous": pt.schedules.Asynchronous(updates=100 * SITES),
}
PARTITIONS = ("iid", "by-label", "dirichlet")
DAMPING = {"1/M": "1/M", "shares": pt.rules.Auto(), "default": "auto"}


def standardise(X: np.ndarray) -> np.ndarray:
    deviation = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(deviation > 0, deviation, 1)


def bundled(name: str) -> tuple[np.ndarray, np.ndarray]:
    """A data set that comes with scikit-learn."""
    from sklearn import datasets

    found = getattr(datasets, f"load_{name}")()
    return found.data, found.target


def correlated(rows: int, features: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Correlated inputs, and what they predict."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(features, features)) / np.sqrt(features)
    X = rng.normal(size=(rows, features)) @ root + 0.2 * rng.normal(size=(rows, features))
    return X, X @ rng.normal(size=features) * 0.5


def problems() -> dict[str, tuple[Any, Any]]:
    """Models with data; the last four have full covariances."""
    models, mean_field = pt.models, {"posterior": "mean-field"}
    digits, cancer, wine, iris = (bundled(name) for name in ("digits", "breast_cancer", "wine", "iris"))
    labels = cancer[1].astype(float)
    X, f = correlated(500, 20)
    rng = np.random.default_rng(1)
    counts, binary = (
        rng.poisson(np.exp(f + 0.5)).astype(float),
        (rng.random(len(f)) < 1 / (1 + np.exp(-f))).astype(float),
    )
    wide, g = correlated(150, 200, seed=2)
    few = (rng.random(len(g)) < 1 / (1 + np.exp(-g))).astype(float)
    scaled = (standardise(cancer[0]), labels)
    return {
        "digits": (models.SoftmaxRegression(features=64, classes=10, **mean_field), (digits[0] / 16, digits[1])),
        "digits, standardised": (
            models.SoftmaxRegression(features=64, classes=10, **mean_field),
            (standardise(digits[0]), digits[1]),
        ),
        "breast cancer": (models.LogisticRegression(features=30, **mean_field), scaled),
        "breast cancer, probit": (models.ProbitRegression(features=30, **mean_field), scaled),
        "wine": (models.SoftmaxRegression(features=13, classes=3, **mean_field), (standardise(wine[0]), wine[1])),
        "iris": (models.SoftmaxRegression(features=4, classes=3, **mean_field), (standardise(iris[0]), iris[1])),
        "correlated counts": (models.PoissonRegression(features=20, **mean_field), (X, counts)),
        "correlated labels": (models.LogisticRegression(features=20, **mean_field), (X, binary)),
        "wider than long": (models.LogisticRegression(features=200, **mean_field), (wide, few)),
        "breast cancer, full": (models.LogisticRegression(features=30), scaled),
        "correlated counts, full": (models.PoissonRegression(features=20), (X, counts)),
        "correlated labels, full": (models.LogisticRegression(features=20), (X, binary)),
        "wine, full": (
            models.SoftmaxRegression(features=13, classes=3, posterior="full"),
            (standardise(wine[0]), wine[1]),
        ),
    }


class Pooled:
    """The free energy of all rows in one place, and what L-BFGS needs to come within reach of its maximum."""

    def __init__(self, model: Any, data: Any):
        prior = prior_of(model, model.hyper)
        shard, expectation = load_shard(model, 0, data), choose(model, prior)
        with precision(model.dtype):
            hyper = {name: np.asarray(value, model.dtype) for name, value in model.hyper.items()}
            problem = LocalProblem(model, expectation, prior, shard, hyper)
            key = jax.random.key(0)
            self.free_energy = jax.jit(lambda q: problem.free_energy(q, key))
        self.model, self.problem, self.prior, self.key = model, problem, prior, key

    def value(self, posterior: Any) -> float:
        with precision(self.model.dtype):
            return float(self.free_energy(posterior))

    def optimise(self) -> list[float]:
        """Free energies at all evaluations of L-BFGS, from prior × messages at the narrow start."""
        with precision(self.model.dtype):
            _, message = jax.jit(lambda q: self.problem.message(q, self.key))(pt.rules.Secants().start(self.prior))
            start = self.prior * message
            centred = start.as_gaussian("rounds").around(self.prior.as_gaussian("rounds").location, start.scale)
            flat, unravel = ravel(centred.to_free())
            gradient = jax.jit(
                jax.value_and_grad(lambda x: -self.problem.free_energy(self.prior.from_free(unravel(x)), self.key))
            )
            found: list[float] = []

            def evaluate(x: np.ndarray) -> tuple[float, np.ndarray]:
                value, slope = gradient(x)
                found.append(-float(value))
                return float(value), np.asarray(slope, float)

            minimize(evaluate, np.asarray(flat), jac=True, method="L-BFGS-B", options={"maxiter": 2000, "ftol": 1e-15})
        return found


def run(pooled: Pooled, shards: list[Any], schedule: Any, damping: Any) -> list[tuple[float, float]]:
    """Rounds and free energies, fold by fold."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        events = pt.events(pooled.model, shards, schedule=schedule, damping=damping)
        return [(event.version / len(shards), pooled.value(event.posterior)) for event in events]


def rounds_within(trace: list[tuple[float, float]], best: float) -> str:
    first = next((rounds for rounds, value in trace if value > best - WITHIN), None)
    values = [value for _, value in trace]
    # From the first whole round on: before, nobody has been heard.
    falls = [a - b for a, b in zip(values[SITES:], values[SITES + 1 :], strict=False)]
    reached = "never" if first is None else f"{first:.0f}"
    return f"{reached:>6} {best - values[-1]:10.3f} {max([0.0, *falls]):10.1f}"


def cells(options: argparse.Namespace) -> Iterator[tuple[str, Pooled, Any]]:
    chosen = problems()
    for name in options.only.split(";") if options.only else chosen:
        yield name, Pooled(*chosen[name]), chosen[name][1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--partitions", default=",".join(PARTITIONS))
    parser.add_argument("--schedules", default=",".join(SCHEDULES))
    parser.add_argument("--damping", default=",".join(DAMPING))
    options = parser.parse_args()
    print(f"{'rounds, short by, worst fall':>100}")
    for name, pooled, data in cells(options):
        evaluations = [] if name.endswith("full") else pooled.optimise()
        best = max(evaluations, default=-np.inf)
        traces: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
        for how in options.partitions.split(","):
            shards = pt.datasets.split(data, sites=SITES, how=how)
            for schedule in options.schedules.split(","):
                for damping in options.damping.split(","):
                    traces[how, schedule, damping] = run(pooled, shards, SCHEDULES[schedule], DAMPING[damping])
        best = max([best, *(value for trace in traces.values() for _, value in trace)])
        if evaluations:
            within = next((i for i, value in enumerate(evaluations, 1) if value > best - WITHIN), None)
            print(f"{name}: best {best:.2f}, pooled L-BFGS within after {within} evaluations", flush=True)
        for (how, schedule, damping), trace in traces.items():
            print(f"{name:24} {how:10} {schedule:13} {damping:8} {rounds_within(trace, best)}", flush=True)


if __name__ == "__main__":
    main()
