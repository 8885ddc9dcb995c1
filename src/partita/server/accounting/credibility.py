"""Whose reports are believed: each is compared with the site's own earlier ones, and with how far off others are."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from partita.server.accounting.reports import Contradiction, Report

# A report may be so many times as far off as others' reports are: where they are noisy, and where they are not.
UNUSUAL, LIKE_OTHERS = 20.0, 5.0
# By the logarithms of hyperparameters, a log likelihood changes by so many times its own size at most.
STEEPEST = 20.0
# So many reports in a row have to be believed after one that was not, before a site's slopes count again.
PROBATION = 3


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

    def weigh(self, new: Mapping[int, Report], old: Mapping[int, Report], offsets: Mapping[int, float]) -> Doubts:
        """Compare new reports with the sites' old ones, and keep those whose slopes are believed."""
        found = {site: old[site].contradiction(report) for site, report in new.items() if site in old}
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
        for site, old in self.believed.items():
            if site in sloping:
                new = sloping[site]
                size = 1.0 + self.largest[site] + max(old.parts(), new.parts())
                self.jumps[site] = max(old.jumps(new, size).values())
                self.gaps[site] = old.gap(new, size)
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
