"""What a run keeps count of: messages, bytes and seconds; and the free energy, as sites have reported it."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from partita.families import Family
from partita.ledger import Task, Update
from partita.models import Hyper

# Of how many reports it is known how far off the first order was; and how many times that the bound is.
KEPT, SAFETY = 3, 5.0
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
    """Where tasks began: a density, its mean, how far the posterior had come, and the hyperparameters."""

    density: Family
    mean: Any
    length: float
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

    def drift(self, start: Hyper, end: Hyper) -> float:
        """What a way from some hyperparameters to others makes of the value, to first order."""
        return sum(slope * math.log(end[name] / start[name]) for name, slope in self.slopes.items())

    def at(self, place: Place) -> float:
        """The value elsewhere, to first order."""
        return (
            self.value
            + inner_product(self.message, place.mean)
            - self.expected
            + self.drift(self.place.hyper, place.hyper)
        )

    def distance(self, length: float, hyper: Hyper) -> float:
        """How far away something else is: what a first order leaves out is of this order."""
        return (length - self.place.length) ** 2 + abs(self.drift(self.place.hyper, hyper))


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
    reports: dict[int, Report] = field(default_factory=dict)
    asked: dict[int, tuple[Family, Place]] = field(default_factory=dict)
    # Who has reported since the last time that all had; and whose report was no number.
    fresh: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    # The product of the messages of some sites, so that a fold costs the size of one.
    product: Any = None
    within: set[int] = field(default_factory=set)
    length: float = 0.0
    # How far off the first order was lately, and after which distance.
    measured: dict[int, deque[tuple[float, float]]] = field(default_factory=dict)
    # What is left out where free energies are compared, for each site that has been compared.
    left_out: dict[int, float] = field(default_factory=dict)

    def place(self, density: Family, mean: Any, hyper: Hyper, astray: float = 0.0) -> Place:
        """Where tasks begin, so many nats away from the posterior."""
        return Place(density, mean, self.length - math.sqrt(max(astray, 0.0)), hyper, astray > 0)

    def sent(self, tasks: Sequence[Task], place: Place) -> None:
        self.asked.update({task.site: (task.factor, place) for task in tasks})

    def report(self, updates: Sequence[Update]) -> None:
        """Before a fold: what sites say of where their tasks began."""
        for update in updates:
            factor, place = self.asked.pop(update.site)
            self.fresh.add(update.site)
            if not math.isfinite(update.expected_log_prob):
                self.failed.add(update.site)
                continue
            self.failed.discard(update.site)
            message = factor * update.change
            expected = inner_product(message, place.mean)
            slopes = {name: slope * place.hyper[name] for name, slope in update.hyper_gradient.items()}
            self._keep(update.site, Report(place, update.expected_log_prob, update.change, message, expected, slopes))

    def _keep(self, site: int, new: Report) -> None:
        """In place of the site's last report, which says what a first order is worth."""
        old = self.reports.get(site)
        if old is not None:
            self._take_out(site)
            distance = old.distance(new.place.length, new.place.hyper)
            if distance > 0 and not old.place.astray:
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

    def retired(self, site: int) -> None:
        """A site's factor has been divided out: its data count no more."""
        self._take_out(site)
        self.reports.pop(site, None)
        self.left_out.pop(site, None)

    def expected_log_prob(self, now: Place, left_out: Mapping[int, float] | None = None) -> float:
        """Σ_m E_q[log p(y_m | θ)] of those who have reported."""
        # Values that are of this very place are exact, and so is their sum.
        elsewhere = [site for site, report in self.reports.items() if report.place.density is not now.density]
        for site in elsewhere:
            if site not in self.within:
                own = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), self.reports[site].message)
                self.product = own if not self.within else jax.tree.map(np.add, self.product, own)
                self.within.add(site)
        values = [report.value - (left_out or {}).get(site, 0.0) for site, report in self.reports.items()]
        ways = [report.drift(report.place.hyper, now.hyper) for report in self.reports.values() if report.slopes]
        if elsewhere:
            ways.append(inner_product(self.product, now.mean))
            ways += [-self.reports[site].expected for site in elsewhere]
        return math.fsum(values + ways)

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
        usual = PROPORTION * float(np.median([abs(report.value) for report in self.reports.values()]))
        for site, report in self.reports.items():
            if site not in self.left_out:
                known = min(max(report.value, -usual), usual)
                self.left_out[site] = report.value - known if first else report.at(now)
        return self.expected_log_prob(now, self.left_out)

    def error_bound(self, now: Place) -> float:
        """How far `expected_log_prob` may be off.

        What the first order left out before, lately: quadratic in the length of a longer way, and of a shorter one no
        less than linear, because after a leap the error has stopped to grow as it did.
        """

        def error(known: Sequence[tuple[float, float]], distance: float) -> float:
            return max(found * max(ratio, math.sqrt(ratio)) for found, far in known for ratio in (distance / far,))

        return SAFETY * self._error(now, error)

    def likely_error(self, now: Place) -> float:
        """The same, by no more than the latest report."""
        return self._error(now, lambda known, distance: known[-1][0] * distance / known[-1][1])

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


def inner_product(natural: Any, mean: Any) -> float:
    """⟨η, μ⟩ on the host, in double precision: differences of such numbers are small beside them."""
    pairs = zip(jax.tree.leaves(natural), jax.tree.leaves(mean), strict=True)
    return math.fsum(float(np.vdot(np.asarray(a, np.float64), np.asarray(b, np.float64))) for a, b in pairs)
