"""Variational continual learning (Nguyen et al., 2018): one pass of PVI over tasks, with and without coresets."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import jax
import numpy as np

from partita.datasets.coresets import hold_out, k_centre_rows, random_rows
from partita.errors import InputError
from partita.families import MeanField
from partita.fitting import partial_fit
from partita.foundation.plain import Row
from partita.models import Network, prior_of
from partita.result import Result
from partita.server.schedules import OnePass
from partita.solvers import Gradient
from partita.studies.images import Images, decaying_adam
from partita.studies.options import Folder, Methods, Quick, Seeds, Validate
from partita.studies.pages import Experiment, Presentation, choose_names
from partita.studies.runner import Cell
from partita.studies.speed import measure_network

METHODS = ("vcl", "vcl-random-coreset", "vcl-k-centre-coreset", "coreset-only")
SETTINGS = ("permuted", "split")

Data = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Plan:
    """What one setting takes. `rows` of a task are all there are, if None; `coreset` is how many of them are kept.

    `steps` are those of a task, `kept_steps` those of the coresets of all tasks so far, which are repeated to fill
    `kept_rows`. The rate falls to zero within a refinement. `samples` are draws of the weights for a prediction.
    Scales and rates were chosen on a sixth of the training part, with two tasks and 1,500 steps.
    """

    tasks: int
    hidden: tuple[int, ...]
    heads: int
    coreset: int
    rows: int | None
    steps: int
    kept_rows: int
    kept_steps: int
    learning_rate: float = 1e-2
    start_scale: float = 0.03
    prior_scale: float = 0.15
    batch_size: int = 256
    samples: int = 8

    def solver(self, steps: int) -> Gradient:
        optimiser = decaying_adam(self.learning_rate, steps)
        return Gradient(optimiser=optimiser, steps=steps, batch_size=self.batch_size, tolerance=0.0)


PLANS = {
    "permuted": Plan(10, (100, 100), 1, coreset=200, rows=None, steps=2000, kept_rows=2000, kept_steps=400),
    "split": Plan(5, (256, 256), 5, coreset=40, rows=None, steps=800, kept_rows=200, kept_steps=200),
}
# Coresets take as many rows and steps as tasks do: compiling one more program would take longer.
_FEW: dict[str, Any] = {"rows": 3000, "steps": 100, "kept_rows": 3000, "kept_steps": 100}
QUICK = {
    "permuted": replace(PLANS["permuted"], tasks=3, **_FEW),
    "split": replace(PLANS["split"], tasks=2, hidden=(100, 100), **_FEW),
}


def start_of(model: Network, prior: MeanField, tasks: Sequence[int]) -> MeanField:
    """Weights that tasks are the first to use start from Glorot's, with a small scale; all others from the prior.

    What no row has to do with then has no gradient and keeps its prior. A head's first task would not learn from a
    draw of the prior, as wide as it is, and the other heads would not find back to it from a small scale.
    """
    glorot = model.network.start(model.init_seed)
    fresh = MeanField.from_moments(glorot, np.float32(model.start_scale))
    is_first = 0 in tasks
    *hidden, last = jax.tree.map(lambda a: np.full(np.shape(a), is_first), glorot)
    outputs = model.layers[-1]
    head = np.arange(outputs) // (outputs // model.heads)
    mine = np.isin(head, tasks) if model.heads > 1 else np.full(outputs, is_first)
    where = (*hidden, type(last)(np.broadcast_to(mine, last.weights.shape), mine))

    def chosen(a: Any, b: Any) -> Any:
        return jax.tree.map(lambda w, x, y: np.where(w, x, y), where, a, b)

    return MeanField(
        chosen(fresh.precision_times_location, prior.precision_times_location),
        chosen(fresh.precision, prior.precision),
    )


def learner(plan: Plan, inputs: int, seed: int) -> Network:
    """A network before its first task. Its prior is as if it had been given, so that all tasks share one program."""
    model = Network(
        [inputs, *plan.hidden, 10],
        heads=plan.heads,
        prior_scale=plan.prior_scale,
        start_scale=plan.start_scale,
        init_seed=seed,
    )
    return model.with_prior(prior_of(model, model.hyper))


def learn(
    state: Result | Network, data: tuple[np.ndarray, ...], new: Sequence[int], solver: Gradient, seed: int
) -> Result:
    """One more batch of the stream; `new` are the tasks in it that were not seen before."""
    model: Any = state.model if isinstance(state, Result) else state
    prior: Any = state.posterior if isinstance(state, Result) else prior_of(state, state.hyper)
    start = start_of(model, prior, new)
    return partial_fit(state, data, solver=solver, schedule=OnePass(), start=start, seed=seed)


CORESETS: dict[str, Callable[[np.ndarray, int, np.random.Generator], np.ndarray]] = {
    "vcl-random-coreset": random_rows,
    "vcl-k-centre-coreset": k_centre_rows,
    "coreset-only": random_rows,
}


def repeat(coresets: Sequence[Data], rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coresets over and over, up to `rows` rows, whose weights count each once: however many, one program fits all."""
    X, y = (np.concatenate(parts) for parts in zip(*coresets, strict=True))
    index = np.arange(max(rows, len(y))) % len(y)
    return X[index], y[index], 1 / np.bincount(index)[index]


def task(images: Images, setting: str, number: int, seed: int, rows: int | None = None) -> tuple[Data, Data]:
    """Training and test part of a task: all images with pixels in an order of its own, or those of two digits."""
    generator = np.random.default_rng([seed, number])
    order = generator.permutation(images.train[0].shape[1]) if setting == "permuted" else None

    def part(data: Data, limit: int | None) -> Data:
        X, y = data
        keep = np.flatnonzero(y // 2 == number) if setting == "split" else np.arange(len(y))
        if limit is not None and limit < len(keep):
            keep = generator.permutation(keep)[:limit]
        return (X[keep] if order is None else X[keep][:, order]), y[keep]

    return part(images.train, rows), part(images.test, None)


def experiment(
    method: Methods = None, quick: Quick = False, seeds: Seeds = 1, validate: Validate = False, folder: Folder = None
) -> Experiment:
    """The study that its options ask for."""
    names = choose_names(method, METHODS)
    images = Images.load("digits" if quick else "mnist", folder, validate=validate)
    hidden = (50,) if quick else (100, 100)
    shown = Presentation("Variational continual learning")
    made = cells(quick, seeds, images, names)
    return Experiment(shown, made, lambda: measure_network(images.network(hidden)))


def cells(quick: bool, seeds: int, images: Images, methods: Sequence[str] | None = None) -> list[Cell]:
    """Every method in both settings, seed by seed."""
    unknown = [name for name in methods or () if name not in METHODS]
    if unknown:
        raise InputError(f"methods: {unknown[0]!r} is not known: use some of {', '.join(METHODS)}")
    return [
        _cell(images, method, setting, seed, (QUICK if quick else PLANS)[setting])
        for seed in range(seeds)
        for setting in SETTINGS
        for method in METHODS
        if methods is None or method in methods
    ]


def _cell(images: Images, method: str, setting: str, seed: int, plan: Plan) -> Cell:
    settings = {
        **asdict(plan),
        "images": [len(images.train[1]), len(images.test[1])],
        "digest": float(images.test[0].sum()),
    }
    return Cell(
        method, setting, seed, _work(images, method, plan), settings, lambda: _rows(images, method, setting, seed, plan)
    )


def _work(images: Images, method: str, plan: Plan) -> float:
    """Rows that steps visit, in units of the network for permuted images."""
    inputs = images.train[0].shape[1]

    def weights(hidden: Sequence[int]) -> int:
        sizes = [inputs, *hidden, 10]
        return sum(a * b for a, b in pairwise(sizes))

    trained = 0 if method == "coreset-only" else plan.steps
    kept = 0 if method == "vcl" else plan.kept_steps
    rows = plan.tasks * plan.batch_size * (trained + kept)
    return rows * weights(plan.hidden) / weights(PLANS["permuted"].hidden)


def _rows(images: Images, method: str, setting: str, seed: int, plan: Plan) -> Iterator[Row]:
    stream: Result | Network = learner(plan, images.train[0].shape[1], seed)
    coresets: list[Data] = []
    tests: list[Data] = []
    seconds = 0.0
    for number in range(plan.tasks):
        train, test = task(images, setting, number, seed, plan.rows)
        tests.append(test)
        began = time.perf_counter()
        if method in CORESETS:
            rows = CORESETS[method](train[0], plan.coreset, np.random.default_rng([seed, number, 1]))
            coreset, train = hold_out(train, rows)
            coresets.append(coreset)
        if method != "coreset-only":
            stream = learn(stream, train, [number], plan.solver(plan.steps), 1000 * seed + number)
        believed = stream
        if coresets:
            # A copy, for predictions only: what comes next builds on the stream, where coresets have no part.
            kept = repeat(coresets, plan.kept_rows)
            new = range(number + 1) if method == "coreset-only" else []
            believed = learn(stream, kept, new, plan.solver(plan.kept_steps), 1000 * seed + 500 + number)
        assert isinstance(believed, Result)
        seconds += time.perf_counter() - began
        messages = 2 * (number + 1)
        yield {
            "round": number + 1,
            "seconds": seconds,
            "messages": messages,
            "bytes": messages * believed.posterior.nbytes,
            **_scores(believed, tests, plan.samples),
            "free_energy": None if method == "coreset-only" else believed.log_evidence,
        }


def _scores(result: Result, tests: Sequence[Data], samples: int) -> Row:
    """Averages over tasks of error, NLL and calibration."""
    model: Any = result.model
    scores = [model.score(result.predict_proba(X, samples), y) for X, y in tests]
    return {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}
