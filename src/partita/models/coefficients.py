"""The one reader of coefficients: what a posterior says of a model's coefficients, by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from scipy.special import ndtri

from partita.families import Family
from partita.families.marginals import Marginals

# From draws of all parameters to those of coefficients, [draws, coefficients], and of positive numbers by name.
Split = Callable[[Any], tuple[np.ndarray, dict[str, np.ndarray]]]


@dataclass(frozen=True)
class Coefficients:
    """Coefficients under a posterior, in the order of its coordinates, and positive numbers beside them.

    Args:
        names: one for each coefficient.
        posterior: what is believed of all parameters.
        split: takes draws of the parameters apart.
        places: where coefficients are among all coordinates; the first ones, if not given.
        coordinates: how many coordinates there are; as many as coefficients, if not given.
        log_quantiles: for positive numbers (noise, spreads), from probabilities to quantiles of their logarithms.
    """

    names: Sequence[str]
    posterior: Family
    split: Split
    places: Sequence[int] | None = None
    coordinates: int | None = None
    log_quantiles: Mapping[str, Callable[[Any], np.ndarray]] = field(default_factory=dict)

    def marginals(self, T: np.ndarray | None = None) -> Marginals:
        """What is believed of the coefficients, or of sums T of them, row by row of T."""
        number = len(self.names)
        T = np.eye(number) if T is None else T
        whole = np.zeros((len(T), number if self.coordinates is None else self.coordinates))
        whole[:, list(range(number) if self.places is None else self.places)] = T
        return self.posterior.marginals(whole)

    @property
    def location(self) -> np.ndarray:
        """Means."""
        return self.marginals().mean

    @property
    def scale(self) -> np.ndarray:
        """Standard deviations."""
        return self.marginals().deviation

    def quantiles(self, name: str, probabilities: Any) -> np.ndarray:
        """Quantiles of a positive number."""
        return np.exp(self.log_quantiles[name](probabilities))

    def draw(self, key: Any, number: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Draws of the coefficients, [number, coefficients], and of positive numbers by name, [number]."""
        return self.split(self.posterior.sample(key, (number,)))


def normal_quantiles(posterior: Family, place: int) -> Callable[[Any], np.ndarray]:
    """Quantiles of one coordinate of a Gaussian."""
    gaussian = posterior.as_gaussian("coefficients")

    def quantiles(probabilities: Any) -> np.ndarray:
        location, scale = float(gaussian.location[place]), float(gaussian.scale[place])
        found: np.ndarray = location + scale * ndtri(probabilities)
        return found

    return quantiles


def name_leaves(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a tree by where they are."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator=".") or "theta": np.asarray(leaf) for path, leaf in paths}


def name_place(tree: Any, place: int) -> str:
    """A name for one of all numbers of a tree in order: where its array is, and its place there."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        size = int(np.prod(leaf.shape))
        if place < size:
            indices = ", ".join(map(str, np.unravel_index(place, leaf.shape)))
            name = jax.tree_util.keystr(path, simple=True, separator=".") or "θ"
            return f"{name}[{indices}]" if leaf.shape else name
        place -= size
    raise IndexError(place)
