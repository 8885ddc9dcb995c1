"""One fold: what becomes of updates on their way through the rules into the ledger, and what is told of it."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from partita.families import Family
from partita.models import prior_of
from partita.server.accounting import SiteWork
from partita.server.divergences import divergence
from partita.server.events import Event
from partita.server.hyper import HyperLearner
from partita.server.ledger import Ledger
from partita.server.rules import FreeEnergy, Proposal, Remark
from partita.server.run import Run
from partita.solvers import Outcome
from partita.wire.messages import Notice
from partita.wire.tasks import Update

# If a smaller share of what sites propose can be taken, the run goes nowhere.
STALLED = 1e-3
# How often a step of hyperparameters is halved before none is made.
HALVINGS = 20


def fold(run: Run, updates: Sequence[Update]) -> tuple[Event, list[Notice]]:
    """Fold updates; gives what became of them, and notices of sites that were struck or are not to be asked again."""
    ledger, before, sites = run.ledger, run.ledger.posterior, [update.site for update in updates]
    updates = updates if run.setup.least == 0 else [_without_failed_change(update) for update in updates]
    work = run.tally.received(updates, ledger.version, run.flights)
    staleness = max(one.staleness for one in work)
    start = run.start if updates[0].version == 0 else None
    doubted = _take_reports(run, updates)
    complete = run.evidence.is_complete(run.board.failing)
    # Reports that begin elsewhere are not about the posterior.
    free_energy = (None, None) if start is not None else _estimate_free_energy(run, complete)
    proposed = ledger.check(updates, values=False)
    begun = {site: run.flights[site].begin.density for site in sites}
    proposal = Proposal(sites, proposed, ledger.factors_of(sites), ledger.prior, before, staleness, start, begun)
    with np.errstate(over="ignore", invalid="ignore"):
        proposal = run.rules.apply(proposal)
    taken = ledger.take(sites, proposal.changes, proposal.common, lambda new: run.rules.allows(before, new))
    shares, remarks = run.rules.settle(np.full(len(sites), taken))
    for site, share in zip(sites, shares, strict=True):
        if share < run.setup.least:
            run.evidence.distrust(site, ledger.factor(site))
    if run.learner is not None and complete:
        _step_hyper(run.learner, ledger, run, before)
    change = run.landmarks.movement(ledger.posterior, before)
    run.evidence.moved(change)
    stuck = _find_obstacles(run, updates, proposal, taken)
    run.board.returned(sites, ledger.version, change, _left_to_move(run, before, proposed, stuck))
    doubts = [Remark(site, words, strike=True) for site, words in doubted.items()]
    named, notices = run.strikes.judge(sites, [*doubts, *remarks], run.rules.held(sites))
    return _make_event(run, proposal, shares, change, (*named, *stuck), free_energy, work), notices


def _make_event(
    run: Run,
    proposal: Proposal,
    shares: np.ndarray,
    change: float,
    problems: tuple[str, ...],
    free_energy: tuple[float | None, float | None],
    work: tuple[SiteWork, ...],
) -> Event:
    ledger, tally, schedule = run.ledger, run.tally, run.settings.schedule
    return Event(
        fold=tally.folds,
        version=ledger.version,
        round=ledger.version / ledger.sites,
        sites=tuple(proposal.sites),
        shares=tuple(shares.tolist()),
        wanted=proposal.wanted,
        taken_back=proposal.wanted == 0,
        staleness=proposal.staleness,
        free_energy=free_energy[0],
        free_energy_error=free_energy[1],
        change=change,
        problems=problems,
        seconds=tally.seconds,
        clock=tally.clock,
        messages=tally.messages,
        bytes_down=tally.bytes_down,
        bytes_up=tally.bytes_up,
        work=work,
        hyper=run.current_hyper if run.learner is not None else {},
        posterior=ledger.posterior,
        total=schedule.total(ledger.sites),
        settled=schedule.is_settled(run.board),
    )


def _without_failed_change(update: Update) -> Update:
    """An update; without its change, if its site found no number, because nothing could be compared with it."""
    return update if math.isfinite(update.expected_log_prob) else replace(update, change=update.change.flat())


def _take_reports(run: Run, updates: Sequence[Update]) -> dict[int, str]:
    """Take in what sites say beside their changes; gives whose word was not taken, and why."""
    distrusted = {} if run.learner is None else run.learner.add(updates)
    # A change that cannot be taken is no gradient either.
    nothing, least = run.ledger.prior.flat(), run.setup.least
    followed = [
        update if run.ledger.takes(update.site, update.change, least) else replace(update, change=nothing)
        for update in updates
    ]
    doubted = run.evidence.report(followed, run.flights, distrusted)
    if run.learner is not None:
        for site in run.evidence.credibility.not_counted:
            run.learner.forget(site)
    # Where reports are noisy, one that is far off is not counted, but nobody is blamed for it.
    return distrusted if run.setup.stochastic else distrusted | doubted


def _estimate_free_energy(run: Run, complete: bool) -> tuple[float | None, float | None]:
    """The free energy of the posterior as it is, and how far off it may be; rules hear of it when all have reported."""
    evidence, posterior = run.evidence, run.ledger.posterior
    now = evidence.place(posterior, run.landmarks.mean(posterior), run.current_hyper)
    gain = run.landmarks.gain(posterior, run.ledger.prior)
    if complete and evidence.reports:
        learnt = 0.0 if run.learner is None else run.learner.gain
        error = math.inf if evidence.shaken else evidence.likely_error(now) + learnt
        run.rules.observe(FreeEnergy(evidence.comparable(now) - gain, error, evidence.shortfalls))
        evidence.shaken, evidence.shortfalls = False, {}
    if not evidence.has_all(run.ledger.retired):
        return None, None
    return evidence.expected_log_prob(now) - gain, evidence.error_bound(now)


def _find_obstacles(run: Run, updates: Sequence[Update], proposal: Proposal, taken: float) -> list[str]:
    """What keeps a fold from saying anything of whether there is more to come."""
    outcomes = [(update.site, Outcome(update.outcome)) for update in updates]
    problems = [f"{run.names.of(site)}: solver {outcome.reason}" for site, outcome in outcomes if not outcome.is_good]
    most = taken if proposal.shares is None else float((proposal.shares * taken).max())
    if proposal.wanted > 0 and most < STALLED:
        problems.append(
            f"more than {most:.1g} of what sites propose would not leave the posterior proper: begin nearer "
            "to the answer (start=…), narrow the prior, or scale the data"
        )
    return problems


def _left_to_move(run: Run, before: Family, proposed: Family, stuck: Sequence[str]) -> float:
    """How far all that was proposed would have moved the posterior, if the schedule wants to know.

    A small share of a large change, or a step that is taken back, moves little, and yet there is more to come.
    """
    if not run.settings.schedule.settles or stuck:
        return math.inf
    return divergence(before * proposed.product_of_rows(), before)


def _step_hyper(learner: HyperLearner, ledger: Ledger, run: Run, before: Family) -> None:
    """Step as far as leaves everything proper and is allowed: a whole step, half of it, a quarter, … or none."""
    old, new = learner.hyper, learner.step(ledger.posterior)
    for halvings in range(HALVINGS):
        learner.hyper = {name: old[name] * (new[name] / old[name]) ** (0.5**halvings) for name in old}
        prior = prior_of(learner.model, learner.hyper)
        if ledger.replace_prior(prior, lambda posterior: run.rules.allows(before, posterior)):
            return
    learner.hyper = old
