"""One fold: what becomes of updates on their way through the rules into the ledger, and what is told of it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from partita.families import Family
from partita.models import prior_of
from partita.server.accounting import Received
from partita.server.divergences import divergence
from partita.server.events import Event
from partita.server.hyper import HyperLearner
from partita.server.rules import Proposal, Remark
from partita.server.rules.chain import AfterFold
from partita.server.run import Run
from partita.solvers import Outcome
from partita.wire.messages import Notice
from partita.wire.tasks import Update

# If a smaller share of what sites propose can be taken, the run goes nowhere.
STALLED = 1e-3
# So many sites are named in a problem that concerns all of a fold.
MOST_NAMED = 3
# How often a step of hyperparameters is halved before none is made.
HALVINGS = 20


def fold(
    run: Run, updates: Sequence[Update], prepare: Callable[[Family], None] = lambda posterior: None
) -> tuple[Event, list[Notice]]:
    """Fold updates; gives what became of them, and notices of sites that were struck or are not to be asked again.

    `prepare` is called with the new posterior as soon as it is known, before it is accounted for.
    """
    ledger, before, sites = run.ledger, run.ledger.posterior, [update.site for update in updates]
    start = run.start if updates[0].version == 0 else None
    updates = updates if run.setup.least == 0 else [_without_failed_change(update) for update in updates]
    received = _take_reports(run, updates, at_start=start is not None)
    changes, factors = ledger.propose(updates)
    begun = {site: run.flights[site].begin.density for site in sites}
    staleness = max(one.staleness for one in received.work)
    proposed = Proposal(
        sites,
        changes,
        factors,
        ledger.prior,
        before,
        staleness,
        start,
        begun,
        received.values,
        ledger.asked(sites),
        frozenset(received.doubted),
        ledger.factors_of,
    )
    with np.errstate(over="ignore", invalid="ignore"):
        left = run.rules.apply(proposed)
    allowed = partial(run.rules.allows, before)
    taken = ledger.take(sites, left.changes, left.common, allowed, left.rest, left.sharing, left.leaving)
    doubts = [Remark(site, words, strike=True) for site, words in received.doubted.items()]
    after = run.rules.after_fold(taken, doubts)
    for site, share in zip(sites, after.shares, strict=True):
        if share < run.setup.least:
            run.accounts.distrust(site)
    if run.learner is not None and run.learner.is_ready(received.complete):
        _step_hyper(run, run.learner, before)
    prepare(ledger.posterior)
    change = run.accounts.move(before)
    stuck = _find_obstacles(run, updates, left, taken)
    run.board.returned(sites, ledger.version, change, _left_to_move(run, before, changes, stuck))
    after = replace(after, problems=after.problems + stuck)
    return _make_event(run, received, left, change, after), after.notices


def _make_event(run: Run, received: Received, left: Proposal, change: float, after: AfterFold) -> Event:
    ledger, tally = run.ledger, run.accounts.tally
    return Event(
        fold=tally.folds,
        version=ledger.version,
        round=run.accounts.round,
        sites=tuple(left.sites),
        shares=tuple(after.shares.tolist()),
        wanted=left.wanted,
        taken_back=left.wanted == 0,
        staleness=left.staleness,
        free_energy=received.estimate.free_energy,
        free_energy_error=received.estimate.error,
        change=change,
        problems=tuple(after.problems),
        seconds=tally.seconds,
        clock=tally.clock,
        messages=tally.messages,
        bytes_down=tally.bytes_down,
        bytes_up=tally.bytes_up,
        work=received.work,
        hyper=run.current_hyper if run.learner is not None else {},
        posterior=ledger.posterior,
        total=run.total,
        settled=run.settings.schedule.is_settled(run.board),
        proposed=run.board.moved[-1] if math.isfinite(run.board.moved[-1]) else None,
    )


def _without_failed_change(update: Update) -> Update:
    """An update; without its change, if its site found no number, because nothing could be compared with it."""
    return update if math.isfinite(update.expected_log_prob) else replace(update, change=update.change.flat())


def _take_reports(run: Run, updates: Sequence[Update], at_start: bool) -> Received:
    """Take in what sites say beside their changes, and let rules hear of the free energy when all have reported."""
    learner = run.learner
    distrusted = {} if learner is None else learner.add(updates)
    gain = 0.0 if learner is None else learner.gain
    received = run.accounts.receive(updates, run.current_hyper, distrusted, run.board.failing, gain, at_start)
    if learner is not None:
        for site in run.accounts.evidence.credibility.not_counted:
            learner.forget(site)
    if received.estimate.comparable is not None:
        run.rules.observe(received.estimate.comparable)
    # Where reports are noisy, one that is far off is not counted, but nobody is blamed for it.
    doubted = distrusted if run.setup.stochastic else {**distrusted, **received.doubted}
    return replace(received, doubted=doubted)


def _find_obstacles(run: Run, updates: Sequence[Update], proposal: Proposal, taken: float) -> list[str]:
    """What keeps a fold from saying anything of whether there is more to come."""
    outcomes = [(update.site, Outcome(update.outcome)) for update in updates]
    problems = [f"{run.names.of(site)}: solver {outcome.reason}" for site, outcome in outcomes if not outcome.is_good]
    most = taken if proposal.shares is None else float((proposal.shares * taken).max())
    if proposal.wanted > 0 and most < STALLED:
        names = ", ".join(run.names.of(site) for site in proposal.sites[:MOST_NAMED])
        others = len(proposal.sites) - MOST_NAMED
        names += f" and {others} more" if others > 0 else ""
        share = f"only {100 * most:.1g} %" if most > 0 else "nothing"
        problems.append(
            f"{names}: {share} of what was proposed could be taken: the rest would leave the posterior improper. Begin "
            "nearer to the answer (start=…), narrow the prior, or scale the data"
        )
    return problems


def _left_to_move(run: Run, before: Family, proposed: Family, stuck: Sequence[str]) -> float:
    """How far all that was proposed would have moved the posterior, if the schedule wants to know.

    A small share of a large change, or a step that is taken back, moves little, and yet there is more to come.
    """
    if not run.settings.schedule.settles or stuck:
        return math.inf
    return divergence(before * proposed.product_of_rows(), before)


def _step_hyper(run: Run, learner: HyperLearner, before: Family) -> None:
    """Step as far as leaves everything proper and is allowed: a whole step, half of it, a quarter, … or none."""
    old, new = learner.hyper, learner.step(run.ledger.posterior)
    for halvings in range(HALVINGS):
        learner.hyper = {name: old[name] * (new[name] / old[name]) ** (0.5**halvings) for name in old}
        prior = prior_of(learner.model, learner.hyper)
        if run.ledger.replace_prior(prior, partial(run.rules.allows, before)):
            return
    learner.hyper = old
