"""The main job on data inside a wheel: digits over ten sites, six ways to fit them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from partita import datasets
from partita.families import Family
from partita.fitting import fit
from partita.foundation.plain import Row
from partita.metrics import classification
from partita.models import SoftmaxRegression
from partita.predictive import expected_response
from partita.report import Curve, Report
from partita.report.charts.base import Calibration
from partita.report.charts.calibration import compare_calibrations
from partita.report.charts.sites import compare_contributions, draw_labels
from partita.report.measures import calibrate_classes
from partita.result import Result
from partita.server.schedules import Asynchronous, Sequential, Synchronous
from partita.solvers import FixedPoint
from partita.studies.committee import split_prior
from partita.studies.schemes import Scheme
from partita.telemetry import Callback, Every

SITES = 10
ROUNDS = 40
ALONE = FixedPoint(steps=100, tolerance=1e-4)
WAYS = {
    "global VI, pooled": Scheme("one site has all data", Synchronous(rounds=3 * ROUNDS, settled=1e-6), pooled=True),
    "PVI synchronous": Scheme("all sites at once", Synchronous(rounds=ROUNDS)),
    "PVI sequential": Scheme("site after site", Sequential(passes=ROUNDS)),
    "PVI asynchronous": Scheme("whoever is ready", Asynchronous(updates=ROUNDS * SITES)),
    "BCM, same prior": Scheme("each site once, alone", Synchronous(rounds=1), ALONE, 1.0),
    "BCM, split prior": Scheme("the same with the prior split", Synchronous(rounds=1), ALONE, 1.0, split_prior=True),
}


@dataclass(frozen=True)
class Outcome:
    """What one way leads to: its line of the table, its curve, its calibration, each site's contribution in nats."""

    row: Row
    curve: Curve
    calibration: Calibration
    contributions: Sequence[float]


@dataclass(frozen=True)
class Digits:
    """scikit-learn's digits with skewed labels: Dirichlet(0.3) over ten sites, a fifth held out."""

    shards: Sequence[tuple[np.ndarray, ...]]
    test: tuple[np.ndarray, ...]

    @classmethod
    def load(cls, seed: int) -> "Digits":
        X, y = datasets.load("digits")
        train, test = datasets.train_test((X / 16, y), share=0.2, seed=seed)
        return cls(datasets.split(train, SITES, "dirichlet", concentration=0.3, seed=seed), test)

    @property
    def pooled(self) -> list[tuple[np.ndarray, ...]]:
        return [tuple(np.concatenate(parts) for parts in zip(*self.shards, strict=True))]


def fit_digits(name: str, digits: Digits, seed: int, callbacks: Sequence[Callback] = ()) -> Outcome:
    """Fit in the way of that name, and measure on the test set after every round."""
    way = WAYS[name]
    model = SoftmaxRegression(features=64, classes=10, prior_scale=1.0, intercept=False)
    shards = digits.pooled if way.pooled else digits.shards

    def metrics(posterior: Family) -> Row:
        return classification(expected_response(model, posterior, digits.test[0]), digits.test[1])

    began = time.perf_counter()
    if way.split_prior:
        assert way.solver is not None
        result = split_prior(model, shards, way.solver, seed)
    else:
        result = fit(
            model,
            shards,
            solver=way.solver,
            schedule=way.schedule,
            damping=way.damping,
            seed=seed,
            callbacks=(Every(metrics, folds=1 if way.schedule.waits and way.schedule.parallel else SITES), *callbacks),
        )
    seconds = time.perf_counter() - began
    return describe_outcome(name, result, metrics(result.posterior), seconds, digits)


def describe_outcome(name: str, result: Result, measured: Row, seconds: float, digits: Digits) -> Outcome:
    pooled, last = WAYS[name].pooled, result.history[-1]
    row = {
        "method": name,
        **measured,
        "rounds": round(last["round"]),
        "messages": 0 if pooled else last["messages"],
        "bytes": 0 if pooled else last["bytes"],
        "seconds": round(seconds, 2),
        "log evidence": result.log_evidence,
    }
    probabilities = expected_response(result.model, result.posterior, digits.test[0])
    # Events carry the free energy that was known when they happened; the last one is that of the result.
    end = {**last, **measured, "free_energy": result.log_evidence, "log_evidence": result.log_evidence}
    rows = [*result.history, end]
    if pooled:
        rows = [{key: value for key, value in row.items() if key not in ("messages", "bytes")} for row in rows]
    calibration = calibrate_classes(probabilities, digits.test[1])
    return Outcome(row, Curve(name, rows), calibration, result.contributions().tolist())


def build_report(outcomes: Sequence[Outcome], digits: Digits) -> Report:
    """The page: table, who has which labels, calibration, and the curves."""
    calibrations = {outcome.row["method"]: outcome.calibration for outcome in outcomes}
    contributions = {
        name: outcome.contributions if name.startswith("PVI") else None
        for name, outcome in zip(WAYS, outcomes, strict=True)
    }
    return Report(
        title="Digits over ten sites",
        words=(
            "A Bayesian softmax regression, fitted without moving data: partitioned variational inference (PVI) with "
            "three schedules, beside global variational inference on pooled data and the Bayesian committee machine. "
            "Log evidence is the free energy, a lower bound; messages and bytes are those that would leave a site."
        ),
        table=[outcome.row for outcome in outcomes],
        curves=[outcome.curve for outcome in outcomes],
        pictures=[
            draw_labels(digits.shards),
            compare_calibrations(calibrations),
            compare_contributions(contributions),
        ],
    )


def run_demo(seed: int, watch: Callable[[str, Row], Sequence[Callback]]) -> tuple[list[Outcome], Digits]:
    """Fit in all ways; `watch`, called with the name of one and labels for its events, gives callbacks."""
    digits = Digits.load(seed)
    return [fit_digits(name, digits, seed, watch(name, {"method": name})) for name in WAYS], digits
