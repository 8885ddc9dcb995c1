"""Where densities lie, in locations and logarithms of precisions: what sites say there, and steps between them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from partita.families import Family
from partita.server.rules.optimiser import Naturals
from partita.server.rules.quadratics import TINY

# A shortened step is at least and at most this share of the one before.
SHORTEST, LONGEST = 0.1, 0.5
# A precision changes at most by this factor in one fold, as a logarithm.
LARGEST_CHANGE = 1.5


@dataclass(frozen=True)
class Said:
    """What a site said last: its message, its value, and where that was."""

    place: np.ndarray
    value: float
    shift: np.ndarray
    precision: np.ndarray

    @property
    def slope(self) -> np.ndarray:
        """By locations and logarithms of precisions."""
        half = len(self.shift)
        location, variance = self.place[:half], np.exp(-self.place[half:])
        return np.concatenate([self.shift - self.precision * location, 0.5 * self.precision * variance])

    @property
    def curvature(self) -> np.ndarray:
        variance = np.exp(-self.place[len(self.shift) :])
        return np.concatenate([self.precision, 0.5 * self.precision * variance])


@dataclass(frozen=True)
class Step:
    """A step from a place whose free energy is known: which way, how much of it, and how steep it is there."""

    place: np.ndarray
    free_energy: float
    said: Mapping[int, Said]
    way: np.ndarray
    gain: float
    share: float = 1.0

    def shorten(self, free_energy: float) -> "Step":
        """A shorter one, to where a parabola through both free energies is highest."""
        expected = self.free_energy + self.gain * self.share - free_energy
        wanted = self.gain * self.share**2 / (2 * expected) if np.isfinite(expected) and expected > 0 else 0.0
        return replace(self, share=float(np.clip(wanted, SHORTEST * self.share, LONGEST * self.share)))


def shares_of(asked: np.ndarray, offered: np.ndarray, size: np.ndarray) -> np.ndarray:
    """For every coordinate the share, from 0 to 1, of what is offered that comes nearest to what is asked for."""
    nothing = np.abs(offered) <= 1e-9 * size
    shares: np.ndarray = np.where(nothing, 1.0, np.clip(asked / np.where(nothing, 1.0, offered), 0.0, 1.0))
    return shares


def coordinates(density: Family) -> np.ndarray:
    """Locations, and logarithms of precisions."""
    naturals = Naturals.of(density, 1)
    shift, precision = naturals.shift[0].astype(float), naturals.precision[0].astype(float)
    return np.concatenate([shift / precision, np.log(precision)])


def nats(way: np.ndarray, place: np.ndarray) -> float:
    """How far a way leads from a place, by the Fisher information there."""
    locations, log_precisions = np.split(way, 2)
    precision = np.exp(place[len(locations) :])
    return 0.5 * float(precision @ locations**2) + 0.25 * float(log_precisions @ log_precisions)


def share_of_changes(way: np.ndarray) -> float:
    """The share of a way on which no precision changes too much."""
    largest = float(np.max(np.abs(way[len(way) // 2 :])))
    return min(1.0, LARGEST_CHANGE / max(TINY, largest))


def share_within(most: float, way: np.ndarray, place: np.ndarray) -> float:
    """The share of a way that is so many nats long."""
    return float(np.sqrt(most / max(nats(way, place), TINY)))


def of_prior(prior: Naturals, place: np.ndarray, curvature: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """-KL(q ‖ prior) up to a constant, with its slope and a curvature that leaves no direction flat.

    `curvature` is the models': precisions have at least the curvature that a Gaussian's own entropy gives them.
    """
    location, log_precision = np.split(place, 2)
    variance, known, shift = np.exp(-log_precision), prior.precision[0].astype(float), prior.shift[0].astype(float)
    value = -0.5 * float(np.sum(known * variance + known * location**2 - 2 * shift * location + log_precision))
    slope = np.concatenate([shift - known * location, 0.5 * known * variance - 0.5])
    of_locations, of_precisions = np.split(curvature, 2)
    # Factors of sites that are not heard count as prior, and may have negative precisions.
    own = np.maximum(known, -0.999 * of_locations)
    return value, slope, np.concatenate([own, np.maximum(0.5 * known * variance, 0.5 - of_precisions)])
