"""Cases of the loop: schedules, damping, limits, journals, hyperparameters, and models of every kind."""

import tempfile
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

import partita as pt
from benchmarks.bits.outcomes import Case, Followed, Outcome, find, of_result

SCHEDULES = {
    "synchronous": pt.schedules.Synchronous(rounds=12),
    "sequential": pt.schedules.Sequential(passes=4),
    "random-order": pt.schedules.RandomOrder(passes=4),
    "priority": pt.schedules.Priority(updates=20),
    "asynchronous": pt.schedules.Asynchronous(updates=24, max_staleness=6),
}


def fit(model: Any, shards: Any, **settings: Any) -> Outcome:
    """A run whose every fold is followed."""
    followed = Followed()
    result = pt.fit(model, shards, callbacks=[followed], **settings)
    return of_result(result, followed.digests)


def binary(sites: int = 4, rows: int = 80) -> list[Any]:
    generator = np.random.default_rng(7)
    X = generator.normal(size=(rows, 3))
    y = (generator.random(rows) < 1 / (1 + np.exp(-X @ np.array([1.0, 2.0, 3.0])))).astype(float)
    return [(X[i::sites], y[i::sites]) for i in range(sites)]


def numbers(sites: int = 3, rows: int = 60) -> list[Any]:
    generator = np.random.default_rng(8)
    X = generator.normal(size=(rows, 2))
    y = X @ np.array([1.0, -2.0]) + 0.5 + 0.4 * generator.normal(size=rows)
    return [(X[i::sites], y[i::sites]) for i in range(sites)]


def digits(sites: int, how: Any) -> list[Any]:
    X, y = pt.datasets.load("digits")
    return pt.datasets.split((np.asarray(X[:300] / 16, np.float32), y[:300]), sites, how)


def schedule_case(name: str, posterior: Any) -> Outcome:
    model = pt.models.LogisticRegression(features=3, posterior=posterior)
    engine = pt.engines.InProcess(speeds=[1.0, 2.0, 0.5, 1.0]) if name == "asynchronous" else None
    return fit(model, binary(), schedule=SCHEDULES[name], engine=engine)


def limits() -> Outcome:
    limits = pt.Limits(change=0.5, total=30.0, strikes=2, staleness=3)
    schedule = pt.schedules.Asynchronous(updates=24)
    engine = pt.engines.InProcess(speeds=[1.0, 1.0, 1.0, 0.2])
    model = pt.models.LogisticRegression(features=3)
    return fit(model, binary(), schedule=schedule, engine=engine, limits=limits)


def taken_back() -> Outcome:
    """Columns that go together under a mean-field posterior: automatic damping takes steps back."""
    generator = np.random.default_rng(3)
    z = generator.normal(size=(90, 1))
    X, y = z + 0.1 * generator.normal(size=(90, 3)), (z[:, 0] + 0.3 * generator.normal(size=90) > 0).astype(float)
    model = pt.models.LogisticRegression(features=3, posterior="mean-field", prior_scale=5.0)
    outcome = fit(model, pt.datasets.split((X, y), 9, "by-label"), schedule=pt.schedules.Synchronous(rounds=25))
    if not any(row["taken_back"] for row in outcome.rows):
        raise AssertionError("no step was taken back: this case looks at nothing")
    return outcome


def saved(stop: int | None) -> Outcome:
    """An asynchronous run with a journal; stopped after so many folds and resumed, if asked."""
    model, shards = pt.models.LogisticRegression(features=3, posterior="mean-field"), binary()
    run: dict[str, Any] = {
        "schedule": pt.schedules.Asynchronous(updates=24),
        "engine": pt.engines.InProcess(speeds=[1, 2, 3, 4]),
    }
    with tempfile.TemporaryDirectory() as folder:
        if stop is not None:
            events: Any = pt.events(model, shards, run_dir=folder, **run)
            list(islice(events, stop))
            events.close()
        outcome = fit(model, shards, run_dir=folder, resume=stop is not None, **run)
        return outcome.add_rows(_kept_rows(folder))


def _kept_rows(folder: str) -> list[Any]:
    read = find("read_history", "partita.server.journals", "partita.server.storage", "partita.server.journal")
    return list(read(folder))


def learnt_noise(posterior: Any) -> Outcome:
    noise = None if posterior == "full" else 0.5
    model = pt.models.LinearRegression(features=2, noise=noise, posterior=posterior)
    hyper = None if noise is None else pt.LearnHyper(names="noise")
    return fit(model, numbers(), schedule=pt.schedules.Synchronous(rounds=20), hyper=hyper)


def learnt_hyper(schedule: Any) -> Outcome:
    model = pt.models.LinearRegression(features=2, noise=0.5)
    return fit(model, numbers(), schedule=schedule, hyper=pt.LearnHyper(prior={"noise": (0.3, 0.5)}))


def network(schedule: Any, how: Any, **settings: Any) -> Outcome:
    model = pt.models.Network([64, 12, 10])
    return fit(model, digits(10 if how == "by-label" else 4, how), schedule=schedule, **settings)


def network_regression() -> Outcome:
    model = pt.models.Network([2, 8, 1], likelihood="gaussian", noise=0.5)
    return fit(model, numbers(), schedule=pt.schedules.Synchronous(rounds=8), hyper=pt.LearnHyper(names="noise"))


def trained(solver: Any) -> Outcome:
    return network(pt.schedules.Synchronous(rounds=3), "iid", solver=solver, damping="1/M")


def power_ep(power: float, hold: int = 1) -> Outcome:
    solver = pt.solvers.MomentMatching(power=power)
    rows = [(X[i : i + 1], y[i : i + 1]) for X, y in binary(2, 16) for i in range(len(y))]
    schedule = pt.schedules.Synchronous(rounds=8, hold=hold) if hold > 1 else pt.schedules.Sequential(passes=3)
    model = pt.models.ProbitRegression(features=3)
    return fit(model, rows, solver=solver, schedule=schedule, damping=0.1 if hold > 1 else 1.0)


def each_row() -> Outcome:
    solver = pt.solvers.MomentMatching(power=0.5, each_row=True, steps=4)
    model = pt.models.LogisticRegression(features=3)
    return fit(model, binary(), solver=solver, schedule=pt.schedules.Sequential(passes=3), damping=0.7)


def shared(posterior: Any) -> Outcome:
    model = pt.models.LogisticRegression(features=3, posterior=posterior)
    return fit(model, binary(8), schedule=pt.schedules.Synchronous(rounds=12), custody="shared")


def linear_solver(solver: Any, **settings: Any) -> Outcome:
    model = pt.models.LogisticRegression(features=3, posterior="mean-field")
    return fit(model, binary(), solver=solver, schedule=pt.schedules.Sequential(passes=3), **settings)


def mixture(covariance: Any) -> Outcome:
    X, _ = pt.datasets.load("wine")
    X = pt.datasets.standardised(np.asarray(X)[:, [0, 2]])
    model = pt.models.GaussianMixture(3, 2, covariance=covariance, concentration=0.5)
    schedule = pt.schedules.Sequential(passes=5, together=True)
    return fit(model, [X[i::3] for i in range(3)], start=model.begin(X, 0), schedule=schedule)


def topics() -> Outcome:
    counts = np.asarray(pt.datasets.load("digits")[0][:60])
    model = pt.models.LatentDirichletAllocation(3, 64, concentration=0.3, document_concentration=0.2)
    schedule, solver = pt.schedules.Sequential(passes=3), pt.solvers.FixedPoint(step_size=1.0)
    return fit(model, [counts[i::3] for i in range(3)], start=model.begin(), schedule=schedule, solver=solver)


def closed_form(name: str) -> Outcome:
    """Factor analysis and factorised counts, on the same pixels."""
    counts = np.asarray(pt.datasets.load("digits")[0][:60, 20:28])
    model: Any = pt.models.FactorAnalysis(8, 2) if name == "factors" else pt.models.PoissonFactorisation(8, 2)
    start = model.begin(counts) if name == "factors" else model.begin()
    return fit(model, [counts[i::3] for i in range(3)], start=start, schedule=pt.schedules.Sequential(passes=3))


def own_likelihood() -> Outcome:
    """A likelihood that is only a function, with a kink."""
    import jax.numpy as jnp

    families: Any = pt.families
    prior = families.Gaussian.from_moments(np.zeros(2), 4 * np.eye(2))
    model = pt.Model(prior, lambda params, data: -jnp.abs(data[1] - data[0] @ params) / 0.4)
    return fit(model, numbers(), schedule=pt.schedules.Synchronous(rounds=10))


def other_response(name: str) -> Outcome:
    model = getattr(pt.models, name)(features=2)
    return fit(model, numbers(), schedule=pt.schedules.Synchronous(rounds=8))


def classes() -> Outcome:
    X, y = pt.datasets.load("wine")
    model = pt.models.SoftmaxRegression(features=13, classes=3)
    shards = pt.datasets.split((pt.datasets.standardised(X), y), 3, "by-label")
    outcome = fit(model, shards, schedule=pt.schedules.Synchronous(rounds=10))
    return outcome


def participation() -> Outcome:
    model = pt.models.LogisticRegression(features=3)
    schedule = pt.schedules.Synchronous(rounds=40, participation=0.5, settled=1e-4)
    return fit(model, binary(), schedule=schedule, seed=5)


def afterwards() -> Outcome:
    """What is done with a result: predictions, draws, contributions, cavities, a file, the evidence of another."""
    model, shards = pt.models.LogisticRegression(features=3), binary()
    result = pt.fit(model, shards, schedule=pt.schedules.Synchronous(rounds=6))
    with tempfile.TemporaryDirectory() as folder:
        result.save(f"{folder}/result")
        loaded = pt.load(f"{folder}/result")
    outcome = of_result(loaded).add("predict", loaded.predict(shards[0][0]))
    outcome.add("sample", result.sample(3, 5)).add("contributions", result.contributions())
    outcome.add("cavity", result.cavity(1)).add("evidence", pt.evidence(model, shards, result.cavity(1)))
    again = pt.fit(model, shards, factors=result.factors, schedule=pt.schedules.Synchronous(rounds=2))
    return outcome.add("continued", again.posterior)


def demo() -> Outcome:
    run = find("run_demo", "partita.studies.demo")
    outcomes, _ = run(0, lambda name, labels: [])
    outcome = Outcome()
    for found in outcomes:
        outcome.add_rows([found.row, *found.curve.rows])
        outcome.add(f"contributions.{found.row['method']}", np.array(found.contributions))
    return outcome


def promises() -> Outcome:
    """The printed figures, without those of imports, which are times."""
    said: list[str] = []
    for part in ("conjugate", "logistic", "undamped"):
        find(f"measure_{part}", "partita.studies.promises")(said.append)
    return Outcome().add_rows([{"line": line} for line in said])


def cases() -> Iterator[Case]:
    for name in SCHEDULES:
        for posterior in ("full", "mean-field"):
            yield Case(f"schedules/{name}/{posterior}", lambda n=name, p=posterior: schedule_case(n, p), True)  # type: ignore[misc]
    sync = pt.schedules.Synchronous(rounds=6)
    table: dict[str, tuple[Any, bool]] = {
        "limits": (limits, True),
        "taken-back": (taken_back, True),
        "participation": (participation, True),
        "saved/whole": (lambda: saved(None), True),
        "saved/resumed": (lambda: saved(11), True),
        "noise/full": (lambda: learnt_noise("full"), True),
        "noise/mean-field": (lambda: learnt_noise("mean-field"), False),
        "hyper/synchronous": (lambda: learnt_hyper(pt.schedules.Synchronous(rounds=15)), True),
        "hyper/asynchronous": (lambda: learnt_hyper(pt.schedules.Asynchronous(updates=30)), False),
        "network/synchronous": (lambda: network(sync, "iid"), True),
        "network/asynchronous": (lambda: network(pt.schedules.Asynchronous(updates=16), "iid"), True),
        "network/by-label": (lambda: network(sync, "by-label"), True),
        "network/sequential": (lambda: network(pt.schedules.Sequential(passes=2), "iid"), False),
        "network/regression": (network_regression, False),
        "network/adam": (lambda: trained(pt.solvers.Gradient(epochs=1, batch_size=32, learning_rate=0.01)), False),
        "network/natural-gradient": (lambda: trained(pt.solvers.NaturalGradient(epochs=1, batch_size=32)), False),
        "network/bayesian-gradient": (lambda: trained(pt.solvers.BayesianGradient()), False),
        "power-ep/1": (lambda: power_ep(1.0), True),
        "power-ep/0.5": (lambda: power_ep(0.5), False),
        "power-ep/hold": (lambda: power_ep(1.0, hold=4), False),
        "power-ep/each-row": (each_row, False),
        "shared/full": (lambda: shared("full"), True),
        "shared/mean-field": (lambda: shared("mean-field"), False),
        "solvers/lbfgs": (lambda: linear_solver(pt.solvers.Gradient(optimiser="lbfgs")), False),
        "solvers/fixed-point": (lambda: linear_solver(pt.solvers.FixedPoint(steps=10, step_size=0.5)), False),
        "solvers/conjugate": (lambda: linear_solver(pt.solvers.ConjugateGradient()), False),
        "mixture/full": (lambda: mixture("full"), True),
        "mixture/diagonal": (lambda: mixture("diagonal"), False),
        "mixture/spherical": (lambda: mixture("spherical"), False),
        "topics": (topics, True),
        "factors": (lambda: closed_form("factors"), False),
        "counts": (lambda: closed_form("counts"), False),
        "own-likelihood": (own_likelihood, True),
        "heteroscedastic": (lambda: other_response("HeteroscedasticRegression"), False),
        "robust": (lambda: other_response("RobustRegression"), False),
        "classes": (classes, True),
        "afterwards": (afterwards, True),
        "demo": (demo, False),
        "promises": (promises, False),
    }
    for name, (run, quick) in table.items():
        yield Case(name, run, quick)


def quiet(case: Case) -> Outcome:
    """Run a case; what it warns of is kept among its words."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        outcome = case.run()
    outcome.words += [str(warning.message) for warning in found if "partita" in str(warning.filename)]
    return outcome
