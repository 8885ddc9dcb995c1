"""The loop: one for every schedule, engine and solver, as a generator of events."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

from partita.errors import InputError, Stalled
from partita.families import Family
from partita.server.divergences import divergence
from partita.server.events import Event
from partita.server.folding import fold
from partita.server.inbox import Inbox
from partita.server.run import Run
from partita.server.storage import Journal
from partita.wire.messages import Notice
from partita.wire.tasks import Task, Update


def iterate(run: Run, journal: Journal | None = None) -> Iterator[Event]:
    """Algorithm 1 of the paper: ask sites, wait for their updates, fold them; until the schedule has no more to ask."""
    with closing(Inbox(run.engine, run.ledger, run.rules, journal, run.names)) as inbox:
        plan: Iterator[list[int]] | None = run.settings.schedule.plan(run.board)
        while plan is not None or run.flights:
            sites = None if plan is None else next(plan, None)
            plan = None if sites is None else plan
            if sites:
                inbox.submit(dispatch(run, sites), run.tally.clock)
            updates = _wait(run, inbox, idle=sites == [])
            if not updates:
                continue
            event, notices = fold(run, updates)
            for notice in notices:
                note(run, notice)
            inbox.decide(notices)
            inbox.witness(event.fold, event.posterior)
            yield replace(event, replayed=inbox.replaying, refused=inbox.take_refused())
        inbox.check_exhausted()
    if run.tally.folds == 0:
        away = "; ".join(f"{run.names.of(site)}: {reason}" for site, reason in sorted(run.board.away.items()))
        raise Stalled(f"the run ended without a single update, and the posterior is the prior. {away}".rstrip())


def dispatch(run: Run, sites: list[int]) -> list[Task]:
    """Hand out tasks, and remember where they begin."""
    ledger, hyper, schedule = run.ledger, run.current_hyper, run.settings.schedule
    if run.tally.folds % schedule.holds == 0:
        run.anchor = ledger.posterior
    start = run.start if ledger.version == 0 else None
    begin = ledger.posterior if start is None else start
    anchor: Family | None = run.anchor if schedule.holds > 1 else None
    tasks = ledger.dispatch(sites, hyper, start, anchor, run.message_only)
    astray = 0.0 if start is None else divergence(ledger.posterior, start)
    place = run.evidence.place(begin, run.landmarks.mean(begin), hyper, astray)
    for site in sites:
        run.flights[site].place = place
    run.tally.sent(tasks)
    run.board.sent(sites)
    return tasks


def _wait(run: Run, inbox: Inbox, idle: bool) -> list[Update]:
    """Wait until there is something to fold; `idle` means that the schedule asks nobody now.

    Nothing is given where sites went away instead of answering; then the schedule is asked again.
    """
    flights, schedule = run.flights, run.settings.schedule
    if idle and not flights and not run.board.away:
        raise InputError(f"schedule: {type(schedule).__name__} asks nobody, and nobody is working")
    while flights or (idle and run.board.nobody):
        ready = flights.all_arrived if schedule.waits else flights.any_arrived
        if ready and flights.any_arrived:
            break
        arrival = inbox.collect()
        if isinstance(arrival, Update):
            flights.arrive(arrival)
        else:
            note(run, arrival)
    return flights.next_arrived(None if schedule.waits else 1)


def note(run: Run, notice: Notice) -> None:
    """Take in what a run is told of a site, or has decided itself: it has gone, come back, or is not to be asked."""
    site, board = notice.site, run.board
    had_task = notice.ends_task and run.flights.cancel(site)
    if notice.kind == "struck":
        return
    if notice.kind == "dropped":
        if had_task:
            board.dropped(site)
    elif notice.kind == "back":
        board.came_back(site)
    elif notice.kind == "readmitted":
        if site not in run.ledger.retired:
            run.readmit(site)
    else:
        board.left(site, notice.reason or notice.kind, barred=notice.kind != "away")
        if notice.kind == "retired":
            run.retire(site)
        if notice.kind != "away":
            run.evidence.distrust(site, run.ledger.factor(site))
            if run.learner is not None:
                run.learner.forget(site)
