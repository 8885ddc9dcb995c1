"""The loop: one for every schedule, engine and solver, as a generator of events."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

from partita.errors import InputError, Stalled
from partita.foundation.memory import keep_freed_memory
from partita.foundation.threads import one_blas_thread
from partita.server.events import Event
from partita.server.folding import fold
from partita.server.inbox import Inbox
from partita.server.run import Run
from partita.server.storage import Journal
from partita.wire.messages import Notice
from partita.wire.tasks import Task, Update


def iterate(run: Run, journal: Journal | None = None) -> Iterator[Event]:
    """Algorithm 1 of the paper: ask sites, wait for their updates, fold them; until the schedule has no more to ask."""
    keep_freed_memory()
    with closing(Inbox(run.engine, run.ledger, run.rules, journal, run.names)) as inbox:
        told: set[int] = set()
        plan: Iterator[list[int]] | None = run.settings.schedule.plan(run.board)
        while plan is not None or run.flights:
            sites = None if plan is None else next(plan, None)
            plan = None if sites is None else plan
            if sites:
                inbox.submit(dispatch(run, sites), run.accounts.tally.clock)
            updates = wait(run, inbox, idle=sites == [])
            if not updates:
                continue
            with one_blas_thread():
                event, notices = fold(run, updates, inbox.prepare)
                for notice in notices:
                    note(run, notice)
            new = {run.names.of(site): reason for site, reason in run.quarantined.items() if site not in told}
            told, event = set(run.quarantined), replace(event, quarantined=new)
            event = replace(event, problems=(*event.news, *event.problems))
            refused = inbox.acknowledge(event.fold, notices)
            yield replace(event, replayed=inbox.replaying, refused=refused)
        for notice in inbox.finish():
            note(run, notice)
    if run.accounts.tally.folds == 0:
        away = "; ".join(f"{run.names.of(site)}: {reason}" for site, reason in sorted(run.board.away.items()))
        raise Stalled(f"the run ended without a single update, and the posterior is the prior. {away}".rstrip())


def dispatch(run: Run, sites: list[int]) -> list[Task]:
    """Hand out tasks, and remember where they begin."""
    ledger, schedule, hyper = run.ledger, run.settings.schedule, run.current_hyper
    if run.accounts.tally.folds % schedule.holds == 0:
        run.anchor = ledger.posterior
    start = run.start if ledger.version == 0 else None
    anchor = run.anchor if schedule.holds > 1 else None
    tasks = ledger.dispatch(sites, hyper, start, anchor, run.message_only)
    run.accounts.send(tasks, start, hyper)
    run.board.sent(sites)
    return tasks


def wait(run: Run, inbox: Inbox, idle: bool) -> list[Update]:
    """Wait until there is something to fold: all updates that are outstanding, or any one, as the schedule has it.

    `idle` means that the schedule asks nobody now. Nothing is given where sites went away instead of answering; then
    the schedule is asked again.
    """
    flights, schedule = run.flights, run.settings.schedule
    if idle and not flights and not run.board.away:
        raise InputError(f"schedule: {type(schedule).__name__} asks nobody, and nobody is working")
    arrived: dict[int, Update] = {}
    while flights or (idle and run.board.nobody):
        if arrived and (not schedule.waits or len(arrived) == len(flights)):
            break
        arrival = inbox.collect(arrived)
        if isinstance(arrival, Update):
            arrived[arrival.site] = arrival
        else:
            if arrival.ends_task:
                arrived.pop(arrival.site, None)
            note(run, arrival)
    return [arrived[site] for site in sorted(arrived)]


def note(run: Run, notice: Notice) -> None:
    """Take in what a run is told of a site, or has decided itself: it has gone, come back, or is not to be asked."""
    site, board = notice.site, run.board
    had_task = notice.ends_task and run.flights.pop(site, None) is not None
    match notice.kind:
        case "struck":
            return
        case "dropped":
            if had_task:
                board.dropped(site)
        case "back":
            board.came_back(site)
        case "joined":
            run.join(site, notice.reason)
        case "readmitted":
            if site not in run.ledger.retired:
                run.readmit(site)
        case _:
            board.left(site, notice.reason or notice.kind, barred=notice.kind != "away")
            if notice.kind == "retired":
                run.retire(site)
            if notice.kind != "away":
                run.accounts.bar(site)
                if run.learner is not None:
                    run.learner.forget(site)
