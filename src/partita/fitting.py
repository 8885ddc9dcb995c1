"""Fits: from a model and the data of sites to a posterior, at once, step by step, or batch after batch."""

import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Unpack

from partita.designs.design import Reading
from partita.engines import InProcess
from partita.errors import InputError, NotFinite, QuarantineWarning
from partita.expectations import Expectation, choose
from partita.families import Family
from partita.foundation.plain import Row
from partita.models import AbstractModel, Hyper, check_like, prior_of
from partita.models.layout import unpack_layout
from partita.models.program_rows import PreparedProgram
from partita.result import Result
from partita.server.events import MOST_TOLD, Event
from partita.server.loop import iterate
from partita.server.rules.limits import divergence
from partita.server.run import Run
from partita.server.schedules import OnePass, Synchronous
from partita.server.settings import Options, Settings, check_kinds
from partita.server.storage import Journal
from partita.site.columns import Columns
from partita.solvers import FixedPoint
from partita.solvers.choice import SOLVES
from partita.telemetry import Callback, check_callbacks, listening, tell
from partita.wire.engine import Engine, ask_all
from partita.wire.naming import SiteNames, choose_names
from partita.wire.questions import ColumnNames, ColumnNamesAnswer, Evaluate, Groups, Layout

# How often a batch of a stream is solved, until nothing moves any more.
SETTLES = Synchronous(rounds=30, settled=1e-9)


def fit(
    model: AbstractModel,
    shards: Sequence[Any],
    settings: Settings | None = None,
    *,
    names: Sequence[str] | None = None,
    factors: Sequence[Family] | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    **options: Unpack[Options],
) -> Result:
    """Approximate one posterior from shards of data, by partitioned variational inference.

    Args:
        model: prior × likelihood.
        shards: one per site, as the model takes them: `(X, y)` or `(X, y, weights)` for regressions; or functions that
            load them, where the site is.
        settings: how the run is done; `Settings()` if not given.
        names: what errors, warnings and the history call sites; by default they are counted from 0.
        factors: one per site to begin with, of an earlier result; flat ones, if not given.
        run_dir: keep every update there, so that the run can be killed and resumed.
        resume: carry on with the run in `run_dir`, if there is one.
        callbacks: called with every event: `[pt.telemetry.Progress()]` shows how far it is.
        options: fields of `Settings` that take precedence: solver, schedule, damping, engine, expectation, hyper,
            start, custody, limits, rules, seed.

    Returns:
        The posterior, the factors, the log evidence and the history.

    >>> import numpy as np, partita as pt
    >>> X = np.ones((4, 1)); y = np.array([1.0, 2.0, 3.0, 2.0])
    >>> model = pt.models.LinearRegression(features=1, noise=1.0, intercept=False)
    >>> result = fit(model, [(X[:2], y[:2]), (X[2:], y[2:])], schedule=pt.schedules.OnePass())
    >>> result.posterior.location.round(6), result.posterior.scale.round(6)
    (array([1.6]), array([0.447214]))
    """
    check_callbacks(callbacks)
    check_kinds(run_dir=(run_dir, str | os.PathLike))
    run, arranged = prepare(model, shards, settings, options, names, factors)
    return run_to_end(run, arranged, run_dir, resume, callbacks)


def events(
    model: AbstractModel,
    shards: Sequence[Any],
    settings: Settings | None = None,
    *,
    names: Sequence[str] | None = None,
    factors: Sequence[Family] | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    **options: Unpack[Options],
) -> Iterator[Event]:
    """The same run as `fit`, one event at a time: to stop, look or predict whenever you like.

    Every event carries the posterior of that moment.
    """
    run, arranged = prepare(model, shards, settings, options, names, factors)
    with _open(run, arranged, run_dir, resume) as journal:
        for event, _ in _record_events(run, journal):
            yield event


def prepare(
    model: AbstractModel,
    shards: Sequence[Any],
    settings: Settings | None = None,
    options: Mapping[str, Any] | None = None,
    names: Sequence[str] | None = None,
    factors: Sequence[Family] | None = None,
) -> tuple[Run, list[Any]]:
    """A run, its engine connected, and the shards of its sites: those that were given, and those of the model's own.

    Whatever has to be known of data is asked of the sites.
    """
    settings = (settings or Settings()).changed(options or {})
    check_sites(model, shards)
    site_names = choose_names(names, shards)
    engine = InProcess() if settings.engine is None else settings.engine
    engine.connect(shards, site_names, model)
    try:
        with site_names.told():
            columns = _agree_on_order(ask_all(engine, ColumnNames(), len(shards), site_names))
            model = size_model(engine, model, len(shards), site_names)
        run = make_run(model, len(shards), settings, engine, site_names, factors, columns=columns)
        return run, [*shards, *model.own_shards]
    except BaseException:
        engine.close()
        raise


def make_run(
    model: AbstractModel,
    sites: int,
    settings: Settings,
    engine: Engine,
    names: SiteNames,
    factors: Sequence[Family] | None = None,
    reading: Reading | None = None,
    columns: tuple[str, ...] | None = None,
) -> Run:
    """A run of a model that knows what it is made of, on so many sites with data."""
    if factors is not None and settings.custody == "shared":
        raise InputError("factors: with custody='shared' there is one for all sites; leave them out")
    prior = prior_of(model, model.hyper)
    own = None if factors is None else [check_like(prior, proper=False, factors=factor) for factor in factors]
    count = sites + len(model.own_shards)
    return Run(model, count, settings.choose(model), engine, names, own, reading, columns)


def _agree_on_order(answers: Sequence[ColumnNamesAnswer]) -> tuple[str, ...] | None:
    """The order of columns for all sites: that of the first whose columns have names."""
    return next((answer.names for answer in answers if answer.names is not None), None)


def size_model(engine: Engine, model: AbstractModel, sites: int, names: SiteNames) -> AbstractModel:
    """A model that has to see rows or groups to know what it is made of, told by those who have them."""
    if model.needs_rows:
        (found,) = ask_all(engine, {0: Layout()}, sites, names)
        model = model.with_layout(
            PreparedProgram(unpack_layout(found.layout), found.location, found.scale, found.is_gaussian)
        )
    if model.needs_groups:
        answers = ask_all(engine, Groups(), sites, names)
        model = model.with_groups([(answer.codes, answer.largest) for answer in answers])
    return model


def run_to_end(
    run: Run,
    shards: Sequence[Any],
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    before: Result | None = None,
) -> Result:
    """Run to the end, and close the engine; as one more batch of a stream, if it has a result from `before`."""
    with _open(run, shards, run_dir, resume, callbacks) as journal:
        return replace(finish(run, callbacks, journal, before), columns=Columns(run.columns))


@contextmanager
def _open(
    run: Run,
    shards: Sequence[Any],
    run_dir: str | os.PathLike[str] | None,
    resume: bool,
    callbacks: Sequence[Callback] = (),
) -> Iterator[Journal | None]:
    """Engine, journal and those who listen, from here to the end of a run."""
    with ExitStack() as stack:
        stack.callback(run.engine.close)
        if resume and run_dir is None:
            raise InputError("resume: needs the run_dir of the run")
        stack.enter_context(run.names.told())
        stack.enter_context(listening(callbacks))
        run.engine.open(run.job(), shards)
        yield None if run_dir is None else stack.enter_context(run.journal(run_dir, resume))


def _record_events(
    run: Run, journal: Journal | None, callbacks: Sequence[Callback] = (), before: Result | None = None
) -> Iterator[tuple[Event, Row]]:
    """Events with what callbacks add to them, as rows of history, which are kept where there is a journal."""
    for event in iterate(run, journal):
        if before is not None and before.history:
            event = event.after(before.history[-1], len(before.factors), before.log_evidence)
        row = tell(event, callbacks)
        if journal is not None:
            journal.add_row(event.fold, row)
        yield event, row
    if journal is not None:
        journal.finish(run.accounts.tally.folds)


def finish(run: Run, callbacks: Sequence[Callback], journal: Journal | None, before: Result | None = None) -> Result:
    """Run to the end, then ask every site for its share of the evidence at the final posterior."""
    history, last = [], None
    for event, row in _record_events(run, journal, callbacks, before):
        last = event
        history.append(row)
    log_probs, unusable = run.evaluate()
    # A quarantined site's share of the evidence may be no number; then the evidence is not known.
    unknown = [site for site in run.quarantined if not math.isfinite(log_probs.get(site, math.nan))]
    log_probs |= dict.fromkeys(unknown, math.nan)
    check_log_probs({site: value for site, value in log_probs.items() if site not in unknown})
    _warn(run, last, unknown, [str(error) for site, error in unusable.items() if site not in unknown])
    ledger = run.ledger
    values = [log_probs.get(site, math.nan) for site in range(ledger.sites)]
    return Result(
        model=run.model,
        posterior=ledger.posterior,
        prior=ledger.prior,
        factors=ledger.factors(),
        log_evidence=math.fsum(values) - divergence(ledger.posterior, ledger.prior),
        expected_log_probs=tuple(values),
        hyper=run.current_hyper,
        history=history,
        seed=run.settings.seed,
        quarantined=run.quarantined,
    )


def _warn(run: Run, last: Event | None, unknown: Sequence[int], unusable: Sequence[str]) -> None:
    """Say aloud what about a finished run is in doubt.

    Args:
        run: the run.
        last: its last fold.
        unknown: quarantined sites without a finite share of the evidence.
        unusable: what is wrong with answers of other sites about their shares.
    """
    doubts = list(run.model.doubts(run.ledger.posterior))
    doubts += [f"the log evidence is not known (nan): {problem}" for problem in unusable]
    for site, reason in run.quarantined.items():
        is_unknown = " The log evidence is nan, because this site gives no finite log likelihood of its data."
        warnings.warn(
            f"{run.names.of(site)} was quarantined, and the run went on without it: {reason}; look at its data and its "
            "Partita version. How much of it is in the posterior, `contributions()` says."
            f"{is_unknown if site in unknown else ''}",
            QuarantineWarning,
            stacklevel=5,
        )
    if last is not None and last.other_problems:
        doubts.insert(0, f"the last round had a problem: {'; '.join(last.other_problems[:MOST_TOLD])}")
    elif run.settings.schedule.settles and not (last is not None and last.settled):
        doubts.insert(
            0,
            "the run has not settled: what sites propose would still move the posterior; give it more rounds, or "
            "a narrower prior, or fewer and larger sites",
        )
    for doubt in doubts:
        warnings.warn(doubt, RuntimeWarning, stacklevel=5)


def partial_fit(
    state: AbstractModel | Result,
    shard: Any,
    settings: Settings | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    **options: Unpack[Options],
) -> Result:
    """One more batch of a stream: the posterior so far is its prior, and its data need not be kept.

    Starts from a model and goes on from results. Each batch adds a factor to `prior × ∏ factors`; the log evidence
    is that of the whole stream, log p(y_1) + log p(y_2 | y_1) + …: each term is a lower bound given what is kept of the
    batches before, so that the sum bounds nothing where that is not exact.

    Hyperparameters stay what they are, unless `hyper` says to learn them: from this batch, beginning at those of the
    last one, which keeps its factor. What earlier batches knew of them is `LearnHyper(prior=…)`.

    Callbacks are called with every event of the batch, whose numbers go on from those of the batches before; so do the
    rows of the history, in which the free energy is that of all batches so far, and a batch is a site.

    Columns of frames are put in the order of the first batch's, by their names. A batch whose values are a hundred
    times larger or smaller than all before it is said aloud. With schedule, solver and damping left open, the batch's
    problem is solved at once, unless messages are noisy, or only directions, or hyperparameters are learnt.
    """
    check_callbacks(callbacks)
    model = state.model if isinstance(state, Result) else state
    if isinstance(state, Result) and state.hyper != model.hyper:
        model = model.with_hyper(state.hyper)
    settings = (settings or Settings()).changed(options)
    if is_solved_at_once(model, settings):
        # Where a step overshoots, a solver that begins anew finds the way on.
        once = {"schedule": OnePass()} if model.exact else {"schedule": SETTLES, "solver": SOLVES}
        settings = settings.changed(once)
    columns = state.columns if isinstance(state, Result) else Columns()
    shard = columns.arrange(shard)
    if not isinstance(state, Result):
        return replace(fit(state, [shard], settings, callbacks=callbacks), columns=columns.after(shard))
    run, arranged = prepare(model.with_prior(state.posterior), [shard], settings)
    step = run_to_end(run, arranged, callbacks=callbacks, before=state)
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
        quarantined={**state.quarantined, **{site + len(state.factors): why for site, why in step.quarantined.items()}},
    )


def is_solved_at_once(model: AbstractModel, settings: Settings) -> bool:
    """Whether one site's problem needs no rounds: nobody asks for some, messages are destinations, and not noisy."""
    is_open = settings.schedule is None and settings.solver is None and settings.damping == "auto"
    if not is_open or settings.hyper is not None or not isinstance(model, AbstractModel):
        return False
    chosen = choose(model, prior_of(model, model.hyper), settings.expectation)
    return not (chosen.is_direction or chosen.stochastic)


def evidence(
    model: AbstractModel,
    shards: Sequence[Any],
    posterior: Family,
    *,
    expectation: Expectation | None = None,
    hyper: Hyper | None = None,
    seed: int = 0,
    engine: Engine | None = None,
) -> float:
    """The global free energy of any posterior: a lower bound of log p(y), and equal to it where q is exact."""
    settings = Settings(solver=FixedPoint(), expectation=expectation, seed=seed, engine=engine)
    run, shards = prepare(model, shards, settings)
    with _open(run, shards, run_dir=None, resume=False):
        hyper = dict(run.model.hyper) if hyper is None else hyper
        prior = prior_of(run.model, hyper)
        check_like(prior, posterior=posterior)
        answers = ask_all(run.engine, Evaluate(posterior, hyper), run.sites, run.names)
        log_probs = {site: answer.value for site, answer in enumerate(answers)}
        check_log_probs(log_probs)
    return math.fsum(log_probs.values()) - divergence(posterior, prior)


def check_sites(model: AbstractModel, shards: Sequence[Any]) -> None:
    """That there is a model, and a list of sites."""
    if not isinstance(model, AbstractModel):
        raise InputError(f"model: expected a model, got {type(model).__name__}")
    if not isinstance(shards, Sequence) or isinstance(shards, str | bytes):
        raise InputError(f"shards: expected a list with one entry per site, got {type(shards).__name__}")
    if not shards:
        raise InputError("shards: expected at least one site")


def check_log_probs(log_probs: Mapping[int, float]) -> None:
    """What sites say of the posterior in the end: without a finite number, nothing was learnt from a site."""
    for site, value in log_probs.items():
        if not math.isfinite(value):
            raise NotFinite(
                site,
                f"its log likelihood is {value} under the posterior: scale its data, look for values that cannot be, "
                "or for where log_prob is not finite",
            )
