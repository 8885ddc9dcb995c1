"""How a run is done, whatever its model and its sites: one frozen value, from which every face begins."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, TypedDict, get_args

import numpy as np

from partita.errors import InputError
from partita.expectations import Expectation, choose
from partita.families import Family
from partita.foundation.checks import check_one_of
from partita.models import AbstractModel, check_like, prior_of
from partita.server.hyper import LearnHyper
from partita.server.rules import Limits, Optimiser, Rule, Secants, as_damping
from partita.server.schedules import Schedule, Synchronous
from partita.solvers import FixedPoint, Message, Solver
from partita.solvers.choice import choose_solver
from partita.wire.engine import Engine
from partita.wire.job import Job
from partita.wire.naming import SiteNames

# Where the schedule is left open: how many rounds there are at most, and the nats that sites' proposals may still move
# the posterior by when they end before that.
ROUNDS, SETTLED = 200, 1e-6
# Who holds the factors: the server, one for each site; or all sites together, as one.
Custody = Literal["open", "shared"]


class Options(TypedDict, total=False):
    """The fields of `Settings`, as keyword arguments of those who start runs."""

    solver: Solver | None
    schedule: Schedule | None
    damping: float | str | Rule
    engine: Engine | None
    expectation: Expectation | None
    hyper: LearnHyper | None
    start: Family | None
    custody: Custody
    limits: Limits | None
    rules: Sequence[Rule]
    seed: int


@dataclass(frozen=True)
class Settings:
    """How a run is done. What is None is chosen to fit the model.

    Args:
        solver: how a site refines its factor.
        schedule: who works next; synchronous rounds if not given.
        damping: the share of a proposed change that is taken: a number, "1/M", "auto" (what fits the model), "secants"
            or a rule.
        engine: what carries tasks to sites; this process, if not given.
        expectation: how E_q[log p] is computed.
        hyper: learn hyperparameters by maximum likelihood.
        start: where refinements of the untouched prior start; the model's own choice if not given.
        custody: who holds the factors: "open", the server holds one for every site; "shared", there is one for all
            sites together, each refining its share of it, so that the ledger does not grow with sites.
        limits: what updates may do before they are held back, refused, or a site is not asked again.
        rules: further rules that updates pass, after damping and before limits ([how to write one](../how_to/rule.md)).
        seed: with the same seed, the same result.

    >>> Settings(damping=0.5).changed({"seed": 1}).damping
    0.5
    """

    solver: Solver | None = None
    schedule: Schedule | None = None
    damping: float | str | Rule = "auto"
    engine: Engine | None = None
    expectation: Expectation | None = None
    hyper: LearnHyper | None = None
    start: Family | None = None
    custody: Custody = "open"
    limits: Limits | None = None
    rules: Sequence[Rule] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        check_kinds(
            solver=(self.solver, Solver),
            schedule=(self.schedule, Schedule),
            expectation=(self.expectation, Expectation),
            hyper=(self.hyper, LearnHyper),
            limits=(self.limits, Limits),
            rules=(self.rules, Sequence),
        )
        if self.engine is not None:
            check_engine(self.engine)
        for rule in self.rules:
            if not callable(getattr(rule, "init", None)):
                raise InputError(f"rules: expected rules, which have an `init`, got {rule!r}")
        check_one_of("", get_args(Custody), custody=self.custody)
        object.__setattr__(self, "seed", check_seed(self.seed))

    def changed(self, options: Mapping[str, Any]) -> Self:
        """The same with these fields instead; an error that names what is meant, where there is no such field."""
        known = [field.name for field in fields(self)]
        for name in options:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
                raise InputError(f"{name}: is no setting of a run: {hint}")
        return replace(self, **options)

    def choose(self, model: AbstractModel) -> "Chosen":
        """What was left open, chosen to fit a model."""
        prior = prior_of(model, model.hyper)
        expectation = choose(model, prior, self.expectation)
        # Where there is noise, what sites propose never stops to move the posterior.
        rounds = Synchronous() if expectation.stochastic else Synchronous(rounds=ROUNDS, settled=SETTLED)
        schedule = rounds if self.schedule is None else self.schedule
        damping, solver = self._choose_damping(prior, expectation, schedule)
        start = model.start
        if isinstance(damping, Secants):
            start = damping.start(prior if start is None else start)
        if schedule.holds > 1 and not solver.anchored:
            raise InputError(
                f"schedule: hold is for double loops: {type(solver).__name__} has none, use MomentMatching"
            )
        return Chosen(
            solver=solver,
            schedule=schedule,
            damping=damping,
            expectation=expectation,
            hyper=self.hyper,
            start=start if self.start is None else check_like(prior, start=self.start),
            custody=self.custody,
            limits=Limits() if self.limits is None else self.limits,
            rules=tuple(self.rules),
            seed=self.seed,
        )

    def _choose_damping(self, prior: Family, expectation: Expectation, schedule: Schedule) -> tuple[Rule, Solver]:
        """The rule that decides where the posterior goes, and a solver that says what it has to know.

        "auto" stands for secants, wherever there is something to learn them from, and where full covariances are asked
        for that nobody waits for; and otherwise, for an optimiser where sites answer with one message that is a
        direction.
        """
        solver = choose_solver(expectation, self.solver, once=schedule.once)
        damping = Secants() if self.damping == "secants" else self.damping
        if isinstance(damping, Secants):
            solver = self.solver or Message()
            for name, reason in self._obstacles(expectation, solver, schedule):
                raise InputError(f"{name}: {reason}, which damping by secants cannot do with")
            return damping, solver
        is_open = damping == "auto" and self.solver is None
        leads = prior.is_mean_field or (prior.is_full and not schedule.waits)
        if is_open and leads and not self._obstacles(expectation, Message(), schedule):
            return Secants(), Message()
        one_message = expectation.is_direction and isinstance(solver, FixedPoint) and solver.steps == 1
        return Optimiser() if damping == "auto" and one_message else as_damping(damping), solver

    def _obstacles(self, expectation: Expectation, solver: Solver, schedule: Schedule) -> list[tuple[str, str]]:
        """Which settings leave nothing to learn secants from, and why."""
        known = [
            ("solver", "it has to send messages: leave it open", not solver.sends_message(expectation)),
            (
                "expectation",
                "it draws at random, and secants would be of noise",
                expectation.stochastic or solver.stochastic,
            ),
            ("schedule", "every site is asked only once", schedule.once),
            ("hyper", "free energies under different hyperparameters cannot be compared", self.hyper is not None),
            ("custody", "sites share one factor", self.custody == "shared"),
        ]
        return [(name, reason) for name, reason, is_there in known if is_there]


@dataclass(frozen=True)
class Chosen:
    """Settings of which nothing is open any more; without the engine, which changes no result."""

    solver: Solver
    schedule: Schedule
    damping: Rule
    expectation: Expectation
    hyper: LearnHyper | None
    start: Family | None
    custody: Custody
    limits: Limits
    rules: tuple[Rule, ...]
    seed: int

    def job(self, model: AbstractModel, names: SiteNames) -> Job:
        """What sites need to know before their first task."""
        return Job(model, self.solver, self.expectation, self.seed, self.hyper is not None, self.schedule.waits, names)


def check_kinds(**arguments: tuple[Any, Any]) -> None:
    """Each argument is None, or what it has to be."""
    for name, (value, kind) in arguments.items():
        if value is not None and not isinstance(value, kind):
            given = (
                f"the class {value.__name__}: make one, {value.__name__}(...)"
                if isinstance(value, type)
                else repr(value)
            )
            raise InputError(f"{name}: expected a {getattr(kind, '__name__', kind)}, got {given}")


def check_engine(engine: Any) -> None:
    """Check that something carries messages."""
    if isinstance(engine, type):
        raise InputError(
            f"engine: expected an engine, got the class {engine.__name__}: make one, {engine.__name__}(...)"
        )
    missing = [name for name in ("connect", "open", "ask", "submit", "collect", "close") if not hasattr(engine, name)]
    if missing:
        raise InputError(f"engine: expected one such as pt.engines.Ray(), got {engine!r}, which has no {missing[0]}")


def check_seed(seed: Any) -> int:
    """A seed as JAX takes them."""
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise InputError(f"seed: expected a whole number from 0 to 2**32 - 1, got {seed!r}")
    return int(seed)
