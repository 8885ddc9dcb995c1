"""Cases of Gaussian processes: streams of every kind, their estimators and files, and a process in the loop."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import partita as pt
from benchmarks.bits.fits import fit
from benchmarks.bits.outcomes import Case, Outcome, find

SHARED = Path(__file__).parents[3] / "shared" / "data"


def curve(rows: int = 90) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(4)
    X = np.sort(generator.uniform(-3, 3, (rows, 2)), axis=0)
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.2 * generator.normal(size=rows)


def of_stream(model: Any, X: np.ndarray) -> Outcome:
    outcome = Outcome().add("log_evidence", model.log_evidence_).add("points", model.pseudo_points_)
    outcome.add("posterior", model.hyperparameters_).add("factors", tuple(model.stream_.factor))
    if hasattr(model, "predict_proba"):
        return outcome.add("predict_proba", model.predict_proba(X))
    mean, std = model.predict(X, return_std=True)
    return outcome.add("predict", mean).add("std", std)


def regressor(**settings: Any) -> Outcome:
    X, y = curve()
    model = pt.StreamingGPRegressor(points_per_batch=6, steps=15, quiet=True, **settings)
    for part in np.array_split(np.arange(len(y)), 3):
        model.partial_fit(X[part], y[part])
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "stream")
        loaded = type(model).load(Path(folder) / "stream")
    return of_stream(loaded.partial_fit(X[::5], y[::5] + 0.1), X[::9])


def fitted(likelihood: Any) -> Outcome:
    """`fit` on rows in their order, two outputs for the Gaussian, draws of new observations."""
    X, y = curve()
    y = np.exp(y).round() if likelihood == "poisson" else y
    model = pt.StreamingGPRegressor(points_per_batch=5, steps=10, batch_size=45, likelihood=likelihood, quiet=True)
    target = np.stack([y, -10 * y], axis=1) if likelihood == "gaussian" else y
    model.fit(X, target)
    return of_stream(model, X[::9]).add("sample_y", model.sample_y(X[::30], 2))


def forgotten() -> Outcome:
    """Batches with a factor each, of which one is revisited and another divided out."""
    X, y = curve()
    model = pt.StreamingGPRegressor(points_per_batch=5, steps=10, keep_factors=True, quiet=True)
    for part in np.array_split(np.arange(len(y)), 3):
        model.partial_fit(X[part], y[part])
    model.revisit(0, X[:30], y[:30])
    revisited = model.predict(X[::9])
    return of_stream(model.forget(1), X[::9]).add("revisited", revisited)


def classifier(classes: int) -> Outcome:
    X, y = curve()
    labels = np.digitize(y, [0.0] if classes == 2 else [-0.5, 0.5])
    model = pt.StreamingGPClassifier(points_per_batch=5, steps=10, quiet=True)
    for part in np.array_split(np.random.default_rng(0).permutation(len(y)), 2):
        model.partial_fit(X[part], labels[part], classes=np.arange(classes))
    return of_stream(model, X[::9])


def process(likelihood: str) -> Outcome:
    """A sparse process as a model of the loop, its points fixed."""
    X, y = curve()
    likelihoods = pt.gp.likelihoods
    kind = likelihoods.Normal(0.3) if likelihood == "normal" else likelihoods.Probit()
    target = y if likelihood == "normal" else (y > 0).astype(float)
    model = pt.gp.SparseProcess(X[::9], pt.gp.kernels.SquaredExponential(1.5, 0.8), kind)
    shards = [(X[i::3], target[i::3]) for i in range(3)]
    return fit(model, shards, schedule=pt.schedules.Sequential(passes=3))


def robot_arm(method: str) -> Outcome:
    """The first two batches of the arm's stream, sorted by its first joint."""
    folder = os.environ.get("PARTITA_DATA", SHARED)
    train, (X_test, _) = pt.datasets.load_split("barrett-wam", folder)
    module = "partita.studies.paper.robot_arm"
    batches = find("sorted_batches", module)(train, 0, 2, 24)[:2]
    model = find("_model", module)(find("QUICK", module), method)
    for X, y in batches:
        model.partial_fit(X, y)
    return of_stream(model, X_test[::100])


def cases() -> Iterator[Case]:
    for points in ("private", "shared"):
        for hyper in ("variational", "ml"):
            settings: dict[str, Any] = {"pseudo_points": points, "hyperparameters": hyper}
            if points == "shared":
                settings |= {"max_points": 12}
            is_quick = (points, hyper) in (("private", "variational"), ("shared", "ml"))
            yield Case(f"gp/{points}/{hyper}", lambda given=settings: regressor(**given), is_quick)  # type: ignore[misc]
    table: dict[str, tuple[Any, bool]] = {
        "gp/fixed": (lambda: regressor(hyperparameters="fixed", selection="k-means"), False),
        "gp/gaussian": (lambda: fitted("gaussian"), False),
        "gp/poisson": (lambda: fitted("poisson"), False),
        "gp/student-t": (lambda: fitted("student-t"), False),
        "gp/forgotten": (forgotten, False),
        "gp/two-classes": (lambda: classifier(2), True),
        "gp/three-classes": (lambda: classifier(3), False),
        "gp/process": (lambda: process("normal"), True),
        "gp/process-classes": (lambda: process("probit"), False),
        "robot-arm/private": (lambda: robot_arm("private"), False),
        "robot-arm/private-ml": (lambda: robot_arm("private-ml"), False),
        "robot-arm/shared": (lambda: robot_arm("shared"), False),
    }
    for name, (run, quick) in table.items():
        yield Case(name, run, quick)
