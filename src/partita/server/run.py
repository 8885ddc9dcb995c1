"""What a run is made of, at the server: the ledger, the settings, and what is known of the posterior so far."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import equinox as eqx

from partita.families import Family, inner
from partita.foundation.descriptions import describe
from partita.foundation.runtime import Array, on_host, precision
from partita.models import AbstractModel, Hyper, prior_of
from partita.server.accounting import inner_product
from partita.server.ledger import Ledger, SharedLedger
from partita.server.limits import STRIKE
from partita.server.settings import Chosen
from partita.server.storage import Journal, write_names
from partita.wire.engine import Engine
from partita.wire.job import Job
from partita.wire.naming import SiteNames

# Settings of schedules that a resumed run may raise.
BUDGETS = ("passes", "rounds", "updates")


@dataclass
class Run:
    """Everything a run is made of, ready to iterate."""

    model: AbstractModel
    sites: int
    settings: Chosen
    engine: Engine
    names: SiteNames
    factors: Sequence[Family] | None = None

    def __post_init__(self) -> None:
        settings = self.settings
        kind = SharedLedger if settings.custody == "shared" else Ledger
        self.ledger = kind(prior_of(self.model, self.model.hyper), self.sites)
        self.start = None if settings.start is None else on_host(settings.start)
        if self.factors is not None:
            # The posterior is not the prior any more: refinements start from it.
            self.ledger.adopt(on_host(self.factors))
            self.start = None
        self.learner = None if settings.hyper is None else settings.hyper.begin(self.model, self.sites)
        # The log-partitions that were computed last, of a posterior and of a prior.
        self._known: dict[str, tuple[Family, float]] = {}
        self._means: tuple[Family, Any] | None = None

    def job(self) -> Job:
        """What sites need to know before their first task."""
        return self.settings.job(self.model, self.names)

    def journal(self, run_dir: str | os.PathLike, resume: bool) -> Journal:
        """The journal of this run, which another run cannot go on with."""
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
            "shards": self.engine.digests(),
        }
        description = {name: describe(part) for name, part in parts.items()}
        write_names(run_dir, self.names.names)
        return Journal(run_dir, description, self.ledger.prior, resume)

    def evaluate(self) -> dict[int, float]:
        """What every site says of the final posterior: its share of the evidence."""
        factors = self.ledger.factors() if self.settings.solver.values_factor else None
        values = self.engine.evaluate(self.ledger.posterior, self.current_hyper, factors)
        return values | dict.fromkeys(self.ledger.retired, 0.0)

    def moved(self, before: Family) -> float:
        """How far the posterior has moved: KL(now ‖ before)."""
        now = self.ledger.posterior
        of_before = self._log_partition(before)
        with precision(before.dtype):
            expected, of_now, mean = _moved(now, before)
        self._known["posterior"] = (now, float(of_now))
        self._means = (now, on_host(mean))
        return float(expected) - float(of_now) + of_before

    def mean(self, density: Family) -> Any:
        """μ, computed once for each posterior."""
        if self._means is None or self._means[0] is not density:
            self._means = (density, on_host(density.mean()))
        return self._means[1]

    @property
    def divergence(self) -> float:
        """KL(posterior ‖ prior)."""
        posterior, prior = self.ledger.posterior, self.ledger.prior
        return inner_product(posterior / prior, self.mean(posterior)) - self.gain

    @property
    def gain(self) -> float:
        """A(posterior) - A(prior)."""
        return self._log_partition(self.ledger.posterior) - self._log_partition(self.ledger.prior, "prior")

    def _log_partition(self, density: Family, name: str = "posterior") -> float:
        """A, computed once for each posterior and each prior."""
        if name not in self._known or self._known[name][0] is not density:
            self._known[name] = (density, float(density.log_partition()))
        return self._known[name][1]

    @property
    def least(self) -> float:
        """The share of an update below which nothing of it is taken: of one site alone, whatever can be."""
        return STRIKE if self.ledger.sites > 1 else 0.0

    @property
    def stochastic(self) -> bool:
        """Whether reports of the free energy are noisy."""
        return self.settings.solver.stochastic or self.settings.expectation.stochastic

    @property
    def message_only(self) -> bool:
        """Whether sites are asked for messages, rather than for refined factors."""
        return self.settings.solver.sends_message(self.settings.expectation)

    @property
    def current_hyper(self) -> Hyper:
        return dict(self.model.hyper) if self.learner is None else self.learner.hyper


@eqx.filter_jit
def _moved(new: Family, old: Family) -> tuple[Array, Array, Any]:
    """E_new[log new / old], up to both scales; A(new); and the mean of new."""
    mean = new.mean()
    return inner(new / old, mean), new.log_partition(), mean
