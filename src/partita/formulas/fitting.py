"""Regressions across silos: a formula, a family, one table per site, and a posterior without pooling."""

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from partita.designs.design import Design
from partita.designs.regressions import rebuild_model
from partita.designs.responses import find_response
from partita.designs.saving import pack_stored
from partita.errors import InputError
from partita.families import Family
from partita.families.gaussian import Gaussian
from partita.fitting import make_run, run_to_end
from partita.formulas.agreement import Agreement, agree
from partita.formulas.comparison import Observed, check_same
from partita.formulas.regression import Regression
from partita.formulas.silos import Silos
from partita.foundation.checks import check_positive, import_extra
from partita.models import AbstractModel, NumPyroModel
from partita.result import Result
from partita.server.schedules import Synchronous
from partita.server.settings import Options, Settings
from partita.shards import rounded
from partita.telemetry import Callback, in_units, notice, with_progress

ROUNDS, SETTLED = 100, 1e-7


def regress(
    formula: str,
    sites: Any,
    settings: Settings | None = None,
    *,
    family: str = "gaussian",
    prior_scale: float = 2.5,
    noise_scale: float = 1.0,
    held_out: float = 0.0,
    weights: str | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    **options: Unpack[Options],
) -> Regression:
    """Fit a regression to tables at several sites, none of which is shown to another.

    Args:
        formula: as formulaic reads it (Wilkinson's notation), with a random intercept as `(1 | group)`.
        sites: by the name of each site, a frame, a CSV or Parquet file, or a function that loads a frame where the site
            is; a list of files; or a pattern, data/*.csv.
        settings: how the run is done, as for `fit`; `Settings()` if not given. Without a schedule there are a hundred
            synchronous rounds, or fewer if they change nothing any more; two where the first is exact (gaussian,
            without groups).
        family: "gaussian", "bernoulli" (logit), "poisson" (log) or "negative binomial" (log).
        prior_scale: standard deviation under the prior of coefficients of columns in units of their deviation; in those
            of the target, for gaussian.
        noise_scale: scale of the noise under the prior, half a Student t with three degrees of freedom, in units of the
            target's deviation; for gaussian.
        held_out: share of every site's rows that is not fitted, to look at calibration.
        weights: a column of whole numbers, how many equal observations each row stands for.
        run_dir: keep every update there, so that the run can be killed and resumed.
        resume: carry on with the run in `run_dir`, if there is one.
        callbacks: called with every event.
        quiet: say nothing on standard error: neither which level of a text target is modelled, nor, after two seconds,
            how far the fit is. What looks wrong in the tables is a warning in any case.
        options: fields of `Settings` that take precedence: solver, schedule, damping, engine, expectation, start,
            custody, limits, seed. The seed is that of what is held out, too.

    A group belongs to one site: the same name at two sites stands for two groups. Tables are read where the sites are.
    Before the fit, sites are asked which levels their columns have, how many rows and groups there are, and for means
    of columns and of squares and products around them; nothing else of their tables is known here.
    """
    for module, package in (("formulaic", "formulaic"), ("polars", "polars"), ("numpyro", "NumPyro")):
        import_extra(module, package, "formulas")
    family = find_response(family).name
    check_positive(prior_scale=prior_scale, noise_scale=noise_scale)
    _check_share(held_out)
    settings = (settings or Settings()).changed(options)
    silos = Silos.of(sites, settings.engine)
    with with_progress(formula, callbacks, quiet) as callbacks, silos.connected() as connection:
        agreement = agree(connection, formula, family, weights, held_out, settings.seed)
        agreement = give_scales(agreement, prior_scale, noise_scale)
        tell_design(agreement.design, quiet)
        result = run_agreed(silos, agreement, settings, run_dir, resume, callbacks)
    return Regression(agreement.reading, result, silos, agreement.counts, agreement.digest, agreement.two_valued)


def _check_share(held_out: float) -> None:
    if not 0 <= held_out < 1:
        raise InputError(f"held_out: expected a share of at least 0 and below 1, got {held_out}")


def give_scales(agreement: Agreement, prior_scale: float, noise_scale: float) -> Agreement:
    """The same under a prior of these scales."""
    design = replace(agreement.design, prior_scale=prior_scale, noise_scale=noise_scale)
    return replace(agreement, reading=replace(agreement.reading, design=design))


def run_agreed(
    silos: Silos,
    agreement: Agreement,
    settings: Settings,
    run_dir: str | os.PathLike[str] | None,
    resume: bool,
    callbacks: Sequence[Callback],
) -> Result:
    """Fit what sites have agreed on."""
    design, reading, model = agreement.design, agreement.reading, rebuild_model(agreement.design)
    if not isinstance(model, NumPyroModel):
        reading = replace(reading, first_groups=())
    elif design.group is not None:
        model = replace(model, group_rows=rounded(agreement.largest_group))
    settings = _choose_rounds(model, settings)
    if settings.start is None:
        settings = replace(settings, start=_start(design, model))
    run = make_run(model, len(silos.sources), settings, silos.engine, silos.names, reading=reading)
    # The log evidence of the data is that of the target's units, shifted by as many rows as there are.
    offset = -sum(one.rows for one in agreement.counts.values()) * math.log(design.target_unit)
    with in_units(callbacks, offset):
        result = run_to_end(run, [*silos.sources.values(), *model.own_shards], run_dir, resume, callbacks)
    return replace(result, design=pack_stored(design, agreement.counts, agreement.digest))


def _choose_rounds(model: AbstractModel, settings: Settings) -> Settings:
    """What was asked for. Where that is left open: rounds until nothing moves.

    Factors that do not depend on each other are the answer after one round, taken whole; the second one tells its free
    energy.
    """
    if settings.schedule is not None:
        return settings
    if settings.damping == "auto" and model.exact:
        return replace(settings, schedule=Synchronous(rounds=2), damping=1.0)
    return replace(settings, schedule=Synchronous(rounds=ROUNDS, settled=SETTLED))


def tell_design(design: Design, quiet: bool) -> None:
    """What people should know before a fit."""
    for words in design.advice:
        warnings.warn(words, stacklevel=3)
    if design.classes is not None:
        first, second = design.classes
        notice(f"target {design.target}: what is modelled is {second!r}, against {first!r}", quiet)


def check_comparable(
    formulas: Sequence[str],
    sites: Any,
    *,
    family: str,
    held_out: float = 0.0,
    weights: str | None = None,
    seed: int = 0,
) -> None:
    """Check that regressions of these formulas will be of the same observations, before the first is fitted."""
    family = find_response(family).name
    observed = []
    with Silos.of(sites, None).connected() as connection:
        for formula in formulas:
            one = agree(connection, formula, family, weights, held_out, seed)
            observed.append(Observed(one.design, one.counts, one.digest))
            check_same(observed[0], observed[-1])


def _start(design: Design, model: AbstractModel) -> Family | None:
    """Where the model starts; for counts with an intercept that gives their mean, because exponentials are steep."""
    if design.mean_count is None or not design.intercept:
        return model.start
    start: Any = model.start
    location = np.array(start.location)
    places = {latent.name: latent.start for latent in getattr(getattr(model, "layout", None), "latents", ())}
    location[places.get("intercept", -1)] = design.response.start_intercept(design.mean_count)
    return Gaussian.from_moments(location, start.covariance)
