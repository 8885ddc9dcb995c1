"""What a run is made of, at the server: settings, ledger, rules, accounts, and the board that schedules look at."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from partita.designs.design import Reading
from partita.errors import EngineError, InputError
from partita.families import Family
from partita.foundation.descriptions import describe
from partita.foundation.runtime import on_host
from partita.models import AbstractModel, Hyper, prior_of
from partita.server.accounting import Accounts
from partita.server.ledger import Ledger
from partita.server.rules import Rule, Setup
from partita.server.rules.admission import Finite
from partita.server.rules.chain import Chain
from partita.server.rules.cone import Cone
from partita.server.rules.limits import Age, TrustRegion
from partita.server.rules.own import OwnRule
from partita.server.rules.strikes import Strikes
from partita.server.schedules import Board
from partita.server.settings import Chosen
from partita.server.shared_ledger import SharedLedger
from partita.server.storage import Journal, write_names
from partita.wire.answers import AnswerChecks
from partita.wire.engine import Engine, ask_all
from partita.wire.job import Job
from partita.wire.naming import SiteNames
from partita.wire.questions import Digest, Evaluate

# Settings of schedules that a resumed run may raise.
BUDGETS = ("passes", "rounds", "updates")


@dataclass
class Run:
    """Everything a run is made of, ready to iterate. What it keeps is a function of what came from its sites."""

    model: AbstractModel
    sites: int
    settings: Chosen
    engine: Engine
    names: SiteNames
    factors: Sequence[Family] | None = None
    reading: Reading | None = None
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        settings = self.settings
        kind = SharedLedger if settings.custody == "shared" else Ledger
        self.ledger = kind(prior_of(self.model, self.model.hyper), self.sites)
        self.start = None if settings.start is None else on_host(settings.start)
        if self.factors is not None:
            # The posterior is not the prior any more: refinements start from it.
            self.ledger.adopt(on_host(self.factors))
            self.start = None
        # Whether sites are asked for messages, rather than for refined factors.
        self.message_only = settings.solver.sends_message(settings.expectation)
        # The posterior that double loops hold on to.
        self.anchor = self.ledger.posterior
        self.learner = None if settings.hyper is None else settings.hyper.begin(self.model, self.sites)
        self.setup = self._describe()
        self.rules = self._make_rules()
        self.flights = self.ledger.flights
        self.board = Board(self.sites, settings.seed, self.flights)
        self.accounts = Accounts(self.ledger, self.setup.stochastic, self.setup.least)
        # How many updates there will be, for progress bars.
        self.total = settings.schedule.total(self.sites)

    def _describe(self) -> Setup:
        """What rules are told of a run."""
        settings = self.settings
        stochastic = settings.solver.stochastic or settings.expectation.stochastic
        return Setup(self.sites, settings.schedule.parallel, stochastic, self.ledger.prior)

    def _make_rules(self) -> Chain:
        """What an update passes, in order: age ▸ finite ▸ damping ▸ the user's own ▸ trust region ▸ cone."""
        limits, learner = self.settings.limits, self.learner
        age = () if limits.staleness is None else (Age(limits.staleness),)
        finite = Finite() if learner is None else Finite(learner.names, tuple(self.model.hyper))
        trust = () if limits.change is None and limits.total is None else (TrustRegion(limits),)
        own = map(OwnRule, self.settings.rules)
        rules: tuple[Rule, ...] = (*age, finite, self.settings.damping, *own, *trust, Cone(self.ledger))
        return Chain.of(rules, self.setup, Strikes(limits.strikes, self.names))

    def job(self) -> Job:
        """What sites need to know before their first task."""
        return replace(self.settings.job(self.model, self.names), reading=self.reading, columns=self.columns)

    def journal(self, run_dir: str | os.PathLike[str], resume: bool) -> Journal:
        """The journal of this run, which another run cannot go on with."""
        if "\0" in os.fsdecode(run_dir):
            raise InputError(f"run_dir: expected the path of a folder, got {os.fsdecode(run_dir)!r}")
        settings = self.settings
        schedule = {f.name: getattr(settings.schedule, f.name) for f in fields(settings.schedule)}
        parts = {
            **{field.name: getattr(settings, field.name) for field in fields(settings)},
            "model": self.model,
            "schedule": {
                "type": type(settings.schedule).__name__,
                **{name: value for name, value in schedule.items() if name not in BUDGETS},
            },
            "start": self.start,
            "factors": self.factors,
            "shards": [answer.digest for answer in ask_all(self.engine, Digest(), self.sites, self.names)],
        }
        description = {name: describe(part) for name, part in parts.items()}
        write_names(run_dir, self.names.names)
        return Journal(run_dir, description, self.ledger.prior, resume)

    @property
    def quarantined(self) -> dict[int, str]:
        """Sites that are not asked again, and why; not those whose factors were divided out."""
        board = self.board
        return {site: board.away[site] for site in sorted(board.barred - self.ledger.retired)}

    def evaluate(self) -> tuple[dict[int, float], dict[int, EngineError]]:
        """What sites say of the final posterior, their shares of the evidence; and whose answers cannot be used.

        Whoever is away is missing. A site whose data do not count is not asked, and has no share.
        """
        question, uncounted = Evaluate(self.ledger.posterior, self.current_hyper), self.accounts.evidence.uncounted
        asked = {site: question for site in range(self.sites) if site not in uncounted}
        if self.settings.solver.values_factor:
            asked = {site: replace(question, factor=self.ledger.factor(site)) for site in asked}
        is_common = not uncounted and not self.settings.solver.values_factor
        found = self.engine.ask(question if is_common else asked) if asked else {}
        answers, unusable = AnswerChecks(self.names).split(asked, found)
        log_probs = {site: answer.value for site, answer in answers.items()}
        finite = {site: value for site, value in log_probs.items() if math.isfinite(value)}
        for site, fault in self.accounts.find_faults(finite, self.current_hyper).items():
            del log_probs[site]
            unusable[site] = EngineError(f"{self.names.of(site)}: {fault}")
        return log_probs | dict.fromkeys(uncounted, 0.0), unusable

    def join(self, site: int, name: str) -> None:
        """One more site: its factor is one, so that the posterior stays as it is, and it is asked from now on."""
        before = self.settings.schedule.total(self.sites)
        self.sites += 1
        self.setup = self._describe()
        self.accounts.join(self.setup.least)
        self.ledger.join()
        self.rules.join(self.setup)
        if self.learner is not None:
            self.learner.sites = self.sites
        # As many rounds as were left, with one site more.
        left = max(0, self.total - self.ledger.version)
        self.total += round(left * self.settings.schedule.total(self.sites) / before) - left
        self.names.add(site, name)
        self.engine.join(site, name)
        self.board.joined()

    def retire(self, site: int) -> None:
        """Divide a site's factor out: its data count no more."""
        before = self.ledger.posterior
        self.ledger.retire(site)
        self.rules.forget(site)
        self.accounts.evidence.retire(site)
        self.accounts.move(before)

    def readmit(self, site: int) -> None:
        """A site may be asked again, and begins anew."""
        self.board.readmitted(site)
        self.rules.forgive(site)
        self.accounts.evidence.readmit(site)

    @property
    def current_hyper(self) -> Hyper:
        """The hyperparameters as they are: those of the model, or what has been learnt."""
        return dict(self.model.hyper) if self.learner is None else self.learner.hyper
