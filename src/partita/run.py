"""The loop, and `fit`. One loop for every schedule, engine and solver: a generator of events."""

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, fields, replace
from typing import Any

import equinox as eqx
import jax
import numpy as np

from partita.accounting import Evidence, Tally, inner_product
from partita.columns import Columns, arrange_together
from partita.damping import Damping, Optimiser, Proposal, Tempering, as_damping
from partita.engines import Engine, InProcess, Job, Worker, all_loaded
from partita.errors import InputError, NotFinite, Stalled
from partita.expectations import Expectation, choose
from partita.families import Family, inner
from partita.hyper import HyperLearner, LearnHyper
from partita.inbox import Inbox
from partita.ledger import Ledger, SharedLedger, Task, Update, product, scaled
from partita.limits import STRIKE, Limits, Trust, divergence
from partita.messages import Notice
from partita.models import AbstractModel, Hyper, check_like, prior_of
from partita.naming import SiteNames, choose_names
from partita.result import Result
from partita.runtime import on_host, precision
from partita.schedules import Board, OnePass, Schedule, Synchronous
from partita.shards import Shard
from partita.solvers import FixedPoint, NaturalGradient, Outcome, Solver
from partita.storage import Journal, describe, reached, write_names
from partita.telemetry import Callback, Event

BUDGETS = ("passes", "rounds", "updates")
# Of what sites propose: if less can be taken, the run goes nowhere.
STALLED = 1e-3
# How a site solves its local problem to the end, where messages are destinations, and where they are directions.
SOLVES = FixedPoint(steps=200, tolerance=1e-8)
SETTLES = Synchronous(rounds=30, settled=1e-9)
DESCENDS = NaturalGradient(steps=1000, learning_rate=0.01)


def fit(
    model: AbstractModel,
    shards: Sequence[Any],
    *,
    solver: Solver | None = None,
    schedule: Schedule | None = None,
    damping: float | str | Damping = "auto",
    engine: Engine | None = None,
    expectation: Expectation | None = None,
    hyper: LearnHyper | None = None,
    start: Family | None = None,
    factors: Sequence[Family] | None = None,
    shared: bool = False,
    limits: Limits | None = None,
    names: Sequence[str] | None = None,
    run_dir: str | os.PathLike | None = None,
    resume: bool = False,
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Approximate one posterior from shards of data, by partitioned variational inference.

    Args:
        model: prior × likelihood.
        shards: one per site, as the model takes them: `(X, y)` or `(X, y, weights)` for regressions; or functions that
            load them, where the site is.
        solver: how a site refines its factor.
        schedule: who works next.
        damping: the share of a proposed change that is taken: a number, "1/M", "auto" or a policy.
        engine: what carries tasks to sites.
        expectation: how E_q[log p] is computed; chosen by the model if not given.
        hyper: learn hyperparameters by maximum likelihood.
        start: where refinements of the untouched prior start; the model's own choice if not given.
        factors: one per site to begin with, of an earlier result; flat ones, if not given.
        shared: one factor for all sites, each refining its share of it, so that the ledger does not grow with sites.
        limits: what updates may do before they are held back, refused, or a site is not asked again.
        names: what errors, warnings and the history call sites; by default they are counted from 0.
        run_dir: keep every update there, so that the run can be killed and resumed.
        resume: carry on with the run in `run_dir`, if there is one.
        seed: with the same seed, the same result.
        callbacks: called with every event: `[pt.telemetry.Progress()]` shows how far it is.

    Returns:
        The posterior, the factors, the log evidence and the history.

    >>> import partita as pt
    >>> X = np.ones((4, 1)); y = np.array([1.0, 2.0, 3.0, 2.0])
    >>> model = pt.models.LinearRegression(features=1, noise=1.0, intercept=False)
    >>> result = fit(model, [(X[:2], y[:2]), (X[2:], y[2:])], schedule=pt.schedules.OnePass())
    >>> result.posterior.location.round(6), result.posterior.scale.round(6)
    (array([1.6]), array([0.447214]))
    """
    check_kinds(callbacks=(callbacks, Sequence), run_dir=(run_dir, str | os.PathLike))
    if resume and run_dir is None:
        raise InputError("resume: needs the run_dir of the run")
    run = prepared(
        model,
        shards,
        solver=solver,
        schedule=schedule,
        damping=damping,
        engine=engine,
        expectation=expectation,
        hyper=hyper,
        start=start,
        factors=factors,
        shared=shared,
        limits=limits,
        names=names,
        seed=seed,
    )
    with ExitStack() as opened:
        opened.enter_context(run.names.told())
        for callback in callbacks:
            if isinstance(callback, AbstractContextManager):
                opened.enter_context(callback)
        run.engine.open(run.job(), run.shards)
        opened.callback(run.engine.close)
        journal = None if run_dir is None else opened.enter_context(run.journal(run_dir, resume))
        return replace(run.finish(callbacks, journal), columns=Columns(arrange_together(shards)[0]))


def events(
    model: AbstractModel,
    shards: Sequence[Any],
    *,
    solver: Solver | None = None,
    schedule: Schedule | None = None,
    damping: float | str | Damping = "auto",
    engine: Engine | None = None,
    expectation: Expectation | None = None,
    hyper: LearnHyper | None = None,
    start: Family | None = None,
    factors: Sequence[Family] | None = None,
    shared: bool = False,
    limits: Limits | None = None,
    names: Sequence[str] | None = None,
    seed: int = 0,
) -> Iterator[Event]:
    """The same run as `fit`, one event at a time: to stop, look or predict whenever you like.

    Every event carries the posterior of that moment.
    """
    run = prepared(
        model,
        shards,
        solver=solver,
        schedule=schedule,
        damping=damping,
        engine=engine,
        expectation=expectation,
        hyper=hyper,
        start=start,
        factors=factors,
        shared=shared,
        limits=limits,
        names=names,
        seed=seed,
    )
    with run.names.told():
        run.engine.open(run.job(), run.shards)
        try:
            yield from iterate(run)
        finally:
            run.engine.close()


def prepared(
    model: AbstractModel,
    shards: Sequence[Any],
    *,
    solver: Solver | None = None,
    schedule: Schedule | None = None,
    damping: float | str | Damping = "auto",
    engine: Engine | None = None,
    expectation: Expectation | None = None,
    hyper: LearnHyper | None = None,
    start: Family | None = None,
    factors: Sequence[Family] | None = None,
    shared: bool = False,
    limits: Limits | None = None,
    names: Sequence[str] | None = None,
    seed: int = 0,
) -> "Run":
    """A run whose parts have been checked, and chosen where they were left open."""
    check_kinds(solver=(solver, Solver), schedule=(schedule, Schedule), expectation=(expectation, Expectation))
    check_kinds(hyper=(hyper, LearnHyper), limits=(limits, Limits))
    check_sites(model, shards)
    called = choose_names(names, shards)
    with called.told():
        model, shards = model.opened(arrange_together(shards)[1])
    prior = prior_of(model, model.hyper)
    fitting = choose(model, prior, expectation)
    chosen, policy = choose_rest(fitting, solver, damping, once=schedule is not None and schedule.once)
    if schedule is not None and schedule.holds > 1 and not chosen.anchored:
        raise InputError(f"schedule: hold is for double loops: {type(chosen).__name__} has none, use MomentMatching")
    if factors is not None and shared:
        raise InputError("factors: with shared=True there is one for all sites; leave them out")
    return Run(
        model=model,
        shards=shards,
        solver=chosen,
        schedule=Synchronous() if schedule is None else schedule,
        damping=policy,
        engine=InProcess() if engine is None else engine,
        expectation=fitting,
        hyper=hyper,
        start=model.start if start is None else check_like(prior, start=start),
        factors=None if factors is None else [check_like(prior, proper=False, factors=factor) for factor in factors],
        shared=bool(shared),
        limits=Limits() if limits is None else limits,
        names=called,
        seed=check_seed(seed),
    )


def partial_fit(
    state: AbstractModel | Result,
    shard: Any,
    *,
    solver: Solver | None = None,
    schedule: Schedule | None = None,
    damping: float | str | Damping = "auto",
    expectation: Expectation | None = None,
    hyper: LearnHyper | None = None,
    start: Family | None = None,
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """One more batch of a stream: the posterior so far is its prior, and its data need not be kept.

    Starts from a model and goes on from results. Each batch adds a factor to `prior × ∏ factors`; the log evidence
    is that of the whole stream, log p(y_1) + log p(y_2 | y_1) + …: each term is a lower bound given what is kept of the
    batches before, so that the sum bounds nothing where that is not exact.

    Hyperparameters stay what they are, unless `hyper` says to learn them: from this batch, beginning at those of the
    last one, which keeps its factor. What earlier batches knew of them is `LearnHyper(prior=…)`.

    Columns of frames are put in the order of the first batch's, by their names. A batch whose values are a hundred
    times larger or smaller than all before it is said aloud. With schedule, solver and damping left open, the batch's
    problem is solved at once, unless messages are noisy, or only directions, or hyperparameters are learnt.
    """
    model = state.model if isinstance(state, Result) else state
    if isinstance(state, Result) and state.hyper != model.hyper:
        model = model.with_hyper(state.hyper)
    if schedule is None and hyper is None and damping == "auto" and is_solved_at_once(model, solver, expectation):
        # Where a step overshoots, a solver that begins anew finds the way on.
        schedule, solver = (OnePass(), None) if model.exact else (SETTLES, SOLVES)
    settings: dict[str, Any] = {
        "solver": solver,
        "schedule": schedule,
        "damping": damping,
        "expectation": expectation,
        "hyper": hyper,
        "start": start,
        "seed": seed,
        "callbacks": callbacks,
    }
    columns = state.columns if isinstance(state, Result) else Columns()
    shard = columns.arrange(shard)
    if not isinstance(state, Result):
        return replace(fit(state, [shard], **settings), columns=columns.after(shard))
    step = fit(model.with_prior(state.posterior), [shard], **settings)
    return replace(
        state,
        posterior=step.posterior,
        factors=(*state.factors, *step.factors),
        log_evidence=state.log_evidence + step.log_evidence,
        expected_log_probs=(*state.expected_log_probs, *step.expected_log_probs),
        hyper=step.hyper,
        history=[*state.history, *step.history],
        seed=step.seed,
        columns=columns.after(shard),
    )


def is_solved_at_once(model: AbstractModel, solver: Solver | None, expectation: Expectation | None) -> bool:
    """Whether one site's problem needs no rounds: its messages are destinations, and not noisy."""
    if solver is not None or not isinstance(model, AbstractModel):
        return False
    chosen = choose(model, prior_of(model, model.hyper), expectation)
    return not (chosen.is_direction or chosen.stochastic)


def evidence(
    model: AbstractModel,
    shards: Sequence[Any],
    posterior: Family,
    *,
    expectation: Expectation | None = None,
    hyper: Hyper | None = None,
    seed: int = 0,
) -> float:
    """The global free energy of any posterior: a lower bound of log p(y), and equal to it where q is exact."""
    check_sites(model, shards)
    model, shards = model.opened(shards)
    hyper = dict(model.hyper) if hyper is None else hyper
    prior = prior_of(model, hyper)
    check_like(prior, posterior=posterior)
    checked = check_shards(model, shards)
    chosen = choose(model, prior, expectation)
    worker = Worker(Job(model, FixedPoint(), chosen, check_seed(seed), False, True), dict(enumerate(checked)))
    said = worker.evaluate(posterior, hyper)
    check_log_probs(said)
    return math.fsum(said.values()) - divergence(posterior, prior)


def choose_rest(
    expectation: Expectation, solver: Solver | None, damping: Any, once: bool = False
) -> tuple[Solver, Damping]:
    """The solver and the damping that were asked for; where that is left open, those that fit the expectation.

    Messages that are directions, not destinations, come one per round, and are for an optimiser at the server. Where
    sites are asked only `once`, they solve their problems.
    """
    if solver is None and once:
        solver = DESCENDS if expectation.is_direction else SOLVES
    elif solver is None:
        solver = FixedPoint(step_size=1.0) if expectation.is_direction else FixedPoint()
    one_message = expectation.is_direction and isinstance(solver, FixedPoint) and solver.steps == 1
    return solver, Optimiser() if damping == "auto" and one_message else as_damping(damping)


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


def check_sites(model: AbstractModel, shards: Sequence[Any]) -> None:
    """That there is a model, and a list of sites."""
    if not isinstance(model, AbstractModel):
        raise InputError(f"model: expected a model, got {type(model).__name__}")
    if not isinstance(shards, Sequence) or isinstance(shards, str | bytes):
        raise InputError(f"shards: expected a list with one entry per site, got {type(shards).__name__}")
    if not shards:
        raise InputError("shards: expected at least one site")


def check_shards(model: AbstractModel, shards: Sequence[Any]) -> list[Shard]:
    """Every site's data, checked before any work begins."""
    check_sites(model, shards)
    return all_loaded(model, shards)


def check_log_probs(said: Mapping[int, float]) -> None:
    """What sites say of the posterior in the end: without a finite number, nothing was learnt from a site."""
    for site, value in said.items():
        if not math.isfinite(value):
            raise NotFinite(
                site,
                f"its log likelihood is {value} under the posterior: scale its data, look for values that cannot be, "
                "or for where log_prob is not finite",
            )


def check_seed(seed: Any) -> int:
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise InputError(f"seed: expected a whole number from 0 to 2**32 - 1, got {seed!r}")
    return int(seed)


@dataclass
class Run:
    """Everything a run is made of, ready to iterate."""

    model: AbstractModel
    shards: Sequence[Any]
    solver: Solver
    schedule: Schedule
    damping: Damping
    engine: Engine
    expectation: Expectation
    hyper: LearnHyper | None
    start: Family | None
    factors: Sequence[Family] | None
    shared: bool
    limits: Limits
    names: SiteNames
    seed: int

    def __post_init__(self) -> None:
        self.start = None if self.start is None else on_host(self.start)
        kind = SharedLedger if self.shared else Ledger
        self.ledger = kind(prior_of(self.model, self.model.hyper), len(self.shards))
        if self.factors is not None:
            # The posterior is not the prior any more: refinements start from it.
            self.ledger.adopt(on_host(self.factors))
            self.start = None
        self.learner = None if self.hyper is None else self.hyper.begin(self.model, len(self.shards))
        # The log-partitions that were computed last, of a posterior and of a prior.
        self._known: dict[str, tuple[Family, float]] = {}
        self._means: tuple[Family, Any] | None = None

    def job(self) -> Job:
        learns = self.learner is not None
        return Job(self.model, self.solver, self.expectation, self.seed, learns, self.schedule.waits, self.names)

    def journal(self, run_dir: str | os.PathLike, resume: bool) -> Journal:
        schedule = {f.name: getattr(self.schedule, f.name) for f in fields(self.schedule) if f.name not in BUDGETS}
        parts = {
            "model": self.model,
            "solver": self.solver,
            "schedule": {"type": type(self.schedule).__name__, **schedule},
            "damping": self.damping,
            "expectation": self.expectation,
            "hyper": self.hyper,
            "start": self.start,
            "factors": self.factors,
            "shared": self.shared,
            "limits": self.limits,
            "seed": self.seed,
            "shards": self.engine.digests(),
        }
        description = {name: describe(part) for name, part in parts.items()}
        write_names(run_dir, self.names.names)
        return Journal(run_dir, description, self.ledger.prior, resume)

    def finish(self, callbacks: Sequence[Callback], journal: Journal | None) -> Result:
        """Run to the end, then ask every site for its share of the evidence at the final posterior."""
        history, settled = [], False
        for event in iterate(self, journal):
            settled = event.settled
            for callback in callbacks:
                event.metrics.update(callback(event) or {})
            row = event.row()
            history.append(row)
            if journal is not None:
                journal.add_row(event.fold, row)
        own = (self.ledger.factors(),) if self.solver.values_factor else ()
        said = self.engine.evaluate(self.ledger.posterior, self.current_hyper, *own)
        said |= dict.fromkeys(self.ledger.retired, 0.0)
        check_log_probs(said)
        if history and history[-1]["problem"] is not None:
            warnings.warn(f"the last round had a problem: {history[-1]['problem']}", RuntimeWarning, stacklevel=3)
        elif self.schedule.settles and not settled:
            warnings.warn(
                "the run has not settled: what sites propose would still move the posterior; give it more rounds, or "
                "a narrower prior, or fewer and larger sites",
                RuntimeWarning,
                stacklevel=3,
            )
        for doubt in self.model.doubts(self.ledger.posterior):
            warnings.warn(doubt, RuntimeWarning, stacklevel=3)
        values = [said.get(site, math.nan) for site in range(self.ledger.sites)]
        evidence = math.fsum(values) - divergence(self.ledger.posterior, self.ledger.prior)
        return Result(
            model=self.model,
            posterior=self.ledger.posterior,
            prior=self.ledger.prior,
            factors=self.ledger.factors(),
            log_evidence=evidence,
            expected_log_probs=tuple(values),
            hyper=self.current_hyper,
            history=history,
            seed=self.seed,
        )

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
        return self.solver.stochastic or self.expectation.stochastic

    @property
    def message_only(self) -> bool:
        """Whether sites are asked for messages, rather than for refined factors."""
        return self.solver.sends_message(self.expectation)

    @property
    def current_hyper(self) -> Hyper:
        return dict(self.model.hyper) if self.learner is None else self.learner.hyper


def iterate(run: Run, journal: Journal | None = None) -> Iterator[Event]:
    """Dispatch, collect, fold, report; until the schedule has no more to ask."""
    learnt = () if run.learner is None else run.learner.names
    with closing(Inbox(run.engine, run.ledger, run.limits, learnt, run.model.hyper, journal, run.names)) as inbox:
        yield from _iterated(run, inbox)


@dataclass
class Books:
    """What a run keeps while it goes on, all of it a function of what came from its sites."""

    board: Board
    tally: Tally
    evidence: Evidence
    trust: Trust
    damping: Tempering

    @classmethod
    def of(cls, run: Run) -> "Books":
        sites = run.ledger.sites
        damping = run.damping.begin(sites, run.schedule.parallel, run.stochastic)
        return cls(Board(sites, run.seed), Tally(), Evidence(sites, run.stochastic), Trust(run.limits), damping)


def _iterated(run: Run, inbox: Inbox) -> Iterator[Event]:
    ledger, schedule, books = run.ledger, run.schedule, Books.of(run)
    board, plan = books.board, schedule.plan(books.board)
    arrived: dict[int, Update] = {}
    planned, held = True, ledger.posterior
    while planned or ledger.outstanding:
        chosen = next(plan, None) if planned else None
        planned = planned and chosen is not None
        if chosen:
            if books.tally.folds % schedule.holds == 0:
                held = ledger.posterior
            inbox.submit(_dispatched(run, books, chosen, held if schedule.holds > 1 else None), books.tally.clock)
        elif not ledger.outstanding and chosen == [] and not board.away:
            raise InputError(f"schedule: {type(schedule).__name__} asks nobody, and nobody is working")
        # Whoever is asked may go away instead of answering; then the schedule is asked again.
        while ledger.outstanding or (chosen == [] and board.nobody):
            ready = len(arrived) == len(ledger.outstanding) if schedule.waits else bool(arrived)
            if ready and arrived:
                break
            arrival = inbox.collect(arrived)
            if isinstance(arrival, Update):
                arrived[arrival.site] = arrival
            else:
                if arrival.ends_task:
                    arrived.pop(arrival.site, None)
                _note(arrival, run, books)
        if not arrived:
            continue
        count = len(arrived) if schedule.waits else 1
        updates = sorted(list(arrived.values())[:count], key=lambda update: update.site)
        for update in updates:
            del arrived[update.site]
        event, verdicts = _fold(run, books, updates)
        for notice in verdicts:
            _note(notice, run, books)
            inbox.decide(notice)
        inbox.settle()
        inbox.witness(event.fold)
        reached("after fold")
        for error in inbox.refused:
            error.call(run.names.of)
        yield replace(event, replayed=inbox.replaying, refused=tuple(map(str, inbox.refused)))
        inbox.refused.clear()
    inbox.check_exhausted()
    if books.tally.folds == 0:
        away = "; ".join(f"{run.names.of(site)}: {reason}" for site, reason in sorted(board.away.items()))
        raise Stalled(f"the run ended without a single update, and the posterior is the prior. {away}".rstrip())


def _dispatched(run: Run, books: Books, sites: list[int], anchor: Family | None) -> list[Task]:
    """Hand out tasks, and remember where they begin."""
    ledger, hyper = run.ledger, run.current_hyper
    start = run.start if ledger.version == 0 else None
    begin = ledger.posterior if start is None else start
    tasks = ledger.dispatch(sites, hyper, start, anchor, run.message_only)
    astray = 0.0 if start is None else divergence(ledger.posterior, start)
    books.tally.sent(tasks)
    books.damping.sent(sites, begin)
    books.evidence.sent(tasks, books.evidence.place(begin, run.mean(begin), hyper, astray))
    books.board.sent(sites)
    return tasks


def _note(notice: Notice, run: Run, books: Books) -> None:
    """A site has gone or come back."""
    site, board = notice.site, books.board
    if notice.ends_task:
        run.ledger.release(site)
        books.tally.in_hand.pop(site, None)
    if notice.kind == "dropped":
        board.dropped(site)
    elif notice.kind == "back":
        board.came_back(site)
    elif notice.kind == "readmitted":
        if site not in run.ledger.retired:
            board.readmitted(site)
            books.trust.forgive(site)
            books.evidence.forgive(site)
    else:
        board.left(site, notice.reason or notice.kind, barred=notice.kind != "away")
        if notice.kind == "retired":
            before = run.ledger.posterior
            run.ledger.retire(site)
            books.evidence.retired(site)
            books.evidence.moved(run.moved(before))
        if notice.kind != "away":
            books.evidence.distrust(site, run.ledger.factor(site))
            if run.learner is not None:
                run.learner.forget(site)


def _fold(run: Run, books: Books, updates: list[Update]) -> tuple[Event, list[Notice]]:
    """Fold updates: what became of them, and who is not to be asked again."""
    ledger, before, damping, evidence = run.ledger, run.ledger.posterior, books.damping, books.evidence
    updates = updates if run.least == 0 else [_heard(update) for update in updates]
    sites = [update.site for update in updates]
    work = books.tally.received(updates, ledger.version)
    staleness = max(one.staleness for one in work)
    start = run.start if updates[0].version == 0 else None
    doubted = _reported(run, evidence, updates)
    complete = evidence.is_complete(books.board.failing)
    # Reports that begin elsewhere are not about the posterior.
    free_energy, error = (None, None) if start is not None else _seen(run, books, complete)
    trusted, tempered, proposed = np.ones(len(sites)), [], []

    def temper(changes: Family, factors: Family) -> Family:
        proposed.append(product(changes))
        asked = damping.temper(Proposal(sites, changes, factors, ledger.prior, before, staleness, start))
        trusted[:] = books.trust.shares(sites, before, asked, run.least)
        tempered.append(scaled(asked, trusted))
        return tempered[0]

    accepted = ledger.fold(
        updates, temper, checked=True, allowed=lambda new: books.trust.allows(before, new), least=run.least
    )
    books.trust.spend(sites, before, scaled(tempered[0], accepted))
    shares = trusted * accepted
    for site in (site for site, share in zip(sites, shares, strict=True) if share < run.least):
        evidence.distrust(site, ledger.factor(site))
    damping.settle(shares)
    if run.learner is not None and complete:
        _step_hyper(run.learner, ledger, lambda new: books.trust.allows(before, new))
    change = run.moved(before)
    evidence.moved(change)
    stuck = _stuck(run.names, updates, damping.share, accepted)
    # A small share of a large change, or one that is taken back, moves little, and yet there is more to come.
    left = divergence(before * proposed[0], before) if run.schedule.settles and not stuck else np.inf
    books.board.returned(sites, ledger.version, change, left)
    named, verdicts = _judged(run, books, dict(zip(sites, trusted, strict=True)), accepted, doubted)
    event = Event(
        fold=books.tally.folds,
        version=ledger.version,
        round=ledger.version / ledger.sites,
        sites=tuple(sites),
        shares=tuple(shares.tolist()),
        wanted=damping.share,
        taken_back=damping.share == 0,
        staleness=staleness,
        free_energy=free_energy,
        free_energy_error=error,
        change=change,
        problems=(*named, *stuck),
        seconds=books.tally.seconds,
        clock=books.tally.clock,
        messages=books.tally.messages,
        bytes_down=books.tally.bytes_down,
        bytes_up=books.tally.bytes_up,
        work=work,
        hyper=run.current_hyper if run.learner is not None else {},
        posterior=ledger.posterior,
        total=run.schedule.total(ledger.sites),
        settled=run.schedule.is_settled(books.board),
    )
    return event, verdicts


def _heard(update: Update) -> Update:
    """An update; without its change, where its site says that it found no number: nothing could be compared with it."""
    if math.isfinite(update.expected_log_prob):
        return update
    return replace(update, change=jax.tree.map(np.zeros_like, update.change))


def _reported(run: Run, evidence: Evidence, updates: list[Update]) -> dict[int, str]:
    """Take in what sites say beside their changes; whose word was not taken, and why."""
    distrusted = {} if run.learner is None else run.learner.add(updates)
    # What cannot be taken is no gradient either.
    nothing = jax.tree.map(np.zeros_like, run.ledger.prior)
    followed = [
        update if run.ledger.takes(update.site, update.change, run.least) else replace(update, change=nothing)
        for update in updates
    ]
    doubted = evidence.report(followed, distrusted)
    if run.learner is not None:
        for site in evidence.not_counted:
            run.learner.forget(site)
    # Where reports are noisy, one that is far off is not counted, but nobody is blamed for it.
    return distrusted if run.stochastic else distrusted | doubted


def _seen(run: Run, books: Books, complete: bool) -> tuple[float | None, float | None]:
    """The free energy of the posterior as it is, and how far off it may be; damping is told, when all have reported."""
    evidence, posterior = books.evidence, run.ledger.posterior
    now = evidence.place(posterior, run.mean(posterior), run.current_hyper)
    divergence = run.divergence
    if complete and evidence.reports:
        gain = 0.0 if run.learner is None else run.learner.gain
        error = math.inf if evidence.shaken else evidence.likely_error(now) + gain
        books.damping.observe(evidence.comparable(now) - divergence, error, evidence.shortfalls)
        evidence.shaken, evidence.shortfalls = False, {}
    if not evidence.has_all(run.ledger.retired):
        return None, None
    return evidence.expected_log_prob(now) - divergence, evidence.error_bound(now)


def _stuck(names: SiteNames, updates: Sequence[Update], wanted: float, accepted: np.ndarray) -> list[str]:
    """What keeps a fold from saying anything of whether there is more to come."""
    outcomes = [(update.site, Outcome(update.outcome)) for update in updates]
    problems = [f"{names.of(site)}: solver {outcome.reason}" for site, outcome in outcomes if not outcome.is_good]
    if wanted > 0 and accepted.max() < STALLED:
        problems.append(
            f"more than {accepted.max():.1g} of what sites propose would not leave the posterior proper: begin nearer "
            "to the answer (start=…), narrow the prior, or scale the data"
        )
    return problems


def _judged(
    run: Run, books: Books, trusted: Mapping[int, float], accepted: np.ndarray, doubted: Mapping[int, str]
) -> tuple[list[str], list[Notice]]:
    """Who is named for what a fold took of its update or made of its reports, and who is not asked again."""
    board, named, verdicts = books.board, [], []
    board.shares.update(zip(trusted, accepted.tolist(), strict=True))
    for site, share in trusted.items():
        reasons = []
        if share < 1:
            reasons.append(f"its update goes too far, {share:.1g} of it was taken")
        alone = board.is_singled_out(site, STRIKE)
        if alone:
            reasons.append(
                "its update would leave a density improper, or bury the others', and nothing of it was taken"
            )
        if site in doubted:
            reasons.append(doubted[site])
        blamed = site == books.damping.blamed and not run.stochastic
        if blamed:
            reasons.append("its updates alone made the free energy fall, and it is held back")
        named += [f"{run.names.of(site)}: {reason}" for reason in reasons]
        held = books.damping.held.get(site, 1.0) < 1
        strikes = board.struck(site, bool(share < STRIKE or alone or blamed or site in doubted), held)
        if site in books.trust.exhausted:
            reasons.append(f"its updates have moved the posterior by all of {run.limits.total:g} nats that they may")
        if strikes >= run.limits.strikes or site in books.trust.exhausted:
            verdicts.append(Notice(site, "quarantined", reasons[-1]))
            named.append(f"{run.names.of(site)}: quarantined: {reasons[-1]}")
    return named, verdicts


def _step_hyper(learner: HyperLearner, ledger: Ledger, allowed: Callable[[Family], bool]) -> None:
    """As much of the step as leaves everything proper and is allowed: whole, half, a quarter, … or none."""
    old, new = learner.hyper, learner.step(ledger.posterior)
    for halvings in range(20):
        learner.hyper = {name: old[name] * (new[name] / old[name]) ** (0.5**halvings) for name in old}
        if ledger.replace_prior(prior_of(learner.model, learner.hyper), allowed):
            return
    learner.hyper = old


@eqx.filter_jit
def _moved(new: Family, old: Family) -> tuple[jax.Array, jax.Array, Any]:
    """E_new[log new / old], up to both scales; A(new); and the mean of new."""
    mean = new.mean()
    return inner(new / old, mean), new.log_partition(), mean
