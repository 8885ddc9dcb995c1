"""All that a run keeps count of, in step with its ledger: what it has cost, how far it has come, its free energy."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from partita.families import Family
from partita.families.base import inner_on_host
from partita.models import Hyper
from partita.server.accounting.evidence import Estimate, Evidence
from partita.server.accounting.reports import Credibility
from partita.server.divergences import divergence
from partita.server.flights import Place
from partita.server.ledger import Ledger
from partita.wire.tasks import Task, Update


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
    """What a run has cost so far."""

    seconds: float = 0.0
    clock: float = 0.0
    messages: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    folds: int = 0

    def add(self, updates: Sequence[Update], work: Sequence[SiteWork]) -> None:
        """Count updates that are about to be folded, and what each of them took."""
        self.folds += 1
        self.messages += len(updates)
        self.bytes_up += sum(one.bytes_up for one in work)
        self.seconds += sum(update.seconds for update in updates)
        self.clock = max([self.clock, *(update.finished_at for update in updates)])


@dataclass(frozen=True)
class Received:
    """What updates say beside their changes, before they are folded.

    Args:
        work: what each of them took.
        doubted: whose word was not taken, and why.
        values: E_q[log p(y_m | θ)] of the others, as far as their changes can be taken.
        complete: whether every site has reported since the last time that this was true.
        estimate: what is known of the free energy.
    """

    work: tuple[SiteWork, ...]
    doubted: Mapping[int, str]
    values: Mapping[int, float]
    complete: bool
    estimate: Estimate = field(default_factory=Estimate)


class Accounts:
    """Messages, bytes and seconds; how far the posterior has come; and the free energy, as sites have reported it."""

    def __init__(self, ledger: Ledger, noisy: bool, least: float):
        self.ledger, self.least = ledger, least
        self.tally = Tally()
        self.evidence = Evidence(ledger.sites, Credibility(noisy))
        # How many rounds there were when the latest site joined, and updates by then.
        self.rounds, self._rounds_from = 0.0, 0
        # How far the posterior has come: Σ √KL and Σ KL over all folds.
        self.length = self.travelled = 0.0
        # Means and log-partitions of the latest prior and posterior, each computed once.
        self._mean: tuple[Family, Any] | None = None
        self._log_partitions: dict[str, tuple[Family, float]] = {}

    def send(self, tasks: Sequence[Task], start: Family | None, hyper: Hyper) -> None:
        """Count tasks that have been handed out, and remember where they begin."""
        if start is None:
            place = self._place(self.ledger.posterior, hyper)
        else:
            place = self._place(start, hyper, astray=divergence(self.ledger.posterior, start))
        for task in tasks:
            self.ledger.flights[task.site].place = place
        self.tally.messages += len(tasks)
        self.tally.bytes_down += sum(task.nbytes for task in tasks)

    def receive(
        self,
        updates: Sequence[Update],
        hyper: Hyper,
        distrusted: Mapping[int, str],
        away: Iterable[int],
        learnt: float,
        at_start: bool,
    ) -> Received:
        """Take in what updates say beside their changes.

        Args:
            updates: what is about to be folded.
            hyper: the hyperparameters as they are.
            distrusted: sites whose gradients by hyperparameters cannot be, and why.
            away: sites that nobody waits for.
            learnt: by how many nats the last step of hyperparameters is expected to have changed the free energy.
            at_start: whether they begin at a start of the model's or the user's own, and not at a posterior.
        """
        ledger, flights = self.ledger, self.ledger.flights
        work = tuple(
            SiteWork(
                site=update.site,
                seconds=update.seconds,
                steps=update.steps,
                staleness=ledger.version - update.version,
                bytes_down=flights[update.site].task.nbytes,
                bytes_up=update.nbytes,
            )
            for update in updates
        )
        self.tally.add(updates, work)
        # A change that cannot be taken is no gradient either.
        sound: set[int] = set()

        def follow(update: Update) -> Update:
            if not ledger.takes(update.site, update.change, self.least):
                return replace(update, change=update.change.flat())
            sound.add(update.site)
            return update

        doubted, complete = self.evidence.report(map(follow, updates), flights, distrusted, away)
        values = {update.site: update.expected_log_prob for update in updates if update.site in sound - set(doubted)}
        if at_start:
            return Received(work, doubted, values, complete)
        now = self._place(ledger.posterior, hyper)
        estimate = self.evidence.estimate(now, self._gain(now.mean), complete, learnt)
        return Received(work, doubted, values, complete, estimate)

    def find_faults(self, log_probs: Mapping[int, float], hyper: Hyper) -> dict[int, str]:
        """Sites that say something of the posterior as it is which cannot be, and why."""
        now = self._place(self.ledger.posterior, hyper)
        faults = {site: self.evidence.find_fault(site, value, now) for site, value in log_probs.items()}
        return {site: fault for site, fault in faults.items() if fault}

    def move(self, before: Family) -> float:
        """The posterior has moved from there; gives how far, KL(now ‖ before)."""
        now, of_before = self.ledger.posterior, self._log_partition(before, "posterior")
        self._mean = (now, _in_double(now.mean()))
        of_now = self._log_partition(now, "posterior")
        change = inner_on_host(now / before, self._mean[1]) - of_now + of_before
        self.length += math.sqrt(max(change, 0.0))
        self.travelled += max(change, 0.0)
        return change

    def join(self, least: float) -> None:
        """One more site, of which nothing has been heard. The ledger does not count it yet."""
        self.rounds = self.round
        self._rounds_from = self.ledger.version
        self.evidence.sites += 1
        self.least = least

    @property
    def round(self) -> float:
        """How often as many updates have been folded as there were sites then."""
        return self.rounds + (self.ledger.version - self._rounds_from) / self.ledger.sites

    def distrust(self, site: int) -> None:
        """Nothing that a site proposed is followed any more: its factor stands for its gradient."""
        self.evidence.distrust(site, self.ledger.factor(site))

    def bar(self, site: int) -> None:
        """A site is not asked again: it is not followed, nor counted, if the posterior holds nothing of its data."""
        self.distrust(site)
        if self.ledger.holds_nothing_of(site):
            self.evidence.uncounted.add(site)

    def _place(self, density: Family, hyper: Hyper, astray: float = 0.0) -> Place:
        """Where tasks begin, so many nats away from the posterior."""
        if self._mean is None or self._mean[0] is not density:
            self._mean = (density, _in_double(density.mean()))
        far = max(astray, 0.0)
        return Place(density, self._mean[1], self.length - math.sqrt(far), self.travelled - far, hyper, astray > 0)

    def _gain(self, mean: Any) -> float:
        """KL(posterior ‖ prior), given the posterior's mean."""
        posterior, prior = self.ledger.posterior, self.ledger.prior
        difference = self._log_partition(posterior, "posterior") - self._log_partition(prior, "prior")
        return inner_on_host(posterior / prior, mean) - difference

    def _log_partition(self, density: Family, name: str) -> float:
        if name not in self._log_partitions or self._log_partitions[name][0] is not density:
            self._log_partitions[name] = (density, float(density.log_partition()))
        return self._log_partitions[name][1]


def _in_double(mean: Any) -> Any:
    """A mean on the host in double precision, as inner products take it: it is converted once, and used by all."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), mean)
