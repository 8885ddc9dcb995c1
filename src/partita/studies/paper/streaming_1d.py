"""A stream in one dimension, batch after batch, to look at."""

import time
from collections.abc import Iterator, Sequence

import numpy as np

from partita.estimators import StreamingGPRegressor
from partita.reproduce.robot_arm import scores
from partita.reproduce.study import Cell
from partita.telemetry import Row

KEYS = ("method", "setting", "seed", "round", "seconds", "smse", "nlpd", "coverage", "points", "free_energy")
METHODS = ("private", "shared")
WORDS = {
    "private": "five new pseudo-points with every batch; old ones stay",
    "shared": "at most ten pseudo-points, all moved at every batch",
}
BATCHES = 5


def truth(x: np.ndarray) -> np.ndarray:
    return np.sin(2 * x) + 0.4 * x * np.cos(5 * x) / (1 + x**2)


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
    model = StreamingGPRegressor(points_per_batch=5, steps=150, random_state=seed, **settings)
    seconds = 0.0
    for number, part in enumerate(np.array_split(np.arange(len(x)), BATCHES)):
        began = time.perf_counter()
        model.partial_fit(x[part, None], y[part])
        seconds += time.perf_counter() - began
        mean, std = model.predict(places[:, None], return_std=True)
        yield {
            "round": number + 1,
            "seconds": seconds,
            **scores(mean[inside], std[inside], targets),
            "points": len(model.pseudo_points_),
            "free_energy": model.log_evidence_,
            # For the pictures.
            "x": np.round(places, 4).tolist(),
            "mean": np.round(mean, 4).tolist(),
            "std": np.round(std, 4).tolist(),
            "batch": [np.round(x[part], 4).tolist(), np.round(y[part], 4).tolist()],
            "places": np.round(model.pseudo_points_[:, 0], 4).tolist(),
        }
