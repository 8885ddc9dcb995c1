"""The figures behind the README's promises, one line each: `partita study promises`."""

import subprocess
import sys
import time
from typing import Any

import numpy as np
from scipy.stats import multivariate_normal

import partita as pt
from partita.studies.options import Say

Shard = tuple[np.ndarray, ...]
SCHEDULES = {
    "sequential": pt.schedules.Sequential(passes=40),
    "synchronous": pt.schedules.Synchronous(rounds=60),
    "asynchronous": pt.schedules.Asynchronous(updates=500, max_staleness=20),
}


def relative_error(value: np.ndarray, reference: np.ndarray) -> float:
    return float(np.max(np.abs(value - reference)) / np.max(np.abs(reference)))


def measure_conjugate(say: Say) -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(300, 4))
    y = X @ np.array([1.0, -2.0, 0.5, 0.0]) + 0.7 * generator.normal(size=300)
    shards = pt.datasets.split((X, y), sites=5, sizes=[1, 2, 5, 50, 200])
    model = pt.models.LinearRegression(features=4, noise=0.7, prior_scale=2.0, intercept=False)
    precision = np.eye(4) / 4 + X.T @ X / 0.49
    exact = multivariate_normal(np.zeros(300), 0.49 * np.eye(300) + 4 * X @ X.T).logpdf(y)
    say(f"conjugate regression, sites of {[len(shard[1]) for shard in shards]} rows")
    for name, schedule in SCHEDULES.items():
        result = pt.fit(model, shards, schedule=schedule)
        q: Any = result.posterior
        location = relative_error(q.location, np.linalg.solve(precision, X.T @ y / 0.49))
        covariance = relative_error(q.covariance, np.linalg.inv(precision))
        gap = abs(result.log_evidence - exact)
        say(f"  {name}: location {location:.1e}, covariance {covariance:.1e}, log evidence {gap:.1e}")


def local_free_energies(result: pt.Result) -> float:
    gap = result.prior.log_partition() - result.posterior.log_partition()
    pairs = zip(result.factors, result.expected_log_probs, strict=True)
    return float(sum(value - result.posterior.expected_log(factor) for factor, value in pairs) - gap)


def measure_logistic(say: Say) -> None:
    X, y = pt.datasets.load("breast-cancer")
    data = pt.datasets.standardised(X), y
    model = pt.models.LogisticRegression(features=30, intercept=False)
    optimum = pt.fit(model, [data], schedule=pt.schedules.Synchronous(rounds=200))
    singles = pt.datasets.split(data, sites=len(y))
    runs = {
        name: pt.fit(model, pt.datasets.split(data, 5, "by-label"), schedule=schedule)
        for name, schedule in SCHEDULES.items()
    }
    runs["one datum per site"] = pt.fit(model, singles, schedule=pt.schedules.Synchronous(rounds=60), damping=1.0)
    runs["one site"] = optimum
    say("logistic regression on breast cancer, against global VI")
    best: Any = optimum.posterior
    for name, result in runs.items():
        q: Any = result.posterior
        location = relative_error(q.location, best.location)
        covariance = relative_error(q.covariance, best.covariance)
        gap = abs(local_free_energies(result) - result.log_evidence)
        say(f"  {name}: location {location:.1e}, covariance {covariance:.1e}, sum of local - global {gap:.1e}")
    measure_dynamics(say, model, data, singles)


def measure_dynamics(say: Say, model: pt.models.LogisticRegression, data: Shard, singles: list[Shard]) -> None:
    def trace(shards: list[Shard]) -> list[Any]:
        posteriors: list[Any] = []
        schedule = pt.schedules.Synchronous(rounds=12)
        pt.fit(model, shards, schedule=schedule, damping=1.0, callbacks=[lambda e: posteriors.append(e.posterior)])
        return posteriors

    whole = trace([data])
    for name, shards in {
        "5 by-label sites": pt.datasets.split(data, 5, "by-label"),
        "one datum per site": singles,
    }.items():
        gaps = [relative_error(b.precision, a.precision) for a, b in zip(whole, trace(shards), strict=True)]
        say(f"  parallel dynamics, {name} against one site: at most {max(gaps):.1e} in 12 iterations")


def measure_undamped(say: Say) -> None:
    X, y = pt.datasets.load("breast-cancer")
    shards = pt.datasets.split((pt.datasets.standardised(X), 3 * y), sites=10, how="by-label")
    say("undamped synchronous updates, 10 by-label sites, 30 rounds of 30 local steps")
    for name in ("LogisticRegression", "PoissonRegression"):
        for posterior in ("full", "mean-field"):
            proper: list[bool] = []
            model = getattr(pt.models, name)(features=30, intercept=False, posterior=posterior)
            labels = [(a, (b > 0).astype(float)) for a, b in shards] if name == "LogisticRegression" else shards
            result = pt.fit(
                model,
                labels,
                solver=pt.solvers.FixedPoint(steps=30),
                schedule=pt.schedules.Synchronous(rounds=30),
                damping=1.0,
                callbacks=[lambda event, proper=proper: proper.append(bool(event.posterior.is_proper()))],
            )
            cavities = all(result.cavity(site).is_proper() for site in range(10))
            damped = sum(row["damped"] for row in result.history)
            say(f"  {name}, {posterior}: proper {all(proper)}, cavities {cavities}, {damped} of 30 rounds damped")


def measure_imports(say: Say) -> None:
    for program in ("import partita", "import partita; partita.fit, partita.models, partita.solvers"):
        times = []
        for _ in range(5):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", program], check=True)
            times.append(time.perf_counter() - began)
        say(f"{program!r}: {min(times):.2f} s at best of 5, {max(times):.2f} s at worst, Python's own start included")


def measure_promises(say: Say) -> None:
    measure_conjugate(say)
    measure_logistic(say)
    measure_undamped(say)
    measure_imports(say)
