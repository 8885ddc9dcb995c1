"""Streaming classification of the banana data, with beliefs about hyperparameters: Section 7.2 of the paper."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

from partita import datasets
from partita.estimators import StreamingGPClassifier
from partita.foundation.plain import Row
from partita.metrics import classification
from partita.studies.options import Folder, Methods, Paper, Quick, Seeds
from partita.studies.pages import Experiment, Presentation
from partita.studies.paper.form_streams import FormClassifier, Search
from partita.studies.paper.forms import Form
from partita.studies.paper.pictures import beliefs, surfaces
from partita.studies.paper.streams import FORM_WORDS, FORMS, Data, choose_methods, learn_batches
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
SETTINGS = ("three batches", "ten rows in the second", "one row in the second")
WORDS = {
    "batch-ml": "a sparse GP of all rows, best hyperparameters",
    "batch-vi": "a sparse GP of all rows, a distribution over hyperparameters",
    "streaming-ml": "batch after batch, private pseudo-points, best hyperparameters",
    "streaming-vi": "the same with a distribution over hyperparameters",
    "nuts": "NUTS over the function at all rows and the hyperparameters (NumPyro)",
}
METHODS = tuple(WORDS)
# How else the bound of private points and a point for hyperparameters can be read, which is misprinted in the paper;
# and the same free energies of all rows at once.
OTHER_FORMS = {
    "paper-private-ml-now": Form("private", "ml", "now"),
    "paper-private-ml-printed": Form("private", "ml", "printed"),
    "paper-batch-vi": FORMS["paper-private-vi"],
    "paper-batch-ml": FORMS["paper-private-ml"],
}
KNOWN_FORMS = FORMS | OTHER_FORMS
PAPER_WORDS = FORM_WORDS | {
    "paper-private-ml-now": "private points, best hyperparameters, of which old values say nothing",
    "paper-private-ml-printed": "private points, best hyperparameters, with the sign as it is printed",
    "paper-batch-vi": "the paper's, of all rows at once, a distribution over hyperparameters",
    "paper-batch-ml": "the paper's, of all rows at once, best hyperparameters",
}
# Steps of methods that follow gradients in all they learn, for one of those that find most of it in closed form.
FOLLOWED = 5
FORM_DRAWS = 2
# Predictions are drawn on a grid with so many points in each direction.
GRID = 40
UNLIKELY = 0.1


@dataclass(frozen=True)
class Scale:
    """How large a study is: points of a batch, steps of the optimiser, draws of NUTS after as many to warm up."""

    points: int
    steps: int
    draws: int
    settings: tuple[str, ...] = SETTINGS
    paper: tuple[str, ...] = (*PAPER_WORDS, "nuts")


FULL = Scale(points=10, steps=400, draws=300)
# A quick study leaves out what is another program to compile.
QUICK = Scale(points=10, steps=100, draws=60, settings=SETTINGS[:2], paper=tuple(FORMS))


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
    return "batch" not in method and method != "nuts"


def experiment(
    method: Methods = None, quick: Quick = False, paper: Paper = False, seeds: Seeds = 1, folder: Folder = None
) -> Experiment:
    """The study that its options ask for."""
    scale = QUICK if quick else FULL
    names = choose_methods(
        method, paper, methods(), [name for name in scale.paper if name in (*PAPER_WORDS, *methods())]
    )
    shown = Presentation(
        "Banana", charts=["error", "nll", "variance"], keys=KEYS, pictures=lambda rows: [surfaces(rows), beliefs(rows)]
    )
    made = cells(load(quick, folder), scale, names, seeds)
    left_out = "NUTS is left out: it needs NumPyro, of the extra numpyro"
    return Experiment(shown, made, measure_flops, "" if method or "nuts" in methods() else left_out)


def cells(data: tuple[Data, Data], scale: Scale, names: Sequence[str] | None, seeds: int) -> list[Cell]:
    chosen = methods() if names is None else names
    return [
        _cell(data, scale, method, setting, seed)
        for seed in range(seeds)
        for setting in scale.settings
        for method in (*METHODS, *PAPER_WORDS)
        if method in chosen and has_setting(method, setting)
    ]


def has_setting(method: str, setting: str) -> bool:
    """Whether a method's answer depends on the setting: batch methods know one; a single row is for the paper's."""
    if setting == SETTINGS[0]:
        return True
    return streams(method) and (setting == SETTINGS[1] or method in KNOWN_FORMS)


def _cell(data: tuple[Data, Data], scale: Scale, method: str, setting: str, seed: int) -> Cell:
    rows = len(data[0][1])
    settings = {"points": scale.points, "steps": scale.steps, "draws": scale.draws, "digest": float(data[1][0].sum())}
    if method in KNOWN_FORMS:
        settings |= asdict(_search(scale))
    work = scale.steps * 40.0 * rows * (3 * scale.points) ** 2
    if method == "nuts":
        work = 60 * 40.0 * scale.draws * rows**3
    elif method in KNOWN_FORMS:
        work *= FOLLOWED * FORM_DRAWS
    words = (WORDS | PAPER_WORDS)[method]
    return Cell(method, setting, seed, work, settings, lambda: _rows(data, scale, method, setting, seed), words)


def _search(scale: Scale) -> Search:
    return Search(FOLLOWED * scale.steps, 0.03, FORM_DRAWS)


def parts(data: Data, setting: str) -> list[Data]:
    """Three batches in the order of the first input; in later settings, only ten rows in the middle one, or one."""
    X, y = data
    order = np.argsort(X[:, 0], kind="stable")
    third = len(y) // 3
    cuts = [third, third + dict(zip(SETTINGS, (third, 10, 1), strict=True))[setting]]
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
        surface = np.round(model.predict_proba(places)[:, 1], 3)
        yield {
            **counted,
            **classification(model.predict_proba(X_test), y_test),
            "lengthscales": np.median(drawn["lengthscale"], axis=0).tolist(),
            "variance": float(np.median(drawn["variance"])),
            "free_energy": model.log_evidence_,
            # How wide the boundary is: the share of the plane where neither class is likely.
            "undecided": float(np.mean((surface > UNLIKELY) & (surface < 1 - UNLIKELY))),
            # Pictures are drawn from the rest.
            "drawn": {
                name: np.round(np.log(value), 4).reshape(len(value), -1).T.tolist() for name, value in drawn.items()
            },
            "axes": [np.round(axis, 4).tolist() for axis in axes],
            "surface": surface.reshape(GRID, GRID).tolist(),
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
    if method in KNOWN_FORMS:
        # Shared points are as many from the beginning as private ones are in the end.
        form, all_points = KNOWN_FORMS[method], 3 * scale.points
        return FormClassifier(
            form, scale.points if form.is_private and streams(method) else all_points, _search(scale), seed
        )
    kind, learns = method.split("-")
    hyperparameters: Literal["ml", "variational"] = "ml" if learns == "ml" else "variational"
    return Classifier(
        points_per_batch=scale.points if kind == "streaming" else 3 * scale.points,
        hyperparameters=hyperparameters,
        steps=scale.steps,
        random_state=seed,
    )
