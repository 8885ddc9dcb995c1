"""What a run keeps count of: messages, bytes and seconds; and the free energy, as sites have reported it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from partita.ledger import Task, Update


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


@dataclass
class Evidence:
    """The free energy of the posterior, estimated from what sites reported last.

    F(q) = Σ_m (E_q[log p(y_m | θ)] - E_q[log t_m(θ)]) + A(q) - A(prior), each site's term as it was where it was last
    evaluated. A term is stationary there, because a factor is the gradient of its expectation, so the estimate is exact
    when all sites have just evaluated this posterior, and off by the order of the KL moved since when they have not.
    Where sites share one factor, that is no longer so once another has changed it: then only rounds of all sites count.
    """

    sites: int
    shared: bool = False
    terms: dict[int, float] = field(default_factory=dict)
    total: float = 0.0
    fresh: set[int] = field(default_factory=set)
    # The first terms of sites that reported only after the free energy had been looked at without them.
    late: float = 0.0
    compared: bool = False
    moved: float = 0.0
    moved_when_sent: dict[int, float] = field(default_factory=dict)
    moved_when_seen: dict[int, float] = field(default_factory=dict)

    def sent(self, sites: Sequence[int]) -> None:
        self.moved_when_sent.update(dict.fromkeys(sites, self.moved))

    def report(self, updates: Sequence[Update]) -> None:
        """Before a fold: each site's term with the factor that it still has."""
        if self.shared:
            self.terms.clear()
            self.fresh.clear()
            self.total = 0.0
        for update in updates:
            term = update.expected_log_prob - update.expected_log_factor
            if self.compared and not self.shared and update.site not in self.terms:
                self.late += term
            self._set(update.site, term)
            self.moved_when_seen[update.site] = self.moved_when_sent.pop(update.site)
            self.fresh.add(update.site)

    def folded(self, sites: Sequence[int], expected_log_changes: Sequence[float], change: float) -> None:
        """After a fold: the factors have changed, and the posterior has moved."""
        for site, expected in zip(sites, expected_log_changes, strict=True):
            self._set(site, self.terms[site] - expected)
        self.moved += change

    def retired(self, site: int) -> None:
        """A site's factor has been divided out: it has no term any more."""
        self._set(site, 0.0)

    def _set(self, site: int, term: float) -> None:
        self.total += term - self.terms.get(site, 0.0)
        self.terms[site] = term

    def estimate(self, log_partitions: float) -> float | None:
        """F(q), given A(q) - A(prior); None until every site has reported."""
        return self.total + log_partitions if len(self.terms) == self.sites else None

    def comparable(self, log_partitions: float) -> float | None:
        """F(q) for the data of those who have reported, up to a constant: it does not fall because somebody joins."""
        if self.shared:
            return self.estimate(log_partitions)
        self.compared = True
        return self.total - self.late + log_partitions

    def is_complete(self, away: Iterable[int] = ()) -> bool:
        """Whether every site has reported since the last time that this was true, but for those that cannot."""
        if not self.fresh or len(self.fresh.union(away)) < self.sites:
            return False
        self.fresh.clear()
        self.total = math.fsum(self.terms.values())
        return True

    @property
    def uncertainty(self) -> float:
        return self.moved - min(self.moved_when_seen.values(), default=self.moved)
