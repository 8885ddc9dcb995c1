"""Concave quadratic models whose curvature is a diagonal and what secants teach, and where several are highest."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

# How many secants say how large the curvature is where nothing was learnt.
RECENT = 5
# What is not zero, where something is divided by it.
TINY = 1e-12


@dataclass
class Model:
    """A concave quadratic model of log likelihoods around a place, in locations and logarithms of precisions."""

    memory: int
    place: np.ndarray
    value: float
    slope: np.ndarray
    curvature: np.ndarray
    # Ways from one place to the next, and how much the slope fell along them, newest last.
    ways: list[np.ndarray] = field(default_factory=list)
    falls: list[np.ndarray] = field(default_factory=list)
    # Whether the curvature where nothing is learnt yet has a scale that is learnt, too.
    scaled: bool = False

    def __post_init__(self) -> None:
        self._arrange()

    def moved(self, place: np.ndarray, value: float, slope: np.ndarray, curvature: np.ndarray) -> "Model":
        """The model around the next place, which has learnt from the way there, if that is curved as it should be."""
        way, fall = place - self.place, self.slope - slope
        ways, falls = self.ways, self.falls
        if self.memory and way @ fall > 1e-10 * np.sqrt((way @ way) * (fall @ fall)):
            ways, falls = [*ways, way][-self.memory :], [*falls, fall][-self.memory :]
        return Model(self.memory, place, value, slope, curvature, ways, falls, self.scaled)

    def _arrange(self) -> None:
        """Its curvature as diagonal - columns @ core @ columnsᵀ."""
        self.diagonal = np.maximum(self.curvature, TINY)
        if not self.ways:
            self.columns, self.core = np.zeros((len(self.place), 0)), np.zeros((0, 0))
            return
        if self.scaled:
            recent = zip(self.ways[-RECENT:], self.falls[-RECENT:], strict=True)
            self.diagonal /= max(float(way @ fall) / float(fall @ (fall / self.diagonal)) for way, fall in recent)
        S, Y = np.stack(self.ways, axis=1), np.stack(self.falls, axis=1)
        products, scaled = S.T @ Y, self.diagonal[:, None] * S
        lower = np.tril(products, -1)
        self.columns = np.concatenate([scaled, Y], axis=1)
        self.core = np.linalg.inv(np.block([[S.T @ scaled, lower], [lower.T, -np.diag(np.diag(products))]]))

    def curved(self, way: np.ndarray) -> np.ndarray:
        """The curvature times a vector."""
        product: np.ndarray = self.diagonal * way - self.columns @ (self.core @ (self.columns.T @ way))
        return product

    def slope_at(self, place: np.ndarray) -> np.ndarray:
        slope: np.ndarray = self.slope - self.curved(place - self.place)
        return slope

    def shortfall(self, place: np.ndarray, value: float) -> tuple[float, float]:
        """By how much a value there is short of what the model says, and how large its quadratic term is there."""
        way = place - self.place
        quadratic = 0.5 * float(way @ self.curved(way))
        return self.value + float(self.slope @ way) - quadratic - value, quadratic


def highest(models: Sequence[Model], place: np.ndarray, slope: np.ndarray, curvature: np.ndarray) -> np.ndarray:
    """The way from a place to where models, and what has this slope and curvature there, are highest together."""
    total = slope + sum(model.slope_at(place) for model in models)
    diagonal = curvature + sum(model.diagonal for model in models)
    columns = np.concatenate([model.columns for model in models], axis=1)
    along: np.ndarray = total / diagonal
    if columns.shape[1] == 0:
        return along
    core = np.zeros((columns.shape[1],) * 2)
    first = 0
    for model in models:
        last = first + len(model.core)
        core[first:last, first:last] = model.core
        first = last
    scaled = columns / diagonal[:, None]
    inner = np.eye(len(core)) - core @ (columns.T @ scaled)
    return along + scaled @ np.linalg.solve(inner, core @ (scaled.T @ total))
