"""What a run keeps count of: messages, bytes and seconds; and the free energy, as sites have reported it."""

import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from partita.families import Family
from partita.models import Hyper
from partita.wire.tasks import Task, Update

# Of how many reports it is known how far off the first order was; and how many times that the bound is.
KEPT, SAFETY = 3, 5.0
SHORTEST = 1e-8
# Of the nats that the posterior has moved: so far off is the first order likely to be.
MARGIN = 1 / 3
# A report may be so many times as far from what was expected as gradients differ, and as others' reports are.
WIDE, UNUSUAL, ROUNDING = 4.0, 20.0, 1e4
# The same where hyperparameters have moved: a mean of two gradients is off by half of their difference at most, and by
# a twelfth of it where steps are short. A site that may differ from itself by half could say anything.
NARROW, NARROWEST = 0.6, 0.25
# By the logarithms of hyperparameters, a log likelihood changes by so many times its own size at most, and so do its
# slopes: twice, if it goes with the square.
STEEPEST, STEEPENING = 20.0, 8.0
# Of what others are off by, so much is nothing unusual where reports are not noisy.
LIKE_OTHERS = 5.0
# So many reports in a row have to be believed after one that was not, before a site's slopes count again.
PROBATION = 3
# Nats that quadrature leaves between values and gradients, and that steer nobody.
NEGLIGIBLE = 1e-3
# Beyond this, differences of inner products are no numbers.
LARGEST = 1e250
# A site's log likelihood may be so many times that of the median site before its absolute size stops to count.
PROPORTION = 1e3


@dataclass(frozen=True)
class SiteWork:
    """What one site's part of a fold took: computation, and one message each way."""

    site: int
    seconds: float
    steps: int
    staleness: int
    bytes_down: int
    bytes_up: int


@dataclass
class Tally:
    """What has been counted so far."""

    seconds: float = 0.0
    clock: float = 0.0
    messages: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    folds: int = 0
    # Of the task that each site has in hand.
    in_hand: dict[int, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return self.bytes_down + self.bytes_up

    def sent(self, tasks: Sequence[Task]) -> None:
        self.messages += len(tasks)
        self.in_hand.update({task.site: task.nbytes for task in tasks})
        self.bytes_down += sum(task.nbytes for task in tasks)

    def received(self, updates: Sequence[Update], version: int) -> tuple[SiteWork, ...]:
        """Count updates that are about to be folded into a posterior of this version; what each of them took."""
        work = tuple(
            SiteWork(
                site=update.site,
                seconds=update.seconds,
                steps=update.steps,
                staleness=version - update.version,
                bytes_down=self.in_hand.pop(update.site),
                bytes_up=update.nbytes,
            )
            for update in updates
        )
        self.folds += 1
        self.messages += len(updates)
        self.bytes_up += sum(one.bytes_up for one in work)
        self.seconds += sum(update.seconds for update in updates)
        self.clock = max([self.clock, *(update.finished_at for update in updates)])
        return work


@dataclass(frozen=True)
class Place:
    """Where tasks began: a density, its mean, how far the posterior had come, Σ √KL and Σ KL, and hyperparameters."""

    density: Family
    mean: Any
    length: float
    travelled: float
    hyper: Hyper
    # Whether it was not a posterior.
    astray: bool = False


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


@dataclass
class Evidence:
    """The free energy of the posterior, estimated from what sites reported last, and how far off that may be.

    F(q) = Σ_m E_q[log p(y_m | θ)] - KL(q ‖ prior). The server knows the second part. Of the first it knows each site's
    value and gradient where the site's last task began, and follows it from there to first order:

        E_q[log p_m] ≈ E_then[log p_m] + ⟨message_m, μ_q - μ_then⟩

    So the estimate is exact where all sites have just evaluated this posterior, and where likelihoods are linear in the
    mean parameters. Elsewhere it is off to second order: by a multiple of the squared length of the way since,
    (Σ √KL)². What that is worth is measured for each site whenever it reports again.
    """

    sites: int
    # Whether reports are noisy: then they may differ as others' do.
    noisy: bool = False
    reports: dict[int, Report] = field(default_factory=dict)
    # Of each site, the last report whose slopes were believed; the largest size of what it reported.
    believed: dict[int, Report] = field(default_factory=dict)
    largest: dict[int, float] = field(default_factory=dict)
    # How many reports more have to be believed before a site's slopes count again.
    probation: dict[int, int] = field(default_factory=dict)
    # How far slopes have moved, and values from what slopes say, beside how far they may.
    jumps: dict[int, float] = field(default_factory=dict)
    gaps: dict[int, float] = field(default_factory=dict)
    asked: dict[int, tuple[Family, Place]] = field(default_factory=dict)
    # Who has reported since the last time that all had; and whose report was no number.
    fresh: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    # The product of the messages of some sites, so that a fold costs the size of one.
    product: Any = None
    within: set[int] = field(default_factory=set)
    length: float = 0.0
    travelled: float = 0.0
    # By how much sites' values are short of what their proposals made of them, since free energies were compared last,
    # and how many nats later.
    shortfalls: dict[int, tuple[float, float]] = field(default_factory=dict)
    # How far off the first order was lately, and after which distance.
    measured: dict[int, deque[tuple[float, float]]] = field(default_factory=dict)
    # How far each site's last value was from what its updates made expect.
    contradictions: dict[int, float] = field(default_factory=dict)
    # What is left out where free energies are compared, for each site that has been compared; what values that are
    # kept are short of.
    left_out: dict[int, float] = field(default_factory=dict)
    offsets: dict[int, float] = field(default_factory=dict)
    # Whether somebody's word was not taken since free energies were compared last: then they cannot be.
    shaken: bool = False

    def place(self, density: Family, mean: Any, hyper: Hyper, astray: float = 0.0) -> Place:
        """Where tasks begin, so many nats away from the posterior."""
        far = max(astray, 0.0)
        return Place(density, mean, self.length - math.sqrt(far), self.travelled - far, hyper, astray > 0)

    def sent(self, tasks: Sequence[Task], place: Place) -> None:
        self.asked.update({task.site: (task.factor, place) for task in tasks})

    def report(self, updates: Sequence[Update], distrusted: Container[int] = ()) -> dict[int, str]:
        """Before a fold: what sites say of where their tasks began. Gives whose word was not taken, and why.

        Those who are distrusted have hyperparameters' gradients that cannot be.

        Automatic damping looks at the sum of values: one that does not follow from the site's own updates would hold
        all sites back, or drive them on. What follows is put in its place.
        """
        new = {update.site: self._read(update) for update in updates}
        reports = {site: report for site, report in new.items() if report is not None}
        self.failed = (self.failed - set(new)) | (set(new) - set(reports))
        self.fresh.update(new)
        found = {
            site: self.reports[site].contradiction(report) for site, report in reports.items() if site in self.reports
        }
        self.contradictions.update({site: one.found for site, one in found.items()})
        doubted, unlikely = {}, self._unlikely(reports)
        for site, report in reports.items():
            if site in found and self._is_contradicted(site, found[site]):
                doubted[site] = (
                    f"its log likelihood, {report.value:.6g}, does not follow from its updates, which make it near "
                    f"{found[site].expected:.6g}"
                )
                unsure = self.reports[site].unsure + found[site].allowed
                kept = replace(report, value=found[site].expected, doubted=True, unsure=unsure)
                self._keep(site, kept, measure=False)
            else:
                self._keep(site, replace(report, doubted=site in distrusted or site in unlikely))
                if site not in unlikely:
                    self.believed[site] = report
            left = self.probation.get(site, 0) - 1
            self.probation[site] = PROBATION if site in doubted or site in unlikely else max(0, left)
        self.shaken = self.shaken or bool(doubted)
        return unlikely | doubted

    @property
    def not_counted(self) -> list[int]:
        """Whose slopes do not count, because the site contradicted itself lately."""
        return [site for site, left in self.probation.items() if left > 0]

    def _unlikely(self, reports: Mapping[int, Report]) -> dict[int, str]:
        """Whose slopes by hyperparameters cannot be, and why.

        A site is measured by the last that was believed of it: what it said since does not count.
        """
        sloping = {site: report for site, report in reports.items() if report.slopes}
        for site, report in sloping.items():
            self.largest[site] = max(self.largest.get(site, 0.0), abs(report.value + self.offsets.get(site, 0.0)))
        for site, old in self.believed.items():
            if site in sloping:
                new = sloping[site]
                size = 1.0 + self.largest[site] + max(old.parts(), new.parts())
                self.jumps[site] = max(old.jumps(new, size).values())
                self.gaps[site] = old.gap(new, size)
        words = {site: self._doubtful(site, report) for site, report in sloping.items()}
        return {site: f"its gradient by hyperparameters {one}, and was left out" for site, one in words.items() if one}

    def _doubtful(self, site: int, report: Report) -> str:
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

    def forgive(self, site: int) -> None:
        """Somebody says that a site may be asked again: what it says is believed at first."""
        self.believed.pop(site, None)
        self.probation.pop(site, None)

    def distrust(self, site: int, factor: Family) -> None:
        """Nothing that a site proposed is followed any more: its factor stands for its gradient."""
        if site in self.reports:
            self._take_out(site)
            old = self.reports[site]
            change = jax.tree.map(np.zeros_like, factor)
            expected = inner_product(factor, old.place.mean)
            self.reports[site] = replace(old, change=change, message=factor, expected=expected, doubted=True)

    def _read(self, update: Update) -> Report | None:
        """A report; none, where a site says that there is no number."""
        factor, place = self.asked.pop(update.site)
        if not math.isfinite(update.expected_log_prob):
            return None
        value = update.expected_log_prob - self.offsets.get(update.site, 0.0)
        message = factor * update.change
        slopes = {name: slope * place.hyper[name] for name, slope in update.hyper_gradient.items()}
        expected = inner_product(message, place.mean)
        if not abs(expected) <= LARGEST:
            return None
        return Report(place, value, update.change, message, expected, slopes)

    def _is_contradicted(self, site: int, found: Contradiction) -> bool:
        """Whether a value is further off than it may be, and far further than others' are, if that has to be known."""
        if found.found <= found.allowed:
            return False
        return found.found > found.allowed + UNUSUAL * self._usual_contradiction(site)

    def _usual_contradiction(self, site: int) -> float:
        """What others' values are off by: noise, where expectations are sampled. Of nobody else, nothing is unusual."""
        others = [found for other, found in self.contradictions.items() if other != site]
        return float(np.median(others)) if others else math.inf

    def _keep(self, site: int, new: Report, measure: bool = True) -> None:
        """In place of the site's last report, which says what a first order is worth."""
        old = self.reports.get(site)
        if old is not None:
            self._take_out(site)
            distance = old.distance(new.place.length, new.place.hyper)
            if not old.place.astray:
                short, later = self.shortfalls.get(site, (0.0, 0.0))
                short += old.at(new.place) - new.value
                later += new.place.travelled - old.place.travelled + abs(old.carried(new.place.hyper))
                self.shortfalls[site] = (short, later)
            # After a shorter way rounding is all that is measured.
            if measure and distance > SHORTEST * (1 + abs(new.value)) and not old.place.astray:
                error = abs(new.value - old.at(new.place))
                self.measured.setdefault(site, deque(maxlen=KEPT)).append((error, distance))
        self.reports[site] = new

    def _take_out(self, site: int) -> None:
        if site in self.within:
            self.within.remove(site)
            self.product = jax.tree.map(lambda total, own: total - own, self.product, self.reports[site].message)

    def moved(self, divergence: float) -> None:
        """After a fold: how far the posterior has moved."""
        self.length += math.sqrt(max(divergence, 0.0))
        self.travelled += max(divergence, 0.0)

    def retired(self, site: int) -> None:
        """A site's factor has been divided out: its data count no more."""
        self._take_out(site)
        self.reports.pop(site, None)
        self.believed.pop(site, None)
        self.left_out.pop(site, None)
        self.offsets.pop(site, None)

    def expected_log_prob(self, now: Place) -> float:
        """Σ_m E_q[log p(y_m | θ)] of those who have reported."""
        return self._sum(now, {site: -offset for site, offset in self.offsets.items()})

    def _sum(self, now: Place, left_out: Mapping[int, float]) -> float:
        # Values that are of this very place are exact, and so is their sum.
        elsewhere = [site for site, report in self.reports.items() if report.place.density is not now.density]
        for site in elsewhere:
            if site not in self.within:
                own = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), self.reports[site].message)
                self.product = own if not self.within else jax.tree.map(np.add, self.product, own)
                self.within.add(site)
        values = [report.value - left_out.get(site, 0.0) for site, report in self.reports.items()]
        ways = [report.carried(now.hyper) for report in self.reports.values()]
        if elsewhere:
            ways.append(inner_product(self.product, now.mean))
            ways += [-self.reports[site].expected for site in elsewhere]
        return total(values + ways)

    def is_complete(self, away: Iterable[int] = ()) -> bool:
        """Whether every site has reported since the last time that this was true, but for those that cannot."""
        if not self.fresh or len(self.fresh.union(away)) < self.sites:
            return False
        self.fresh.clear()
        self.within.clear()
        return True

    def has_all(self, retired: Iterable[int] = ()) -> bool:
        return len(self.reports) + len(set(retired)) == self.sites

    def comparable(self, now: Place) -> float:
        """As `expected_log_prob`, up to a constant that makes it not fall because somebody joins.

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
        return self._sum(now, self.left_out)

    def _set_offsets(self) -> None:
        """Keep apart what is out of all proportion to the others' values: beside it no sum would show what they do."""
        usual = PROPORTION * float(np.median([abs(report.value) for report in self.reports.values()]))
        for site, report in self.reports.items():
            known = min(max(report.value, -usual), usual)
            if known != report.value:
                self.offsets[site] = report.value - known
                self.reports[site] = replace(report, value=known)
                if site in self.believed:
                    old = self.believed[site]
                    self.believed[site] = replace(old, value=old.value - self.offsets[site])

    def error_bound(self, now: Place) -> float:
        """How far `expected_log_prob` may be off.

        What the first order left out before, lately: quadratic in the length of a longer way, and of a shorter one no
        less than linear, because after a leap the error has stopped to grow as it did.
        """

        def error(known: Sequence[tuple[float, float]], distance: float) -> float:
            return max(found * max(ratio, math.sqrt(ratio)) for found, far in known for ratio in (distance / far,))

        return SAFETY * self._error(now, error)

    def likely_error(self, now: Place) -> float:
        """How far off it is likely to be: a share of how far the posterior has come since the oldest report.

        With what is not known of sites whose word was not taken.
        """
        reports = self.reports.values()
        since = [report.place.travelled for report in reports if report.place.density is not now.density]
        return math.fsum(report.unsure for report in reports) + (
            MARGIN * (now.travelled - min(since)) if since else 0.0
        )

    def _error(self, now: Place, error: Callable[[Sequence[tuple[float, float]], float], float]) -> float:
        distances = {
            site: report.distance(now.length, now.hyper)
            for site, report in self.reports.items()
            if report.place.density is not now.density
        }
        return math.fsum(
            error(self.measured[site], distance) if site in self.measured else distance
            for site, distance in distances.items()
        )


def gross_product(natural: Any, mean: Any) -> float:
    """As `inner_product`, with every term as large as it is: nothing cancels."""
    pairs = zip(jax.tree.leaves(natural), jax.tree.leaves(mean), strict=True)
    with np.errstate(over="ignore", invalid="ignore"):
        return sum(float(np.vdot(np.abs(a).astype(np.float64), np.abs(b).astype(np.float64))) for a, b in pairs)


def inner_product(natural: Any, mean: Any) -> float:
    """⟨η, μ⟩ on the host, in double precision: differences of such numbers are small beside them."""
    pairs = zip(jax.tree.leaves(natural), jax.tree.leaves(mean), strict=True)
    with np.errstate(over="ignore", invalid="ignore"):
        return sum(float(np.vdot(np.asarray(a, np.float64), np.asarray(b, np.float64))) for a, b in pairs)


def total(values: Sequence[float]) -> float:
    """Their sum, to the last digit; no number, where there is none."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return math.nan
