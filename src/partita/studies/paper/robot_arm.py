"""Inverse dynamics of a robot arm from a stream sorted by a joint's position: Section 7.2 of the paper."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from typer import Option

from partita import datasets
from partita.estimators import StreamingGPRegressor
from partita.foundation.checks import check_one_of
from partita.foundation.moments import Affine
from partita.foundation.plain import Row
from partita.foundation.runtime import precision
from partita.gaussian_processes.kernels import SquaredExponential
from partita.studies.options import Folder, Methods, Paper, Quick
from partita.studies.pages import Experiment, Presentation
from partita.studies.paper.form_streams import FormRegressor, Search
from partita.studies.paper.pictures import spreads
from partita.studies.paper.streams import (
    FORM_WORDS,
    FORMS,
    KEYS,
    Data,
    choose_methods,
    learn_batches,
    learn_numbers,
    scores,
)
from partita.studies.runner import Cell
from partita.studies.speed import measure_flops

WORDS = {
    "private": "new pseudo-points with every batch, a distribution over hyperparameters",
    "private-ml": "the same with the best hyperparameters instead",
    "shared": "as many pseudo-points as private ones have in the end, all moved at every batch",
    "limited-memory": "an exact GP of the latest rows, whose hyperparameters are trained on with every batch",
}
METHODS = tuple(WORDS)
PAPER_WORDS = FORM_WORDS | {
    "paper-limited-memory": "an exact GP of the latest rows, trained from scratch with every batch",
}
# Iterations of L-BFGS: of a memory that trains on, and of one that trains from scratch.
ON, AFRESH = 8, 30


@dataclass(frozen=True)
class Scale:
    """How many batches a stream has, how many points a batch adds, and how many rows a limited memory holds."""

    batches: int
    points: int
    memory: int
    settings: Row = field(default_factory=dict)
    # Of the paper's schemes.
    search: Search = field(default_factory=lambda: Search(1000, 0.03, 1))


FULL = Scale(batches=24, points=10, memory=1500)
QUICK = Scale(batches=8, points=8, memory=600, settings={"steps": 40}, search=Search(100, 0.05, 1))


def load(quick: bool, folder: Any = None) -> tuple[Data, Data]:
    """The Barrett WAM, or a simulated arm with two joints."""
    if not quick:
        return datasets.load_split("barrett-wam", folder)
    return datasets.train_test(datasets.load("simulated-arm"), share=0.2)


def experiment(
    method: Methods = None,
    quick: Quick = False,
    paper: Paper = False,
    orders: Annotated[int | None, Option(min=1, help="How many joints to sort by; all of them, if left out.")] = None,
    outputs: Annotated[
        str | None, Option(help="Which torques, counted from 1 and separated by commas, or all.")
    ] = None,
    steps: Annotated[int | None, Option(min=1, help="Of the paper's schemes, per batch; fewer are quicker.")] = None,
    folder: Folder = None,
) -> Experiment:
    """The study that its options ask for: streams in so many orders, and torques counted from 1, or all."""
    names = choose_methods(method, paper, METHODS, tuple(PAPER_WORDS))
    arm = load(quick, folder)
    joints, torques = arm[0][0].shape[1] // 3, arm[0][1].shape[1]
    known = [str(number) for number in range(1, torques + 1)]
    wanted = known if outputs == "all" else (outputs or ("1" if quick else "3")).split(",")
    for number in wanted:
        check_one_of("--", known, outputs=number.strip())
    joints = joints if orders is None else min(orders, joints)
    scale = QUICK if quick else FULL
    if steps is not None:
        scale = replace(scale, search=replace(scale.search, steps=steps))
    made = cells(arm, scale, names, range(joints), [int(number) - 1 for number in wanted])
    shown = Presentation(
        "Robot arm", ("smse", "nlpd", "coverage"), ["smse", "nlpd", "coverage", "points"], KEYS,
        over_seeds=lambda rows: [spreads(rows, "smse")],
    )  # fmt: skip
    return Experiment(shown, made, measure_flops)


def cells(
    data: tuple[Data, Data], scale: Scale, names: Sequence[str] | None, orders: Sequence[int], outputs: Sequence[int]
) -> list[Cell]:
    """Every method for every torque and every joint that the stream is sorted by, which stands where a seed would."""
    return [
        _cell(data, scale, method, joint, output)
        for output in outputs
        for joint in orders
        for method in (*METHODS, *PAPER_WORDS)
        if method in (METHODS if names is None else names)
    ]


def _cell(data: tuple[Data, Data], scale: Scale, method: str, joint: int, output: int) -> Cell:
    settings = {
        "batches": scale.batches,
        "points": scale.points,
        "memory": scale.memory,
        **scale.settings,
        "rows": len(data[0][0]),
        "digest": float(data[1][0].sum()),
    }
    if method in PAPER_WORDS:
        settings |= asdict(scale.search) | {"iterations": AFRESH}
    return Cell(
        method,
        f"torque {output + 1}",
        joint,
        _work(data, scale, method),
        settings,
        lambda: _rows(data, scale, method, joint, output),
        (WORDS | PAPER_WORDS)[method],
    )


def _work(data: tuple[Data, Data], scale: Scale, method: str) -> float:
    """How many floating-point operations a cell takes, roughly."""
    rows, most = len(data[0][0]) / scale.batches, scale.batches * scale.points
    if "limited-memory" in method:
        return scale.batches * 5 * (ON if method in WORDS else AFRESH) * scale.memory**3
    if method in FORMS:
        # Of growing points, the square is a third of the last one's on average.
        each = (rows + most) * most**2 * (35 if "shared" in method else 10)
        return float(scale.batches * scale.search.steps * scale.search.draws * each)
    steps = scale.settings.get("steps", 60) * scale.batches * (12 if method != "private-ml" else 6)
    return float(steps * (rows + most) * most**2 * (1.0 if method == "shared" else 0.4))


def sorted_batches(data: Data, joint: int, output: int, batches: int) -> list[Data]:
    """The stream: rows in the order of a joint's position."""
    X, Y = data
    order = np.argsort(X[:, joint], kind="stable")
    return [(X[part], Y[part, output]) for part in np.array_split(order, batches)]


def _rows(data: tuple[Data, Data], scale: Scale, method: str, joint: int, output: int) -> Iterator[Row]:
    train, (X_test, Y_test) = data
    batches = sorted_batches(train, joint, output, scale.batches)
    for counted, model, _ in learn_batches(_model(scale, method, train, output), batches, learn_numbers):
        mean, std = model.predict(X_test, return_std=True)
        yield {
            **counted,
            **scores(mean, std, Y_test[:, output]),
            "points": len(model.pseudo_points_),
            "free_energy": model.log_evidence_,
        }


def _model(scale: Scale, method: str, train: Data, output: int) -> Any:
    if "limited-memory" in method:
        return LimitedMemory(scale.memory, ON) if method in WORDS else LimitedMemory(scale.memory, AFRESH, afresh=True)
    if method in FORMS:
        form = FORMS[method]
        points = scale.points if form.is_private else scale.batches * scale.points
        units = Affine.of_rows(train[0]), Affine.of_rows(train[1][:, output])
        return Standardised(FormRegressor(form, points, scale.search), *units)
    if method == "shared":
        most = scale.batches * scale.points
        return StreamingGPRegressor(pseudo_points="shared", points_per_batch=most, max_points=most, **scale.settings)
    learns: Any = "ml" if method == "private-ml" else "variational"
    return StreamingGPRegressor(points_per_batch=scale.points, **{"hyperparameters": learns, **scale.settings})


class Standardised:
    """One of the paper's schemes in units that are known beforehand: its old values have units that do not change."""

    def __init__(self, model: FormRegressor, inputs: Affine, targets: Affine):
        self.model, self.inputs, self.targets = model, inputs, targets

    def partial_fit(self, X: np.ndarray, y: np.ndarray) -> "Standardised":
        self.model.partial_fit(self.inputs.standardise(X), self.targets.standardise(y))
        return self

    def predict(self, X: np.ndarray, return_std: bool = True) -> tuple[np.ndarray, np.ndarray]:
        mean, std = self.model.predict(self.inputs.standardise(X))
        return self.targets.restore(mean), std * self.targets.scale

    @property
    def pseudo_points_(self) -> np.ndarray:
        return self.inputs.restore(self.model.pseudo_points_)

    @property
    def log_evidence_(self) -> float:
        """Of standardised targets."""
        return self.model.log_evidence_


class LimitedMemory:
    """An exact GP of the latest rows: what a stream does to somebody who forgets."""

    def __init__(self, rows: int, iterations: int = ON, afresh: bool = False):
        self.rows, self.iterations, self.afresh = rows, iterations, afresh
        self.X, self.y = np.empty((0, 0)), np.empty(0)
        self.pseudo_points_ = self.X
        self.log_evidence_ = 0.0
        self.free: np.ndarray | None = None

    def partial_fit(self, X: np.ndarray, y: np.ndarray) -> "LimitedMemory":
        self.X = np.concatenate([self.X, X] if len(self.X) else [X])[-self.rows :]
        self.y = np.concatenate([self.y, y])[-self.rows :]
        self.pseudo_points_ = self.X
        self.inputs, self.targets = Affine.of_rows(self.X), Affine.of_rows(self.y)
        Z, t = self.inputs.standardise(self.X), self.targets.standardise(self.y)
        start = self.free
        if start is None or self.afresh:
            start = np.concatenate([[0.0, np.log(0.3)], np.full(Z.shape[1], 0.5 * np.log(Z.shape[1]))])

        def loss(free: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = _loss(free, Z, t)
            return float(value), np.asarray(gradient)

        with precision(np.float64):
            found = scipy.optimize.minimize(
                loss, start, jac=True, method="L-BFGS-B", bounds=[(-6, 6)] * len(start),
                options={"maxiter": self.iterations},
            )  # fmt: skip
        self.free, self.log_evidence_ = found.x, -float(found.fun)
        return self

    def predict(self, X: np.ndarray, return_std: bool = True) -> tuple[np.ndarray, np.ndarray]:
        with precision(np.float64):
            Z, t = self.inputs.standardise(self.X), self.targets.standardise(self.y)
            mean, variance = map(np.asarray, _predict(self.free, Z, t, self.inputs.standardise(X)))
        return self.targets.restore(mean), np.sqrt(variance) * self.targets.scale


def _params(free: Any) -> dict[str, Any]:
    return {"variance": jnp.exp(free[0]), "lengthscale": jnp.exp(free[2:])}


def _cholesky(free: Any, Z: Any) -> Any:
    K = SquaredExponential().gram(_params(free), Z)
    return jnp.linalg.cholesky(K + jnp.exp(2 * free[1]) * jnp.eye(len(Z), dtype=K.dtype))


@jax.jit
@jax.value_and_grad
def _loss(free: Any, Z: Any, t: Any) -> Any:
    """The negative log evidence, - log p(t), and its gradient."""
    L = _cholesky(free, Z)
    half = jax.scipy.linalg.solve_triangular(L, t, lower=True)
    return 0.5 * half @ half + jnp.sum(jnp.log(jnp.diag(L))) + 0.5 * len(t) * jnp.log(2 * jnp.pi)


@jax.jit
def _predict(free: Any, Z: Any, t: Any, X: Any) -> tuple[Any, Any]:
    """The mean and the variance of new targets."""
    L = _cholesky(free, Z)
    V = jax.scipy.linalg.solve_triangular(L, SquaredExponential().cross(_params(free), Z, X), lower=True)
    half = jax.scipy.linalg.solve_triangular(L, t, lower=True)
    return half @ V, jnp.exp(free[0]) + jnp.exp(2 * free[1]) - jnp.sum(V**2, axis=0)
