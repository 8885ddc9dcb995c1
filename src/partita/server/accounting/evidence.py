"""The free energy of the posterior, estimated from what sites reported last, and how far off that may be."""

import math
from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from partita.families import Family
from partita.families.base import inner_on_host, inners_on_host
from partita.server.accounting.reports import Contradiction, Credibility, Report, Ways, gross_product
from partita.server.flights import Flight, Flights, Place
from partita.server.rules.base import FreeEnergy
from partita.wire.tasks import Update

# For so many reports it is remembered how far off the first order was; the bound is so many times that. Fewer than
# `FEWEST` say too little.
KEPT, FEWEST, SAFETY = 3, 2, 5.0
# After a shorter way, relative to the size of values, rounding is all that would be measured.
SHORTEST = 1e-8
# The first order is likely to be off by this share of the nats that the posterior has moved.
MARGIN = 1 / 3
# Beyond this, differences of inner products are no numbers.
LARGEST = 1e250
# A site's log likelihood may be so many times that of the median site before its absolute size stops to count.
PROPORTION = 1e3
# What a site says of the posterior in the end is at most so many times as large as what it reported last.
LAST_PROPORTION = 1e6


@dataclass(frozen=True)
class Estimate:
    """What is known of the free energy of the posterior as it is.

    Args:
        comparable: what rules may compare with what they heard before; None, if not all sites have reported again.
        free_energy: the free energy; None, if there is not a report of every site.
        error: how far off that may be.
    """

    comparable: FreeEnergy | None = None
    free_energy: float | None = None
    error: float | None = None


@dataclass
class Evidence:
    """The free energy of the posterior, estimated from what sites reported last, and how far off that may be.

    F(q) = Σ_m E_q[log p(y_m | θ)] - KL(q ‖ prior). The server knows the second part. For the first it knows each site's
    value and gradient where the site's last task began, and follows it from there to first order:

        E_q[log p_m] ≈ E_then[log p_m] + ⟨message_m, μ_q - μ_then⟩

    So the estimate is exact where all sites have just evaluated this posterior, and where likelihoods are linear in the
    mean parameters. Elsewhere it is off to second order: by a multiple of the squared length of the way since,
    (Σ √KL)². What that is worth is measured for each site whenever it reports again.
    """

    sites: int
    credibility: Credibility = field(default_factory=Credibility)
    reports: dict[int, Report] = field(default_factory=dict)
    # Sites that have reported since the last time that all had; and sites whose report was no number.
    fresh: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    # Sites whose data do not count, because the posterior holds nothing of them and they are not asked again.
    uncounted: set[int] = field(default_factory=set)
    # The product of the messages of some sites, kept so that a fold costs the size of one.
    product: Any = None
    within: set[int] = field(default_factory=set)
    # By how much sites' values fall short of what their proposals promised, since free energies were compared last,
    # and how many nats the posterior had moved by then.
    shortfalls: dict[int, tuple[float, float]] = field(default_factory=dict)
    # How far off the first order was lately, and after which distance.
    measured: dict[int, deque[tuple[float, float]]] = field(default_factory=dict)
    # What is left out where free energies are compared, for each site that has been compared; and constants that are
    # kept apart from sites' values.
    left_out: dict[int, float] = field(default_factory=dict)
    offsets: dict[int, float] = field(default_factory=dict)
    # Whether some report was not believed since free energies were compared last: then they cannot be compared.
    shaken: bool = False

    def report(
        self, updates: Iterable[Update], flights: Flights, distrusted: Container[int], away: Iterable[int]
    ) -> tuple[dict[int, str], bool]:
        """Before a fold: take in what sites say of where their tasks began.

        The gradients by hyperparameters of those who are distrusted cannot be. Automatic damping looks at the sum of
        values: one that does not follow from the site's own updates would hold all sites back, or drive them on. What
        does follow is put in its place.

        Returns:
            Whose word was not taken, and why; and whether every site has reported since the last time that this was
            true, but for those that are away.
        """
        read, compared = self._read_all(updates, flights)
        new = {site: report for site, report in read.items() if report is not None}
        self.failed = (self.failed - set(read)) | (set(read) - set(new))
        self.fresh.update(read)
        doubts = self.credibility.weigh(new, compared, self.offsets)
        doubted = {}
        for site, report in new.items():
            if site in doubts.contradicted:
                found = doubts.contradicted[site]
                doubted[site] = (
                    f"its log likelihood, {report.value:.6g}, does not follow from its updates, which make it near "
                    f"{found.expected:.6g}"
                )
                unsure = self.reports[site].unsure + found.allowed
                report = replace(report, value=found.expected, doubted=True, unsure=unsure)
                self._keep(site, report, compared.get(site), measure=False)
            else:
                report = replace(report, doubted=site in distrusted or site in doubts.unlikely)
                self._keep(site, report, compared.get(site))
        self.shaken = self.shaken or bool(doubted)
        complete = bool(self.fresh) and len(self.fresh.union(away)) >= self.sites
        if complete:
            self.fresh.clear()
            self.within.clear()
        return {**doubts.unlikely, **doubted}, complete

    def distrust(self, site: int, factor: Family) -> None:
        """Nothing that a site proposed is followed any more: its factor stands for its gradient."""
        if site in self.reports:
            self._take_out(site)
            old = self.reports[site]
            expected = inner_on_host(factor, old.place.mean)
            self.reports[site] = replace(old, change=factor.flat(), message=factor, expected=expected, doubted=True)

    def _read_all(
        self, updates: Iterable[Update], flights: Flights
    ) -> tuple[dict[int, Report | None], dict[int, Contradiction]]:
        """Reports, and how they follow from the sites' last ones; each at once, while its arrays are in the cache."""
        read, compared, ways = {}, {}, Ways()
        for update in updates:
            report = read[update.site] = self._read(update, flights[update.site], ways)
            if report is not None and update.site in self.reports:
                compared[update.site] = self.reports[update.site].contradiction(report, ways)
        return read, compared

    def _read(self, update: Update, flight: Flight, ways: Ways) -> Report | None:
        """A report; none, where a site says that there is no number."""
        if not math.isfinite(update.expected_log_prob):
            return None
        place = flight.begin
        value = update.expected_log_prob - self.offsets.get(update.site, 0.0)
        message = flight.task.factor * update.change
        slopes = {name: slope * place.hyper[name] for name, slope in update.hyper_gradient.items()}
        old = self.reports.get(update.site)
        known = () if old is None else (ways.between(old.place, place),)
        expected, *along = inners_on_host(message, place.mean, *known)
        if not abs(expected) <= LARGEST:
            return None
        return Report(place, value, update.change, message, expected, along[0] if along else None, slopes)

    def _keep(self, site: int, new: Report, compared: Contradiction | None, measure: bool = True) -> None:
        """Put a report in place of the site's last one, which says what a first order is worth."""
        old = self.reports.get(site)
        if old is not None:
            self._take_out(site)
        if old is not None and compared is not None and not old.place.astray:
            short, nats, distance = old.shortfall(new, compared.there)
            before = self.shortfalls.get(site, (0.0, 0.0))
            self.shortfalls[site] = (before[0] + short, before[1] + nats)
            if measure and distance > SHORTEST * (1 + abs(new.value)):
                self.measured.setdefault(site, deque(maxlen=KEPT)).append((abs(short), distance))
        self.reports[site] = new

    def _put_in(self, site: int) -> None:
        if self.within:
            self._change_product(np.add, site)
        else:
            self.product = jax.tree.map(lambda leaf: np.array(leaf, np.float64), self.reports[site].message)
        self.within.add(site)

    def _take_out(self, site: int) -> None:
        if site in self.within:
            self.within.remove(site)
            self._change_product(np.subtract, site)

    def _change_product(self, operation: np.ufunc, site: int) -> None:
        """Put a site's message into the product, or take it out, in place: nobody else has these arrays."""
        leaves = zip(jax.tree.leaves(self.product), jax.tree.leaves(self.reports[site].message), strict=True)
        for total, own in leaves:
            operation(total, own, out=total)

    def retire(self, site: int) -> None:
        """A site's factor has been divided out: its data count no more."""
        self._forget(site)
        self.uncounted.add(site)

    def readmit(self, site: int) -> None:
        """A site may be asked again, and begins anew: what it reports next is believed at first, and counts."""
        self.credibility.forgive(site)
        if site in self.uncounted:
            self.uncounted.remove(site)
            self._forget(site)
            self.shaken = True

    def find_fault(self, site: int, value: float, now: Place) -> str:
        """Why a site's log likelihood of all data, at a place where the posterior is, cannot be; nothing, if it can.

        It is measured by the site's last report, at whose place the posterior may have been far from here. Without any,
        it only has to be a number that others can be added to.
        """
        report = self.reports.get(site)
        if report is None:
            return "" if abs(value) <= LARGEST else f"its log likelihood, {value:.6g}, is too large"
        last = report.value + self.offsets.get(site, 0.0)
        size = (
            1.0 + abs(last) + report.parts() + gross_product(report.message, now.mean) + abs(report.carried(now.hyper))
        )
        if abs(value) <= min(LAST_PROPORTION * size, LARGEST):
            return ""
        return f"its log likelihood, {value:.6g}, is out of all proportion to what it reported last, {last:.6g}"

    def _forget(self, site: int) -> None:
        self._take_out(site)
        for known in (self.reports, self.credibility.believed, self.left_out, self.offsets):
            known.pop(site, None)

    def estimate(self, now: Place, gain: float, complete: bool, learnt: float) -> Estimate:
        """The free energy at a place where the posterior is: what is expected of all data, less what was gained.

        Args:
            now: the place.
            gain: KL(posterior ‖ prior).
            complete: whether every site has reported again, so that rules may compare what comes out.
            learnt: by how many nats the last step of hyperparameters is expected to have changed it.
        """
        comparable = None
        if complete and self.reports:
            error = math.inf if self.shaken else self._likely_error(now) + learnt
            # Sites that do not count any more stay in what is compared, as constants, so that it does not jump.
            comparable = FreeEnergy(self._comparable(now) - gain, error, self.shortfalls)
            self.shaken, self.shortfalls = False, {}
        counted = {site: report for site, report in self.reports.items() if site not in self.uncounted}
        if len(counted) + len(self.uncounted) != self.sites:
            return Estimate(comparable)
        value = self._sum(now, counted, {site: -offset for site, offset in self.offsets.items()})
        return Estimate(comparable, value - gain, self._error_bound(now, counted))

    def _sum(self, now: Place, reports: Mapping[int, Report], left_out: Mapping[int, float]) -> float:
        """Σ_m E_q[log p(y_m | θ)] of those who have reported, without some constants."""
        # Values that are of this very place are exact, and so is their sum.
        moved = [site for site, report in reports.items() if report.place.density is not now.density]
        for site in moved:
            if site not in self.within:
                self._put_in(site)
        values = [report.value - left_out.get(site, 0.0) for site, report in reports.items()]
        ways = [report.carried(now.hyper) for report in reports.values()]
        if moved:
            ways.append(inner_on_host(self.product, now.mean))
            ways += [-reports[site].expected for site in moved]
        return _add_up(values + ways)

    def _comparable(self, now: Place) -> float:
        """Σ_m E_q[log p(y_m | θ)], up to a constant that makes it not fall because a site joins.

        No number, if most sites say that there is none.
        """
        if 2 * len(self.failed) > self.sites:
            return math.nan
        first = not self.left_out
        if first:
            self._set_offsets()
        for site, report in self.reports.items():
            if site not in self.left_out:
                self.left_out[site] = 0.0 if first else report.at(now)
        return self._sum(now, self.reports, self.left_out)

    def _set_offsets(self) -> None:
        """Keep apart what is out of all proportion to the others' values: beside it no sum would show what they do."""
        usual = PROPORTION * float(np.median([abs(report.value) for report in self.reports.values()]))
        for site, report in self.reports.items():
            known = min(max(report.value, -usual), usual)
            if known != report.value:
                self.offsets[site] = report.value - known
                self.reports[site] = replace(report, value=known)
                self.credibility.shift(site, self.offsets[site])

    def _error_bound(self, now: Place, reports: Mapping[int, Report]) -> float:
        """How far what is expected of all data may be off.

        It goes by what the first order left out lately: quadratic in the length of a longer way, and no less than
        linear in that of a shorter one, because after a leap the error has stopped to grow as it did.
        """
        errors = []
        for site, report in reports.items():
            if report.place.density is not now.density:
                distance = report.distance(now)
                ratios = [(found, distance / far) for found, far in self.measured.get(site, ())]
                known = [found * max(ratio, math.sqrt(ratio)) for found, ratio in ratios]
                # What was measured once may have been on a way along which likelihoods happen to be linear.
                errors.append(max([*known, distance]) if len(known) < FEWEST else max(known))
        return SAFETY * math.fsum(errors)

    def _likely_error(self, now: Place) -> float:
        """How far off it is likely to be: a share of how far the posterior has come since the oldest report.

        What is not known of sites whose word was not taken comes on top.
        """
        reports = self.reports.values()
        since = [report.place.travelled for report in reports if report.place.density is not now.density]
        return math.fsum(report.unsure for report in reports) + (
            MARGIN * (now.travelled - min(since)) if since else 0.0
        )


def _add_up(values: Sequence[float]) -> float:
    """Their sum, to the last digit; no number, where there is none."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return math.nan
