"""All that a run keeps count of, in step with its ledger."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from partita.families import Family
from partita.models import Hyper
from partita.server.accounting.credibility import Credibility
from partita.server.accounting.evidence import Evidence
from partita.server.accounting.landmarks import Landmarks
from partita.server.accounting.tally import SiteWork, Tally
from partita.server.divergences import divergence
from partita.server.ledger import Ledger
from partita.server.rules.base import FreeEnergy
from partita.wire.tasks import Task, Update


@dataclass(frozen=True)
class Received:
    """What updates say beside their changes, before they are folded.

    Args:
        work: what each of them took.
        doubted: whose word was not taken, and why.
        complete: whether every site has reported since the last time that this was true.
        free_energy: of the posterior as it is, if there is a report of every site.
        error: how far off that may be.
        comparable: what rules may compare with what they heard before; None, if not all sites have reported again.
    """

    work: tuple[SiteWork, ...]
    doubted: Mapping[int, str]
    complete: bool = False
    free_energy: float | None = None
    error: float | None = None
    comparable: FreeEnergy | None = None

    @property
    def staleness(self) -> int:
        """How many updates were folded since the oldest of these was asked for."""
        return max(one.staleness for one in self.work)


class Accounts:
    """Messages, bytes and seconds; and the free energy, as sites have reported it."""

    def __init__(self, ledger: Ledger, noisy: bool, least: float):
        self.ledger, self.least = ledger, least
        self.tally = Tally()
        self.evidence = Evidence(ledger.sites, Credibility(noisy))
        self.landmarks = Landmarks()

    def send(self, tasks: Sequence[Task], start: Family | None, hyper: Hyper) -> None:
        """Count tasks that have been handed out, and remember where they begin."""
        posterior = self.ledger.posterior
        begin = posterior if start is None else start
        astray = 0.0 if start is None else divergence(posterior, start)
        place = self.evidence.place(begin, self.landmarks.mean(begin), hyper, astray)
        for task in tasks:
            self.ledger.flights[task.site].place = place
        self.tally.sent(tasks)

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
        work = self.tally.received(updates, self.ledger.version, self.ledger.flights)
        # A change that cannot be taken is no gradient either.
        followed = [
            update
            if self.ledger.takes(update.site, update.change, self.least)
            else replace(update, change=update.change.flat())
            for update in updates
        ]
        doubted = self.evidence.report(followed, self.ledger.flights, distrusted)
        complete = self.evidence.is_complete(away)
        received = Received(work, doubted, complete=complete)
        return received if at_start else self._estimate(received, hyper, learnt)

    def _estimate(self, received: Received, hyper: Hyper, learnt: float) -> Received:
        """The free energy of the posterior as it is, and how far off it may be."""
        ledger, evidence = self.ledger, self.evidence
        now = evidence.place(ledger.posterior, self.landmarks.mean(ledger.posterior), hyper)
        gain = self.landmarks.gain(ledger.posterior, ledger.prior)
        if received.complete and evidence.reports:
            error = math.inf if evidence.shaken else evidence.likely_error(now) + learnt
            seen = FreeEnergy(evidence.comparable(now) - gain, error, evidence.shortfalls)
            evidence.shaken, evidence.shortfalls = False, {}
            received = replace(received, comparable=seen)
        if not evidence.has_all(ledger.retired):
            return received
        value, error = evidence.expected_log_prob(now) - gain, evidence.error_bound(now)
        return replace(received, free_energy=value, error=error)

    def move(self, before: Family) -> float:
        """The posterior has moved from there; gives how far, KL(now ‖ before)."""
        change = self.landmarks.movement(self.ledger.posterior, before)
        self.evidence.moved(change)
        return change

    def distrust(self, site: int) -> None:
        """Nothing that a site proposed is followed any more: its factor stands for its gradient."""
        self.evidence.distrust(site, self.ledger.factor(site))
