"""How densities are told by numbers: a place for every density, and what messages and steps are there.

Places of mean-field Gaussians are locations and logarithms of precisions; those of Gaussians with a full covariance are
locations and precision matrices. What a rule does with places is the same for both.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigh

from partita.families import Family
from partita.server.rules.optimiser import Naturals
from partita.server.rules.quadratics import TINY, Judgement, Model, highest, nats

# A shortened step is at least and at most this share of the one before.
SHORTEST, LONGEST = 0.1, 0.5
# A precision changes at most by this factor in one fold, as a logarithm.
LARGEST_CHANGE = 1.5


class Around(NamedTuple):
    """What is known of log likelihoods at a place: their value, their slope, and a curvature."""

    place: np.ndarray
    value: float
    slope: np.ndarray
    curvature: np.ndarray


@dataclass(frozen=True)
class Said:
    """What a site said last: its message, its value, and where that was; and the slope and curvature of it there."""

    place: np.ndarray
    value: float
    shift: np.ndarray
    precision: np.ndarray
    slope: np.ndarray
    curvature: np.ndarray

    @property
    def around(self) -> Around:
        return Around(self.place, self.value, self.slope, self.curvature)


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


class SiteModel(Protocol):
    """What a site's expected log likelihood, or everybody's, may be around a place."""

    @property
    def place(self) -> np.ndarray:
        """Where it is exact."""

    @property
    def ways(self) -> Sequence[np.ndarray]:
        """The secants that it has learnt from."""

    def moved(self, place: np.ndarray, value: float, slope: np.ndarray, curvature: np.ndarray) -> "SiteModel":
        """The model around the next place."""

    def slope_at(self, place: np.ndarray) -> np.ndarray:
        """Its slope somewhere else."""

    def judge(self, place: np.ndarray, value: float) -> Judgement:
        """The model beside a site's value somewhere else."""


class Chart(ABC):
    """Places of one family of densities, as vectors that begin with locations."""

    # How far models that nothing is known of may be followed, in nats per parameter.
    first: ClassVar[float]

    @abstractmethod
    def naturals(self, density: Family, rows: int) -> Naturals:
        """Natural parameters, with one row per density."""

    @abstractmethod
    def with_naturals(self, like: Family, naturals: Naturals) -> Family:
        """The inverse: a stack of the shapes of another."""

    @abstractmethod
    def place(self, density: Family) -> np.ndarray:
        """Where a density lies."""

    @abstractmethod
    def precision(self, place: np.ndarray) -> np.ndarray:
        """How certain densities there are."""

    @abstractmethod
    def hear(self, place: np.ndarray, value: float, shift: np.ndarray, precision: np.ndarray) -> Said:
        """What a message says at a place."""

    @abstractmethod
    def model(self, memory: int, around: Around, scaled: bool = False) -> SiteModel:
        """A model that nothing was learnt for yet, with so many secants at most."""

    @abstractmethod
    def of_prior(
        self, prior: Naturals, place: np.ndarray, curvature: np.ndarray
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """-KL(q ‖ prior) up to a constant, with its slope and a curvature; `curvature` is that of all messages."""

    @abstractmethod
    def highest(self, models: Sequence[Any], place: np.ndarray, slope: np.ndarray, curvature: np.ndarray) -> np.ndarray:
        """The way from a place to where models, and what has this slope and curvature there, are highest together."""

    @abstractmethod
    def nats(self, way: np.ndarray, place: np.ndarray) -> float:
        """How far a way leads from a place, by the Fisher information there."""

    @abstractmethod
    def share_of_changes(self, way: np.ndarray, place: np.ndarray) -> float:
        """The share of a way on which no precision changes too much."""

    @abstractmethod
    def shares_of(self, asked: np.ndarray, offered: np.ndarray, size: np.ndarray, leeway: float) -> Any:
        """The largest share, or shares, up to 1, of offered precisions with which what is asked for is hardly missed.

        That is by at most `leeway` times `size`.
        """

    @abstractmethod
    def times(self, precision: np.ndarray, location: np.ndarray) -> np.ndarray:
        """A precision times a location."""

    def share_within(self, most: float, way: np.ndarray, place: np.ndarray) -> float:
        """The share of a way that is so many nats long."""
        return float(np.sqrt(most / max(self.nats(way, place), TINY)))


class Diagonal(Chart):
    """Locations, and logarithms of precisions, of mean-field Gaussians."""

    first = 0.05

    def naturals(self, density: Family, rows: int) -> Naturals:
        return Naturals(*density.as_mean_field("damping: Secants").naturals(rows))

    def with_naturals(self, like: Family, naturals: Naturals) -> Family:
        stack = like.as_mean_field("damping: Secants")
        return stack.with_naturals(naturals.shift.astype(stack.dtype), naturals.precision.astype(stack.dtype))

    def place(self, density: Family) -> np.ndarray:
        naturals = self.naturals(density, 1)
        shift, precision = naturals.shift[0].astype(float), naturals.precision[0].astype(float)
        return np.concatenate([shift / precision, np.log(precision)])

    def precision(self, place: np.ndarray) -> np.ndarray:
        return np.exp(place[len(place) // 2 :])

    def hear(self, place: np.ndarray, value: float, shift: np.ndarray, precision: np.ndarray) -> Said:
        location, variance = place[: len(shift)], np.exp(-place[len(shift) :])
        slope = np.concatenate([shift - precision * location, 0.5 * precision * variance])
        curvature = np.concatenate([precision, 0.5 * precision * variance])
        return Said(place, value, shift, precision, slope, curvature)

    def model(self, memory: int, around: Around, scaled: bool = False) -> Model:
        return Model(memory, *around, scaled=scaled)

    def of_prior(
        self, prior: Naturals, place: np.ndarray, curvature: np.ndarray
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """No direction is flat: precisions have at least the curvature that a Gaussian's own entropy gives them."""
        location, log_precision = np.split(place, 2)
        variance, known, shift = np.exp(-log_precision), prior.precision[0].astype(float), prior.shift[0].astype(float)
        value = -0.5 * float(np.sum(known * variance + known * location**2 - 2 * shift * location + log_precision))
        slope = np.concatenate([shift - known * location, 0.5 * known * variance - 0.5])
        of_locations, of_precisions = np.split(curvature, 2)
        # Factors of sites that are not heard count as prior, and may have negative precisions.
        own = np.maximum(known, -0.999 * of_locations)
        return value, slope, np.concatenate([own, np.maximum(0.5 * known * variance, 0.5 - of_precisions)])

    def highest(self, models: Sequence[Any], place: np.ndarray, slope: np.ndarray, curvature: np.ndarray) -> np.ndarray:
        return highest(models, place, slope, curvature)

    def nats(self, way: np.ndarray, place: np.ndarray) -> float:
        return nats(way, place)

    def share_of_changes(self, way: np.ndarray, place: np.ndarray) -> float:
        largest = float(np.max(np.abs(way[len(way) // 2 :])))
        return min(1.0, LARGEST_CHANGE / max(TINY, largest))

    def shares_of(self, asked: np.ndarray, offered: np.ndarray, size: np.ndarray, leeway: float) -> np.ndarray:
        nothing = np.abs(offered) <= 1e-9 * size
        some = np.where(nothing, 1.0, offered)
        shares: np.ndarray = np.where(nothing, 1.0, np.clip(asked / some + leeway * size / np.abs(some), 0.0, 1.0))
        return shares

    def times(self, precision: np.ndarray, location: np.ndarray) -> np.ndarray:
        return precision * location


@dataclass(frozen=True)
class WholeModel:
    """The message itself: what it says of all densities follows from their means and covariances.

    Its curvature is the whole of the site's, so that there is nothing for secants to add.
    """

    place: np.ndarray
    value: float
    slope: np.ndarray
    # A matrix: the precision of the message.
    curvature: np.ndarray
    ways: tuple[np.ndarray, ...] = ()

    def moved(self, place: np.ndarray, value: float, slope: np.ndarray, curvature: np.ndarray) -> "WholeModel":
        return WholeModel(place, value, slope, curvature)

    def slope_at(self, place: np.ndarray) -> np.ndarray:
        size = len(self.curvature)
        location, covariance = place[:size], _covariance(place, size)
        of_location = self.slope[:size] - self.curvature @ (location - self.place[:size])
        return np.concatenate([of_location, 0.5 * (covariance @ self.curvature @ covariance).ravel()])

    def judge(self, place: np.ndarray, value: float) -> Judgement:
        size = len(self.curvature)
        way, before, after = (place - self.place)[:size], _covariance(self.place, size), _covariance(place, size)
        linear = float(self.slope[:size] @ way) - 0.5 * float(np.sum(self.curvature * (after - before)))
        quadratic = 0.5 * float(way @ self.curvature @ way)
        length = 0.5 * float(way @ place[size:].reshape(size, size) @ way)
        ratios = eigh(before, after, eigvals_only=True)
        changes = 1 - np.minimum(ratios, 1 / ratios)
        return Judgement(self.value + linear - quadratic - value, quadratic, length, 0.25 * float(changes @ changes))


class Whole(Chart):
    """Locations, and precision matrices, of Gaussians with a full covariance."""

    first = 1.0

    def naturals(self, density: Family, rows: int) -> Naturals:
        return Naturals(*density.as_full("damping: Secants").naturals(rows))

    def with_naturals(self, like: Family, naturals: Naturals) -> Family:
        stack = like.as_full("damping: Secants")
        return stack.with_naturals(naturals.shift.astype(stack.dtype), naturals.precision.astype(stack.dtype))

    def place(self, density: Family) -> np.ndarray:
        naturals = self.naturals(density, 1)
        precision = naturals.precision[0].astype(float)
        return np.concatenate([_solve(precision, naturals.shift[0].astype(float)), precision.ravel()])

    def precision(self, place: np.ndarray) -> np.ndarray:
        # The place has d + d² numbers.
        size = int(np.sqrt(len(place)))
        return place[size:].reshape(size, size)

    def hear(self, place: np.ndarray, value: float, shift: np.ndarray, precision: np.ndarray) -> Said:
        size = len(shift)
        covariance = _covariance(place, size)
        of_precision = 0.5 * (covariance @ precision @ covariance).ravel()
        slope = np.concatenate([shift - precision @ place[:size], of_precision])
        return Said(place, value, shift, precision, slope, precision)

    def model(self, memory: int, around: Around, scaled: bool = False) -> WholeModel:
        return WholeModel(*around)

    def of_prior(
        self, prior: Naturals, place: np.ndarray, curvature: np.ndarray
    ) -> tuple[float, np.ndarray, np.ndarray]:
        known, shift = prior.precision[0].astype(float), prior.shift[0].astype(float)
        location, covariance = place[: len(shift)], _covariance(place, len(shift))
        of_location = float(location @ known @ location) - 2 * float(shift @ location)
        value = -0.5 * (float(np.sum(known * covariance)) + of_location - float(np.linalg.slogdet(covariance)[1]))
        of_precision = 0.5 * (covariance @ known @ covariance - covariance).ravel()
        return value, np.concatenate([shift - known @ location, of_precision]), known

    def highest(self, models: Sequence[Any], place: np.ndarray, slope: np.ndarray, curvature: np.ndarray) -> np.ndarray:
        now = self.precision(place)
        size = len(now)
        total = np.asarray(slope)[:size] + sum(model.slope_at(place)[:size] for model in models)
        precision = curvature + sum(model.curvature for model in models)
        try:
            return np.concatenate([_solve(precision, total), (precision - now).ravel()])
        except LinAlgError:
            # What sites say together is not proper: certainty stays as it is.
            return np.concatenate([_solve(now, total), 0 * now.ravel()])

    def nats(self, way: np.ndarray, place: np.ndarray) -> float:
        now = self.precision(place)
        size = len(now)
        change = np.linalg.solve(now, way[size:].reshape(size, size))
        return 0.5 * float(way[:size] @ now @ way[:size]) + 0.25 * float(np.sum(change * change.T))

    def share_of_changes(self, way: np.ndarray, place: np.ndarray) -> float:
        now = self.precision(place)
        size = len(now)
        changes = eigh(way[size:].reshape(size, size), now, eigvals_only=True)
        up, down = np.expm1(LARGEST_CHANGE), -np.expm1(-LARGEST_CHANGE)
        return float(min(1.0, up / max(TINY, changes[-1]), down / max(TINY, -changes[0])))

    def shares_of(self, asked: np.ndarray, offered: np.ndarray, size: np.ndarray, leeway: float) -> float:
        wanted, given = np.linalg.solve(size, asked), np.linalg.solve(size, offered)
        squared = float(np.sum(given * given.T))
        if squared <= 1e-18 * len(size):
            return 1.0
        more = leeway * np.sqrt(len(size) / squared)
        return float(np.clip(np.sum(wanted * given.T) / squared + more, 0.0, 1.0))

    def times(self, precision: np.ndarray, location: np.ndarray) -> np.ndarray:
        product: np.ndarray = precision @ location
        return product


def _covariance(place: np.ndarray, size: int) -> np.ndarray:
    return _solve(place[size:].reshape(size, size), np.eye(size))


def _solve(precision: np.ndarray, right: np.ndarray) -> np.ndarray:
    solution: np.ndarray = cho_solve(cho_factor(precision), right)
    return solution


def chart_of(prior: Family) -> Chart:
    """The chart of a family of densities."""
    return Whole() if prior.is_full else Diagonal()
