"""Cases of the faces that take tables: regressions by formula, programs, estimators, streams of batches."""

import inspect
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import partita as pt
from benchmarks.bits.outcomes import Case, Outcome, of_result

# What most formulas here have on their right: the same number of columns, so that programs are compiled once.
RIGHT = "age + arm + clinic"
FEW = pt.schedules.Synchronous(rounds=3)


def patients(rows: int = 120) -> Any:
    """A table with numbers, categories, counts, groups and weights."""
    import pandas as pd

    generator = np.random.default_rng(1)
    table = pd.DataFrame(
        {
            "age": generator.normal(50, 10, rows),
            "arm": generator.choice(["drug", "placebo"], rows),
            "clinic": generator.choice(["a", "b", "c"], rows),
            "ward": np.arange(rows) % 12,
            "n": generator.integers(1, 4, rows),
        }
    )
    effect = 0.05 * (table.age - 50) + 0.8 * (table.arm == "drug") - 0.5 * (table.clinic == "c")
    table["ill"] = np.where(generator.random(rows) < 1 / (1 + np.exp(-effect)), "yes", "no")
    table["visits"] = generator.poisson(np.exp(0.5 + 0.5 * effect))
    table["score"] = 100 + 20 * effect + 15 * generator.normal(size=rows) + 10 * np.sin(table.ward)
    return table


def sites(table: Any) -> dict[str, Any]:
    return {name: table[table.ward % 3 == place] for place, name in enumerate(("north", "south", "west"))}


def regress(formula: str, tables: Any, response: str = "gaussian", **settings: Any) -> Outcome:
    """A regression with all that is read off it. What distribution the target has was once called its family."""
    name = "response" if "response" in inspect.signature(pt.regress).parameters else "family"
    settings = {"quiet": True, name: response, **settings}
    found = pt.regress(formula, tables, **settings)
    outcome = of_result(found.result).add("regression evidence", found.log_evidence)
    outcome.add_rows(found.coefficients()).add_rows(found.spreads()).add_rows(found.contributions())
    new = patients(8)
    outcome.add("predict", found.predict(new))
    if "|" not in formula:
        outcome.add("predict_interval", found.predict_interval(new, draws=200))
    with tempfile.TemporaryDirectory() as folder:
        found.save(Path(folder) / "regression")
        outcome.add("loaded", pt.Regression.load(Path(folder) / "regression").predict(new))
    return outcome


def by_formula(formula: str, response: str, **settings: Any) -> Outcome:
    return regress(formula, sites(patients()), response, **settings)


def missing() -> Outcome:
    table = patients()
    table.loc[3:9, "age"] = np.nan
    table.loc[50, "clinic"] = None
    return regress(f"score ~ {RIGHT}", sites(table))


def polars() -> Outcome:
    import polars as pl

    tables = {name: pl.DataFrame(part.to_dict("list")) for name, part in sites(patients()).items()}
    return regress(f"ill ~ {RIGHT}", tables, "bernoulli")


def files(right: str) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        for name, part in sites(patients()).items():
            part.to_csv(Path(folder) / f"{name}.csv", index=False)
        return regress(f"score ~ {right}", f"{folder}/*.csv")


def held_out() -> Outcome:
    found = pt.regress("score ~ age + arm", sites(patients()), held_out=0.2, quiet=True, seed=3)
    inside = found.calibration(draws=100)["inside"]
    return of_result(found.result).add("inside", np.array([inside[level] for level in sorted(inside)]))


def program(local: bool) -> Outcome:
    """A program of NumPyro: intercepts of groups that are integrated out, or a slope with a noise that is learnt."""
    import numpyro
    import numpyro.distributions as dist

    generator = np.random.default_rng(0)
    group, x = np.repeat(np.arange(6), 4), generator.normal(size=24)
    y = x + 0.6 * generator.normal(size=24) + 0.5 * group

    def intercepts(group: Any, y: Any) -> None:
        level = numpyro.sample("level", dist.Normal(0, 2))
        spread = numpyro.sample("spread", dist.HalfNormal(1))
        with numpyro.plate("groups", 6):
            own = numpyro.sample("own", dist.Normal(level, spread))
        numpyro.sample("y", dist.Normal(own[group], 0.6), obs=y)

    def slope(x: Any, y: Any) -> None:
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        noise = numpyro.sample("noise", dist.HalfNormal(1))
        numpyro.sample("y", dist.Normal(slope * x, noise), obs=y)

    schedule = pt.schedules.Synchronous(rounds=8)
    if local:
        model = pt.from_numpyro(intercepts, ("group", "y"), local={"groups": "group"}, like=(group, y))
        return of_result(pt.fit(model, [(group[:12], y[:12]), (group[12:], y[12:])], schedule=schedule))
    result = pt.fit(pt.from_numpyro(slope, ("x", "y")), [(x[:8], y[:8]), (x[8:], y[8:])], schedule=schedule)
    return of_result(result).add("sample", result.sample(1, 4))


def labelled(classes: int, rows: int = 120) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, labels and the site of each row."""
    generator = np.random.default_rng(5)
    X = 3 + generator.normal(size=(rows, 3)) * np.array([1.0, 10.0, 0.1])
    y = np.digitize((X[:, 0] - 3) + 0.3 * generator.normal(size=rows), np.linspace(-0.7, 0.7, classes - 1))
    return X, y, np.arange(rows) % 3


def of_estimator(model: Any, X: np.ndarray) -> Outcome:
    outcome = of_result(model.result_).add("evidence", model.log_evidence_)
    if hasattr(model, "predict_proba"):
        return outcome.add("predict_proba", model.predict_proba(X))
    mean, std = model.predict(X, return_std=True)
    return outcome.add("predict", mean).add("std", std)


def classifier(classes: int, batches: bool = False, **settings: Any) -> Outcome:
    X, y, group = labelled(classes)
    model = pt.PartitionedClassifier(quiet=True, **settings)
    if not batches:
        return of_estimator(model.fit(X, y, groups=group), X[:9])
    for part in np.array_split(np.arange(len(y)), 3):
        model.partial_fit(X[part], y[part], classes=np.arange(classes))
    return of_estimator(model, X[:9])


def regressor(batches: bool = False, **settings: Any) -> Outcome:
    X, y, group = labelled(2)
    target = 100 + X @ np.array([5.0, 0.3, 20.0]) + np.random.default_rng(2).normal(size=len(y))
    model = pt.PartitionedRegressor(quiet=True, **settings)
    if not batches:
        model.fit(X, target, groups=group, sample_weight=1.0 + (group == 1))
        outcome = of_estimator(model, X[:9])
        return outcome if settings else outcome.add("forgotten", model.forget(1).coef_)
    for part in np.array_split(np.arange(len(y)), 3):
        model.partial_fit(X[part], target[part])
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        return of_estimator(type(model).load(Path(folder) / "model"), X[:9])


def batches(name: str) -> Outcome:
    """`pt.partial_fit`, batch after batch."""
    X, y, group = labelled(2)
    X = pt.datasets.standardised(X)
    models: dict[str, Any] = {
        "logistic": lambda: pt.models.LogisticRegression(features=3),
        "linear": lambda: pt.models.LinearRegression(features=3),
        "network": lambda: pt.models.Network([3, 5, 2]),
    }
    state: Any = models[name]()
    for site in range(3):
        state = pt.partial_fit(state, (X[group == site], y[group == site].astype(float)))
    return of_result(state)


def cases() -> Iterator[Case]:
    table: dict[str, tuple[Any, bool]] = {
        "formulas/gaussian": (lambda: by_formula(f"score ~ {RIGHT}", "gaussian"), True),
        "formulas/bernoulli": (lambda: by_formula(f"ill ~ {RIGHT}", "bernoulli"), True),
        "formulas/poisson": (lambda: by_formula(f"visits ~ {RIGHT}", "poisson"), False),
        "formulas/negative-binomial": (lambda: by_formula("visits ~ age", "negative binomial", schedule=FEW), False),
        "formulas/groups": (lambda: by_formula("score ~ age + (1 | ward)", "gaussian"), True),
        "formulas/groups-bernoulli": (lambda: by_formula("ill ~ age + (1 | ward)", "bernoulli"), False),
        "formulas/weights": (lambda: by_formula(f"ill ~ {RIGHT}", "bernoulli", weights="n"), True),
        "formulas/missing": (missing, True),
        "formulas/polars": (polars, True),
        "formulas/csv": (lambda: files(RIGHT), True),
        "formulas/interactions": (
            lambda: files("age * arm + C(clinic) + bs(age, knots=[45, 55], lower_bound=0, upper_bound=120)"),
            False,
        ),
        "formulas/held-out": (held_out, False),
        "programs/local": (lambda: program(True), True),
        "programs/noise": (lambda: program(False), False),
        "estimators/two-classes": (lambda: classifier(2), True),
        "estimators/three-classes": (lambda: classifier(3, posterior="mean-field"), False),
        "estimators/hidden": (lambda: classifier(3, hidden=[6]), False),
        "estimators/classes-in-batches": (lambda: classifier(2, batches=True), False),
        "estimators/regressor": (regressor, True),
        "estimators/mean-field": (lambda: regressor(posterior="mean-field"), False),
        "estimators/regressor-in-batches": (lambda: regressor(batches=True), True),
        "batches/logistic": (lambda: batches("logistic"), True),
        "batches/linear": (lambda: batches("linear"), False),
        "batches/network": (lambda: batches("network"), False),
    }
    for name, (run, quick) in table.items():
        yield Case(name, run, quick)
