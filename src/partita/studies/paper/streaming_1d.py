"""A stream in one dimension, batch after batch, to look at."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from partita.estimators import StreamingGPRegressor
from partita.foundation.plain import Row
from partita.studies.options import Methods, Paper, Quick, Seeds
from partita.studies.pages import Experiment, Presentation
from partita.studies.paper.form_streams import FormRegressor, Search
from partita.studies.paper.pictures import frames
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
    "private": "five new pseudo-points with every batch; old ones stay",
    "shared": "at most ten pseudo-points, all moved at every batch",
}
METHODS = tuple(WORDS)
BATCHES = 5
# A stream, and what the paper says of batches of a single row, after a first one that is half of the rows.
SETTINGS = ("stream", "one row in the second")
SEARCH = Search(1000, 0.03, 2)
NOISE = 0.15
# How many points there are that all move.
SHARED = 10


def truth(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.sin(2 * x) + 0.4 * x * np.cos(5 * x) / (1 + x**2))


def experiment(method: Methods = None, quick: Quick = False, paper: Paper = False, seeds: Seeds = 1) -> Experiment:
    """The study that its options ask for; a quick one has one seed."""
    shown = Presentation(
        "A stream in one dimension", ("smse", "nlpd", "coverage", "noise"), ["smse", "noise"], (*KEYS, "noise"),
        pictures=lambda rows: [frames(rows, truth)],
    )  # fmt: skip
    names = choose_methods(method, paper, METHODS, tuple(FORMS))
    return Experiment(shown, cells(names, 1 if quick else seeds, _search(quick)), measure_flops)


def _search(quick: bool) -> Search:
    return replace(SEARCH, steps=300) if quick else SEARCH


def cells(names: Sequence[str] | None, seeds: int, search: Search = SEARCH) -> list[Cell]:
    """Ours have one setting where nobody names them; the paper's have both."""
    return [
        _cell(name, setting, seed, search)
        for setting in SETTINGS
        for seed in range(seeds)
        for name in (*METHODS, *FORMS)
        if name in (METHODS if names is None else names) and (setting == SETTINGS[0] or names is not None)
    ]


def _cell(method: str, setting: str, seed: int, search: Search) -> Cell:
    settings: Row = {"batches": BATCHES} | (asdict(search) if method in FORMS else {})
    words = (WORDS | FORM_WORDS)[method]
    work = 1e9 if method in METHODS else 5e6 * search.steps * search.draws
    return Cell(method, setting, seed, work, settings, lambda: _rows(method, setting, seed, search), words)


def make_batches(setting: str, generator: np.random.Generator) -> list[Data]:
    """Rows in the order of their input, in five batches; or half of them, and then the next one alone."""
    x = np.sort(generator.uniform(-4, 4, 150))
    y = truth(x) + NOISE * generator.standard_normal(len(x))
    if setting == SETTINGS[1]:
        return [(x[:75, None], y[:75]), (x[75:76, None], y[75:76])]
    return [(x[part, None], y[part]) for part in np.array_split(np.arange(len(x)), BATCHES)]


def _rows(method: str, setting: str, seed: int, search: Search) -> Iterator[Row]:
    generator = np.random.default_rng(seed)
    batches = make_batches(setting, generator)
    places = np.linspace(-4.5, 4.5, 181)
    # Of a stream that ends early, what counts is what is known where it has been.
    most = 4.0 if setting == SETTINGS[0] else float(batches[0][0].max())
    inside = (places >= -4) & (places <= most)
    targets = truth(places[inside]) + NOISE * generator.standard_normal(inside.sum())
    for counted, model, (inputs, outputs) in learn_batches(_model(method, seed, search), batches, learn_numbers):
        mean, std = model.predict(places[:, None], return_std=True)
        yield {
            **counted,
            **scores(mean[inside], std[inside], targets),
            "points": len(model.pseudo_points_),
            "free_energy": model.log_evidence_,
            "noise": float(np.median(model.noise_draws(100))),
            # Pictures are drawn from the rest.
            "x": np.round(places, 4).tolist(),
            "mean": np.round(mean, 4).tolist(),
            "std": np.round(std, 4).tolist(),
            "batch": [np.round(inputs[:, 0], 4).tolist(), np.round(outputs, 4).tolist()],
            "places": np.round(model.pseudo_points_[:, 0], 4).tolist(),
        }


class Regressor(StreamingGPRegressor):
    """A regressor that gives draws of its noise in the units of the data."""

    def noise_draws(self, number: int) -> np.ndarray:
        return self.stream_.draws(number)["likelihood.noise"] * self.targets_.affine.scale


class PaperRegressor(FormRegressor):
    """The same of the paper's schemes."""

    def noise_draws(self, number: int) -> np.ndarray:
        return self.hyperparameter_draws(number)["noise"]


def _model(method: str, seed: int, search: Search) -> Any:
    if method in FORMS:
        # Shared points are as many as ours that are shared.
        form = FORMS[method]
        return PaperRegressor(form, 5 if form.is_private else SHARED, search, seed)
    settings: Row = {"pseudo_points": "shared", "max_points": SHARED} if method == "shared" else {}
    return Regressor(points_per_batch=5, steps=150, random_state=seed, **settings)
