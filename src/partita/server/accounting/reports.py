"""What a site reported last of its log likelihood, and how well its next report follows from that."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from partita.families import Family
from partita.models import Hyper
from partita.server.accounting.landmarks import inner_product
from partita.server.flights import Place

# A report may be so many times as far from what was expected as gradients differ, and as rounding explains.
WIDE, ROUNDING = 4.0, 1e4
# The same where hyperparameters have moved: a mean of two gradients is off by half of their difference at most, and by
# a twelfth of it where steps are short. A site that may differ from itself by half could say anything.
NARROW, NARROWEST = 0.6, 0.25
# Slopes by the logarithms of hyperparameters change by so many times the size of the log likelihood at most: twice, if
# it goes with the square.
STEEPENING = 8.0
# Nats that quadrature leaves between values and gradients, and that steer nobody.
NEGLIGIBLE = 1e-3


@dataclass(frozen=True)
class Report:
    """What a site said last: E_q[log p] at a place, and its gradient by the mean parameters, as proposed."""

    place: Place
    value: float
    change: Family
    message: Family
    # ⟨message, μ⟩ at the place; the gradient by the logarithms of hyperparameters.
    expected: float
    slopes: Hyper
    # Whether the site contradicts itself: then its value is not followed to other hyperparameters.
    doubted: bool = False
    # How far off the value may be that was put in the place of those that do not follow from each other.
    unsure: float = 0.0

    def drift(self, start: Hyper, end: Hyper) -> float:
        """What a way from some hyperparameters to others makes of the value, to first order."""
        return sum(self.drifts(start, end))

    def carried(self, hyper: Hyper) -> float:
        """What these hyperparameters make of the value."""
        return 0.0 if self.doubted else self.drift(self.place.hyper, hyper)

    def at(self, place: Place) -> float:
        """The value elsewhere, to first order."""
        return self.value + inner_product(self.message, place.mean) - self.expected + self.carried(place.hyper)

    def parts(self) -> float:
        """What a log likelihood is made of, which may cancel."""
        return gross_product(self.message, self.place.mean)

    def drifts(self, start: Hyper, end: Hyper) -> list[float]:
        """What each hyperparameter makes of the value on a way, to first order."""
        return [slope * math.log(end[name] / start[name]) for name, slope in self.slopes.items()]

    def gap(self, new: "Report", size: float) -> float:
        """How far the next value is from what both slopes say, beside how far it may be, of a site of that size."""
        found = self.contradiction(new, NARROWEST)
        return found.found / (found.allowed + STEEPENING * self.step(new) ** 3 * size)

    def step(self, new: "Report") -> float:
        """How far hyperparameters have moved."""
        return sum(abs(math.log(new.place.hyper[name] / self.place.hyper[name])) for name in new.slopes)

    def jumps(self, new: "Report", size: float) -> dict[str, float]:
        """By hyperparameter, how far its slope has moved, beside how far it can have, of a site of that size.

        Slopes go with what they are slopes of: they move with hyperparameters, and with mean parameters as values do;
        where neither has moved, they have not. A site that changes only what it says is found out by that.
        """
        way = jax.tree.map(lambda a, b: np.asarray(a, np.float64) - b, new.place.mean, self.place.mean)
        moved = max(gross_product(report.message, way) for report in (self, new))
        rounding = ROUNDING * float(np.finfo(self.message.dtype).eps) * size
        step = self.step(new)
        least = {name: min(abs(slope), abs(new.slopes[name])) for name, slope in self.slopes.items()}
        return {
            name: abs(new.slopes[name] - slope)
            / (NEGLIGIBLE + rounding + STEEPENING * (step * (size + least[name]) + moved))
            for name, slope in self.slopes.items()
        }

    def contradiction(self, new: "Report", narrow: float = NARROW) -> "Contradiction":
        """How well the site's next report follows from this one: its value lies between what both gradients say.

        That is so wherever the value is convex or concave on the way, and nearly so on any short one. Changes say how
        far proposals are from gradients.
        """
        way = jax.tree.map(lambda a, b: np.asarray(a, np.float64) - b, new.place.mean, self.place.mean)
        ways = [inner_product(density, way) for density in (self.message, new.message, self.change, new.change)]
        drifts = [report.drifts(self.place.hyper, new.place.hyper) for report in (self, new)]
        slack = abs(ways[0] - ways[1]) + abs(ways[2]) + abs(ways[3])
        size = abs(self.value) + abs(new.value)
        expected = self.value + 0.5 * (ways[0] + ways[1])
        return Contradiction(
            expected,
            abs(new.value - expected - 0.5 * sum(map(sum, drifts))),
            NEGLIGIBLE
            + WIDE * slack
            + narrow * sum(abs(first - second) for first, second in zip(*drifts, strict=True))
            + ROUNDING * float(np.finfo(self.message.dtype).eps) * size,
        )

    def distance(self, length: float, hyper: Hyper) -> float:
        """How far away something else is: what a first order leaves out is of this order."""
        return (length - self.place.length) ** 2 + abs(self.carried(hyper))


@dataclass(frozen=True)
class Contradiction:
    """What a report was expected to be, how far from it it is, and how far it may be."""

    expected: float
    found: float
    allowed: float


def gross_product(natural: Any, mean: Any) -> float:
    """As `inner_product`, with every term as large as it is: nothing cancels."""
    pairs = zip(jax.tree.leaves(natural), jax.tree.leaves(mean), strict=True)
    with np.errstate(over="ignore", invalid="ignore"):
        return sum(float(np.vdot(np.abs(a).astype(np.float64), np.abs(b).astype(np.float64))) for a, b in pairs)


def total(values: Sequence[float]) -> float:
    """Their sum, to the last digit; no number, where there is none."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return math.nan
