"""A stream in one dimension, batch after batch, to look at."""

from collections.abc import Iterator, Sequence

import numpy as np

from partita.estimators import StreamingGPRegressor
from partita.foundation.plain import Row
from partita.studies.options import Methods, Quick, Seeds
from partita.studies.pages import Experiment, Presentation, choose_names
from partita.studies.paper.pictures import frames
from partita.studies.paper.streams import KEYS, learn_batches, learn_numbers, scores
from partita.studies.runner import Cell
from partita.studies.speed import measure_flops

WORDS = {
    "private": "five new pseudo-points with every batch; old ones stay",
    "shared": "at most ten pseudo-points, all moved at every batch",
}
METHODS = tuple(WORDS)
BATCHES = 5


def truth(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.sin(2 * x) + 0.4 * x * np.cos(5 * x) / (1 + x**2))


def experiment(method: Methods = None, quick: Quick = False, seeds: Seeds = 1) -> Experiment:
    """The study that its options ask for; a quick one has one seed."""
    shown = Presentation(
        "A stream in one dimension", ("smse", "nlpd", "coverage"), ["smse"], KEYS,
        pictures=lambda rows: [frames(rows, truth)],
    )  # fmt: skip
    return Experiment(shown, cells(choose_names(method, METHODS), 1 if quick else seeds), measure_flops)


def cells(names: Sequence[str] | None, seeds: int) -> list[Cell]:
    return [
        Cell(name, "stream", seed, 1e9, {"batches": BATCHES}, lambda n=name, s=seed: _rows(n, s), WORDS[name])  # type: ignore[misc]
        for seed in range(seeds)
        for name in METHODS
        if names is None or name in names
    ]


def _rows(method: str, seed: int) -> Iterator[Row]:
    generator = np.random.default_rng(seed)
    x = np.sort(generator.uniform(-4, 4, 150))
    y = truth(x) + 0.15 * generator.standard_normal(len(x))
    places = np.linspace(-4.5, 4.5, 181)
    inside = np.abs(places) <= 4
    targets = truth(places[inside]) + 0.15 * generator.standard_normal(inside.sum())
    settings: Row = {"pseudo_points": "shared", "max_points": 10} if method == "shared" else {}
    start = StreamingGPRegressor(points_per_batch=5, steps=150, random_state=seed, **settings)
    batches = [(x[part, None], y[part]) for part in np.array_split(np.arange(len(x)), BATCHES)]
    for counted, model, (inputs, outputs) in learn_batches(start, batches, learn_numbers):
        mean, std = model.predict(places[:, None], return_std=True)
        yield {
            **counted,
            **scores(mean[inside], std[inside], targets),
            "points": len(model.pseudo_points_),
            "free_energy": model.log_evidence_,
            # Pictures are drawn from the rest.
            "x": np.round(places, 4).tolist(),
            "mean": np.round(mean, 4).tolist(),
            "std": np.round(std, 4).tolist(),
            "batch": [np.round(inputs[:, 0], 4).tolist(), np.round(outputs, 4).tolist()],
            "places": np.round(model.pseudo_points_[:, 0], 4).tolist(),
        }
