"""Streaming classification of the banana data, with beliefs about hyperparameters: Section 7.2 of the paper."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

from partita import datasets
from partita.estimators import StreamingGPClassifier
from partita.foundation.plain import Row
from partita.metrics import classification
from partita.studies.options import Folder, Methods, Quick, Seeds
from partita.studies.pages import Experiment, Presentation, choose_names
from partita.studies.paper.pictures import beliefs, surfaces
from partita.studies.paper.streams import Data, learn_batches
from partita.studies.runner import Cell
from partita.studies.speed import measure_flops

KEYS = (
    "method",
    "setting",
    "seed",
    "round",
    "seconds",
    "error",
    "nll",
    "ece",
    "lengthscales",
    "variance",
    "free_energy",
)
SETTINGS = ("three batches", "ten rows in the second")
WORDS = {
    "batch-ml": "a sparse GP of all rows, best hyperparameters",
    "batch-vi": "a sparse GP of all rows, a distribution over hyperparameters",
    "streaming-ml": "batch after batch, private pseudo-points, best hyperparameters",
    "streaming-vi": "the same with a distribution over hyperparameters",
    "frozen-ml": "as in the paper: beliefs about old function values are never touched again; best hyperparameters",
    "frozen-vi": "the same with a distribution over hyperparameters",
    "nuts": "NUTS over the function at all rows and the hyperparameters (NumPyro)",
}
METHODS = tuple(WORDS)
# Steps of methods that follow gradients in all they learn, for one of those that find most of it in closed form.
FROZEN = 5
# Predictions are drawn on a grid with so many points in each direction.
GRID = 40


@dataclass(frozen=True)
class Scale:
    """How large a study is: points of a batch, steps of the optimiser, draws of NUTS after as many to warm up."""

    points: int
    steps: int
    draws: int
    methods: tuple[str, ...] = METHODS


FULL = Scale(points=10, steps=400, draws=300)
# A quick study leaves the method out that is slowest to compile.
QUICK = Scale(points=10, steps=300, draws=60, methods=tuple(name for name in METHODS if name != "frozen-vi"))


def load(quick: bool, folder: Any = None) -> tuple[Data, Data]:
    """Banana, or two half moons, which have the same shape and come with scikit-learn."""
    if not quick:
        return datasets.load_split("banana", folder)
    from sklearn.datasets import make_moons

    X, y = make_moons(1120, noise=0.3, random_state=0)
    return (X[:120], y[:120].astype(float)), (X[120:], y[120:].astype(float))


def methods() -> list[str]:
    """The methods that can run here: NUTS needs NumPyro."""
    return [name for name in METHODS if name != "nuts" or find_spec("numpyro") is not None]


def streams(method: str) -> bool:
    return method.startswith(("streaming", "frozen"))


def experiment(method: Methods = None, quick: Quick = False, seeds: Seeds = 1, folder: Folder = None) -> Experiment:
    """The study that its options ask for."""
    names = choose_names(method, methods())
    shown = Presentation(
        "Banana", charts=["error", "nll", "variance"], keys=KEYS, pictures=lambda rows: [surfaces(rows), beliefs(rows)]
    )
    made = cells(load(quick, folder), QUICK if quick else FULL, names, seeds)
    left_out = "NUTS is left out: it needs NumPyro, of the extra numpyro"
    return Experiment(shown, made, measure_flops, "" if method or "nuts" in methods() else left_out)


def cells(data: tuple[Data, Data], scale: Scale, names: Sequence[str] | None, seeds: int) -> list[Cell]:
    return [
        _cell(data, scale, method, setting, seed)
        for seed in range(seeds)
        for setting in SETTINGS
        for method in methods()
        if method in (names or scale.methods) and (setting == SETTINGS[0] or streams(method))
    ]


def _cell(data: tuple[Data, Data], scale: Scale, method: str, setting: str, seed: int) -> Cell:
    rows = len(data[0][1])
    settings = {"points": scale.points, "steps": scale.steps, "draws": scale.draws, "digest": float(data[1][0].sum())}
    work = (
        60 * 40.0 * scale.draws * rows**3 if method == "nuts" else scale.steps * 40.0 * rows * (3 * scale.points) ** 2
    )
    return Cell(method, setting, seed, work, settings, lambda: _rows(data, scale, method, setting, seed), WORDS[method])


def parts(data: Data, setting: str) -> list[Data]:
    """Three batches in the order of the first input; in the second setting, only ten rows in the middle one."""
    X, y = data
    order = np.argsort(X[:, 0], kind="stable")
    third = len(y) // 3
    cuts = [third, 2 * third] if setting == SETTINGS[0] else [third, third + 10]
    return [(X[part], y[part]) for part in np.split(order, cuts)]


def grid(data: Data) -> tuple[np.ndarray, np.ndarray]:
    low, high = data[0].min(axis=0), data[0].max(axis=0)
    margin = 0.15 * (high - low)
    axes = [np.linspace(a, b, GRID) for a, b in zip(low - margin, high + margin, strict=True)]
    return axes[0], axes[1]


def _rows(data: tuple[Data, Data], scale: Scale, method: str, setting: str, seed: int) -> Iterator[Row]:
    train, (X_test, y_test) = data
    batches = parts(train, setting) if streams(method) else [train]
    axes = grid(train)
    places = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)
    for counted, model, (X, y) in learn_batches(_model(scale, method, seed), batches, _learn_classes):
        drawn = model.hyperparameter_draws(400)
        yield {
            **counted,
            **classification(model.predict_proba(X_test), y_test),
            "lengthscales": np.median(drawn["lengthscale"], axis=0).tolist(),
            "variance": float(np.median(drawn["variance"])),
            "free_energy": model.log_evidence_,
            # Pictures are drawn from the rest.
            "drawn": {
                name: np.round(np.log(value), 4).reshape(len(value), -1).T.tolist() for name, value in drawn.items()
            },
            "axes": [np.round(axis, 4).tolist() for axis in axes],
            "surface": np.round(model.predict_proba(places)[:, 1], 3).reshape(GRID, GRID).tolist(),
            "batch": [np.round(X, 4).tolist(), y.tolist()],
            "points": np.round(model.pseudo_points_, 4).tolist(),
        }


def _learn_classes(model: Any, batch: Data) -> Any:
    return model.partial_fit(*batch, classes=[0.0, 1.0])


class Classifier(StreamingGPClassifier):
    """A classifier that gives draws of its hyperparameters in the units of the data, as NUTS does."""

    def hyperparameter_draws(self, number: int) -> dict[str, np.ndarray]:
        drawn = self.stream_.draws(number)
        return {
            "variance": drawn["kernel.variance"],
            "lengthscale": drawn["kernel.lengthscale"] * self.inputs_.affine.scale,
        }


def _model(scale: Scale, method: str, seed: int) -> Any:
    if method == "nuts":
        from partita.studies.paper.nuts_classifier import NutsClassifier

        return NutsClassifier(scale.draws, seed)
    kind, learns = method.split("-")
    hyperparameters: Literal["ml", "variational"] = "ml" if learns == "ml" else "variational"
    if kind == "frozen":
        from partita.studies.paper.frozen import FrozenClassifier

        return FrozenClassifier(scale.points, hyperparameters, FROZEN * scale.steps, seed)
    return Classifier(
        points_per_batch=scale.points if kind == "streaming" else 3 * scale.points,
        hyperparameters=hyperparameters,
        steps=scale.steps,
        random_state=seed,
    )
