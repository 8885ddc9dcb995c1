"""What a site reported last of its log likelihood, and whether its next report follows from that and is believed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from partita.families import Family
from partita.families.base import inner_on_host, inners_on_host
from partita.models import Hyper
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
# A report may be so many times as far off as others' reports are: where they are noisy, and where they are not.
UNUSUAL, LIKE_OTHERS = 20.0, 5.0
# By the logarithms of hyperparameters, a log likelihood changes by so many times its own size at most.
STEEPEST = 20.0
# So many reports in a row have to be believed after one that was not, before a site's slopes count again.
PROBATION = 3


class Ways:
    """How means differ between places, in double precision; the latest is kept, for sites of a round go the same."""

    def __init__(self) -> None:
        self._latest: tuple[Place, Place, Any] | None = None

    def between(self, start: Place, end: Place) -> Any:
        if self._latest is None or self._latest[0] is not start or self._latest[1] is not end:
            way = jax.tree.map(lambda a, b: np.asarray(a, np.float64) - b, end.mean, start.mean)
            self._latest = (start, end, way)
        return self._latest[2]


@dataclass(frozen=True)
class Report:
    """What a site said last: E_q[log p] at a place, and its gradient by the mean parameters, as proposed."""

    place: Place
    value: float
    change: Family
    message: Family
    # ⟨message, μ⟩ at the place, and along the way from the site's last report to it, if there is one; the gradient by
    # the logarithms of hyperparameters.
    expected: float
    along: float | None
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
        return 0.0 if self.doubted or not self.slopes else self.drift(self.place.hyper, hyper)

    def at(self, place: Place, expected: float | None = None) -> float:
        """The value elsewhere, to first order; ⟨message, μ⟩ may be known there."""
        there = inner_on_host(self.message, place.mean) if expected is None else expected
        return self.value + there - self.expected + self.carried(place.hyper)

    def parts(self) -> float:
        """What a log likelihood is made of, which may cancel."""
        return gross_product(self.message, self.place.mean)

    def drifts(self, start: Hyper, end: Hyper) -> list[float]:
        """What each hyperparameter makes of the value on a way, to first order."""
        return [slope * math.log(end[name] / start[name]) for name, slope in self.slopes.items()]

    def gap(self, new: "Report", size: float) -> float:
        """How far the next value is from what both slopes say, beside how far it may be, of a site of that size."""
        found = self.contradiction(replace(new, along=None), Ways(), NARROWEST, whole=True)
        return found.found / (found.allowed + STEEPENING * self.step(new) ** 3 * size)

    def step(self, new: "Report") -> float:
        """How far hyperparameters have moved."""
        return sum(abs(math.log(new.place.hyper[name] / self.place.hyper[name])) for name in new.slopes)

    def jumps(self, new: "Report", size: float) -> dict[str, float]:
        """By hyperparameter, how far its slope has moved, beside how far it can have, of a site of that size.

        Slopes go with what they are slopes of: they move with hyperparameters, and with mean parameters as values do;
        where neither has moved, they have not. A site that changes only what it says is found out by that.
        """
        way = Ways().between(self.place, new.place)
        moved = max(gross_product(report.message, way) for report in (self, new))
        rounding = ROUNDING * float(np.finfo(self.message.dtype).eps) * size
        step = self.step(new)
        least = {name: min(abs(slope), abs(new.slopes[name])) for name, slope in self.slopes.items()}
        return {
            name: abs(new.slopes[name] - slope)
            / (NEGLIGIBLE + rounding + STEEPENING * (step * (size + least[name]) + moved))
            for name, slope in self.slopes.items()
        }

    def contradiction(self, new: "Report", ways: Ways, narrow: float = NARROW, whole: bool = False) -> "Contradiction":
        """How well the site's next report follows from this one: its value lies between what both gradients say.

        That is so wherever the value is convex or concave on the way, and nearly so on any short one. Changes say how
        far proposals are from gradients; where it follows without them, they are not looked at, unless asked for.
        """
        way = ways.between(self.place, new.place)
        first, there = inners_on_host(self.message, way, new.place.mean)
        second = inner_on_host(new.message, way) if new.along is None else new.along
        drifts = [report.drifts(self.place.hyper, new.place.hyper) for report in (self, new)]
        expected = self.value + 0.5 * (first + second)
        found = abs(new.value - expected - 0.5 * sum(map(sum, drifts)))
        bends = narrow * sum(abs(before - after) for before, after in zip(*drifts, strict=True))
        rounding = ROUNDING * float(np.finfo(self.message.dtype).eps) * (abs(self.value) + abs(new.value))

        def allow(slack: float) -> float:
            return NEGLIGIBLE + WIDE * slack + bends + rounding

        slack = abs(first - second)
        allowed = allow(slack)
        if whole or not found <= allowed:
            latest = abs(inner_on_host(new.change, way))
            allowed = allow(slack + latest)
            if whole or not found <= allowed:
                allowed = allow(slack + abs(inner_on_host(self.change, way)) + latest)
        return Contradiction(expected, found, allowed, there)

    def distance(self, place: Place) -> float:
        """How far away another place is: what a first order leaves out is of this order."""
        return (place.length - self.place.length) ** 2 + abs(self.carried(place.hyper))

    def shortfall(self, new: "Report", expected: float) -> tuple[float, float, float]:
        """By how much the site's next value is short of what this report promised; after how many nats; and how far.

        `expected` is ⟨message, μ⟩ of this report at the place of the next.
        """
        nats = new.place.travelled - self.place.travelled + abs(self.carried(new.place.hyper))
        return self.at(new.place, expected) - new.value, nats, self.distance(new.place)


@dataclass(frozen=True)
class Contradiction:
    """What a report was expected to be, how far from it it is, and how far it may be: at least so far, if it is not.

    `there` is ⟨message, μ⟩ of the report before at the place of the next.
    """

    expected: float
    found: float
    allowed: float
    there: float


def gross_product(natural: Any, mean: Any) -> float:
    """As `inner_on_host`, with every term as large as it is: nothing cancels."""
    pairs = zip(jax.tree.leaves(natural), jax.tree.leaves(mean), strict=True)
    with np.errstate(over="ignore", invalid="ignore"):
        return sum(float(np.vdot(np.abs(a).astype(np.float64), np.abs(b).astype(np.float64))) for a, b in pairs)


@dataclass(frozen=True)
class Doubts:
    """Reports whose value does not follow from the site's updates; and reports whose slopes cannot be, with why."""

    contradicted: Mapping[int, Contradiction]
    unlikely: Mapping[int, str]


@dataclass
class Credibility:
    """What is remembered of sites to tell whether their next reports can be."""

    # Whether reports are noisy: then they may be as far off as others' are.
    noisy: bool = False
    # For each site, the last report whose slopes were believed, and the largest size of what it reported.
    believed: dict[int, Report] = field(default_factory=dict)
    largest: dict[int, float] = field(default_factory=dict)
    # How many reports more have to be believed before a site's slopes count again.
    probation: dict[int, int] = field(default_factory=dict)
    # How far slopes have moved, and values are from what slopes say, beside how far they may be.
    jumps: dict[int, float] = field(default_factory=dict)
    gaps: dict[int, float] = field(default_factory=dict)
    # How far each site's last value was from what its updates made expect.
    contradictions: dict[int, float] = field(default_factory=dict)

    def weigh(
        self, new: Mapping[int, Report], found: Mapping[int, Contradiction], offsets: Mapping[int, float]
    ) -> Doubts:
        """Judge new reports by how they follow from the sites' old ones, and keep those whose slopes are believed."""
        self.contradictions.update({site: one.found for site, one in found.items()})
        unlikely = self._find_unlikely(new, offsets)
        contradicted = {site: one for site, one in found.items() if self._is_contradicted(site, one)}
        for site, report in new.items():
            doubted = site in contradicted or site in unlikely
            if not doubted:
                self.believed[site] = report
            self.probation[site] = PROBATION if doubted else max(0, self.probation.get(site, 0) - 1)
        return Doubts(contradicted, unlikely)

    @property
    def not_counted(self) -> list[int]:
        """Sites whose slopes do not count, because they contradicted themselves lately."""
        return [site for site, left in self.probation.items() if left > 0]

    def forgive(self, site: int) -> None:
        """An operator says that a site may be asked again: what it reports is believed at first."""
        self.believed.pop(site, None)
        self.probation.pop(site, None)

    def shift(self, site: int, offset: float) -> None:
        """A site's values are kept without a constant from now on."""
        if site in self.believed:
            report = self.believed[site]
            self.believed[site] = replace(report, value=report.value - offset)

    def _find_unlikely(self, reports: Mapping[int, Report], offsets: Mapping[int, float]) -> dict[int, str]:
        """Sites whose slopes by hyperparameters cannot be, and why.

        A site is measured by the last report of its that was believed; what it said since does not count.
        """
        sloping = {site: report for site, report in reports.items() if report.slopes}
        for site, report in sloping.items():
            self.largest[site] = max(self.largest.get(site, 0.0), abs(report.value + offsets.get(site, 0.0)))
            if site in self.believed:
                old = self.believed[site]
                size = 1.0 + self.largest[site] + max(old.parts(), report.parts())
                self.jumps[site] = max(old.jumps(report, size).values())
                self.gaps[site] = old.gap(report, size)
        words = {site: self._find_fault(site, report) for site, report in sloping.items()}
        return {site: f"its gradient by hyperparameters {one}, and was left out" for site, one in words.items() if one}

    def _find_fault(self, site: int, report: Report) -> str:
        """What is wrong with the slopes of a report: with their size, with how they move, with what values do."""
        most = STEEPEST * (1.0 + self.largest[site] + report.parts())
        if not all(abs(slope) <= most for slope in report.slopes.values()):
            return "is out of all proportion to its log likelihood"
        if site in self.believed and self._is_unusual(site, self.jumps):
            return "moves by more than there is a cause for"
        if site in self.believed and self._is_unusual(site, self.gaps):
            return "is not what its log likelihood does"
        return ""

    def _is_unusual(self, site: int, ratios: Mapping[int, float]) -> bool:
        """Whether what a site says is further off than it may be, and than it is of others, whose model is the same."""
        others = [found for other, found in ratios.items() if other != site]
        times = UNUSUAL if self.noisy else LIKE_OTHERS
        return not ratios[site] <= max(1.0, times * float(np.median(others)) if others else math.inf)

    def _is_contradicted(self, site: int, found: Contradiction) -> bool:
        """Whether a value is further off than it may be, and far further than others' are, if that has to be known."""
        if found.found <= found.allowed:
            return False
        others = [value for other, value in self.contradictions.items() if other != site]
        # What others' values are off by is noise, where expectations are sampled. Without others, nothing is unusual.
        usual = float(np.median(others)) if others else math.inf
        return found.found > found.allowed + UNUSUAL * usual
