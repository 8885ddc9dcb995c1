"""The loop: one for every schedule, engine and solver, as a generator of events."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import jax
import numpy as np

from partita.errors import InputError, Stalled
from partita.families import Family
from partita.families.stacks import product, scaled
from partita.models import prior_of
from partita.server.accounting import Evidence, Tally
from partita.server.damping import Proposal, Tempering
from partita.server.events import Event
from partita.server.hyper import HyperLearner
from partita.server.inbox import Inbox
from partita.server.ledger import Ledger
from partita.server.limits import STRIKE, Trust, divergence
from partita.server.run import Run
from partita.server.schedules import Board
from partita.server.storage import Journal, reached
from partita.solvers import Outcome
from partita.wire.messages import Notice
from partita.wire.naming import SiteNames
from partita.wire.tasks import Task, Update

# Of what sites propose: if less can be taken, the run goes nowhere.
STALLED = 1e-3


def iterate(run: Run, journal: Journal | None = None) -> Iterator[Event]:
    """Dispatch, collect, fold, report; until the schedule has no more to ask."""
    learnt = () if run.learner is None else run.learner.names
    with closing(
        Inbox(run.engine, run.ledger, run.settings.limits, learnt, run.model.hyper, journal, run.names)
    ) as inbox:
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
        damping = run.settings.damping.begin(sites, run.settings.schedule.parallel, run.stochastic)
        return cls(
            Board(sites, run.settings.seed),
            Tally(),
            Evidence(sites, run.stochastic),
            Trust(run.settings.limits),
            damping,
        )


def _iterated(run: Run, inbox: Inbox) -> Iterator[Event]:
    ledger, schedule, books = run.ledger, run.settings.schedule, Books.of(run)
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
    left = divergence(before * proposed[0], before) if run.settings.schedule.settles and not stuck else np.inf
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
        total=run.settings.schedule.total(ledger.sites),
        settled=run.settings.schedule.is_settled(books.board),
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
    board, limits, named, verdicts = books.board, run.settings.limits, [], []
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
            reasons.append(f"its updates have moved the posterior by all of {limits.total:g} nats that they may")
        if strikes >= limits.strikes or site in books.trust.exhausted:
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
