"""Concave quadratic models whose curvature is a diagonal and what secants teach, and where several are highest."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

# How many secants say how large the curvature is where nothing was learnt.
RECENT = 5
# A way that is no longer, in nats, says more of rounding than of curvature.
OF_ROUNDING = 1e-14
# What is not zero, where something is divided by it.
TINY = 1e-12


class Judgement(NamedTuple):
    """A model of a site beside what the site says somewhere else."""

    # By how much the value there is short of the model's.
    short: float
    # The quadratic term of the model, in locations.
    quadratic: float
    # How far it is to there, in nats: in locations, and in precisions.
    length: float
    of_precisions: float


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
        is_long = nats(way, place) > OF_ROUNDING
        if self.memory and is_long and way @ fall > 1e-10 * np.sqrt((way @ way) * (fall @ fall)):
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

    def judge(self, place: np.ndarray, value: float) -> Judgement:
        """The model beside a value somewhere else; of variances it is linear here, as the message itself is."""
        size = len(place) // 2
        way = place - self.place
        way[size:] = 0.0
        before, after = np.exp(-self.place[size:]), np.exp(-place[size:])
        linear = float(self.slope @ way) - float(self.slope[size:] @ (after / before - 1))
        quadratic = 0.5 * float(way @ self.curved(way))
        length = 0.5 * float((way[:size] / after) @ way[:size])
        changes = 1 - np.minimum(before / after, after / before)
        return Judgement(self.value + linear - quadratic - value, quadratic, length, 0.25 * float(changes @ changes))


def nats(way: np.ndarray, place: np.ndarray) -> float:
    """How far a way of locations and log precisions leads from a place, by the Fisher information there."""
    locations, log_precisions = np.split(way, 2)
    precision = np.exp(place[len(locations) :])
    return 0.5 * float(precision @ locations**2) + 0.25 * float(log_precisions @ log_precisions)


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
