"""Regressions across silos: a formula, a family, one table per site, and a posterior without pooling."""

import hashlib
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from partita.errors import InputError
from partita.families import Family, Gaussian
from partita.families.weights_and_noise import DEGREES
from partita.fitting import fit
from partita.formulas.comparison import Observed, check_same
from partita.formulas.design import FAMILIES as FAMILIES
from partita.formulas.design import Design, Rows, as_family, designed
from partita.formulas.regression import Regression, site_random
from partita.formulas.saving import pack_design
from partita.formulas.tables import read_sites, repeat_rows
from partita.foundation.checks import check_positive, import_extra
from partita.models import (
    AbstractModel,
    LinearRegression,
    LogisticRegression,
    NumPyroModel,
    PoissonRegression,
    from_numpyro,
)
from partita.server.rules import Rule
from partita.server.schedules import Schedule, Synchronous
from partita.telemetry import Callback, in_units, notice, with_progress
from partita.wire.engine import Engine

ROUNDS, SETTLED = 100, 1e-7


def regress(
    formula: str,
    sites: Any,
    *,
    family: str = "gaussian",
    prior_scale: float = 2.5,
    noise_scale: float = 1.0,
    held_out: float = 0.0,
    weights: str | None = None,
    schedule: Schedule | None = None,
    damping: float | str | Rule = "auto",
    engine: Engine | None = None,
    run_dir: str | os.PathLike | None = None,
    resume: bool = False,
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
) -> Regression:
    """Fit a regression to tables at several sites, none of which is shown to another.

    Args:
        formula: as formulaic reads it (Wilkinson's notation), with a random intercept as `(1 | group)`.
        sites: a frame or a CSV or Parquet file by the name of each site; a list of files; or a pattern, data/*.csv.
        family: "gaussian", "bernoulli" (logit), "poisson" (log) or "negative binomial" (log).
        prior_scale: standard deviation under the prior of coefficients of columns in units of their deviation; in those
            of the target, for gaussian.
        noise_scale: scale of the noise under the prior, half a Student t with three degrees of freedom, in units of the
            target's deviation; for gaussian.
        held_out: share of every site's rows that is not fitted, to look at calibration.
        weights: a column of whole numbers, how many equal observations each row stands for.
        schedule: who works next; by default a hundred synchronous rounds, or fewer if they change nothing any more;
            two where the first is exact (gaussian, without groups).
        damping: the share of a proposed change that is taken.
        engine: what carries tasks to sites.
        run_dir: keep every update there, so that the run can be killed and resumed.
        resume: carry on with the run in `run_dir`, if there is one.
        seed: of what is held out, and of the run.
        callbacks: called with every event.
        quiet: say nothing on standard error: neither which level of a text target is modelled, nor, after two seconds,
            how far the fit is. What looks wrong in the tables is a warning in any case.

    A group belongs to one site: the same name at two sites stands for two groups. Before the fit, sites tell which
    levels their columns have, how many rows and groups there are, and means of columns and of squares and products
    around them.
    """
    for module, package in (("formulaic", "formulaic"), ("polars", "polars"), ("numpyro", "NumPyro")):
        import_extra(module, package, "formulas")
    family = as_family(family)
    check_positive(prior_scale=prior_scale, noise_scale=noise_scale)
    if not 0 <= held_out < 1:
        raise InputError(f"held_out: expected a share of at least 0 and below 1, got {held_out}")
    with with_progress(formula, callbacks, quiet) as callbacks:
        design, fitted, spare = _read(formula, repeat_rows(read_sites(sites), weights), family, held_out, seed)
        design = replace(design, prior_scale=prior_scale, noise_scale=noise_scale)
        _say(design, quiet)
        model = _model(design)
        shards = [_shard(design, model, rows) for rows in fitted.values()]
        if isinstance(model, NumPyroModel):
            model = model.sized(shards[0])
        rounds, share = _choose_rounds(model, schedule, damping)
        names = list(fitted)
        offset = -sum(len(rows.y) for rows in fitted.values()) * math.log(design.target_unit)
        with in_units(callbacks, offset):
            result = fit(
                model,
                shards,
                schedule=rounds,
                damping=share,
                engine=engine,
                start=_start(design, model),
                names=names,
                run_dir=run_dir,
                resume=resume,
                seed=seed,
                callbacks=callbacks,
            )
    counts, digest = {site: rows.counts for site, rows in fitted.items()}, _digest(fitted)
    result = replace(result, design=pack_design(design, counts, digest))
    return Regression(design, result, fitted, spare, digest, counts)


def _choose_rounds(
    model: AbstractModel, schedule: Schedule | None, damping: float | str | Rule
) -> tuple[Schedule, float | str | Rule]:
    """What was asked for. Where that is left open: rounds until nothing moves.

    Factors that do not depend on each other are the answer after one round, taken whole; the second one tells its free
    energy.
    """
    if schedule is None and damping == "auto" and model.exact:
        return Synchronous(rounds=2), 1.0
    return Synchronous(rounds=ROUNDS, settled=SETTLED) if schedule is None else schedule, damping


def _say(design: Design, quiet: bool) -> None:
    """What people should know before a fit."""
    for words in design.advice:
        warnings.warn(words, stacklevel=3)
    if design.classes is not None:
        first, second = design.classes
        notice(f"target {design.target}: what is modelled is {second!r}, against {first!r}", quiet)


def _read(
    formula: str, frames: Mapping[str, Any], family: str, held_out: float, seed: int
) -> tuple[Design, dict[str, Rows], dict[str, Rows]]:
    """How a formula reads tables, what is fitted of them, and what is held out."""
    design, parts = designed(formula, family, frames)
    return design, *_parted(parts, held_out, seed)


def check_comparable(
    formulas: Sequence[str],
    sites: Any,
    *,
    family: str,
    held_out: float = 0.0,
    weights: str | None = None,
    seed: int = 0,
) -> None:
    """That regressions of these formulas will be of the same observations, before the first is fitted."""
    frames, family = repeat_rows(read_sites(sites), weights), as_family(family)
    observed = []
    for formula in formulas:
        design, fitted, _ = _read(formula, frames, family, held_out, seed)
        observed.append(Observed(design, {site: rows.counts for site, rows in fitted.items()}, _digest(fitted)))
        check_same(observed[0], observed[-1])


def _parted(parts: Mapping[str, Rows], share: float, seed: int) -> tuple[dict[str, Rows], dict[str, Rows]]:
    """What is fitted of each site, at least a row, and what is held out: the same rows, whatever the formula is."""
    if share == 0:
        return dict(parts), {}
    fitted: dict[str, Rows] = {}
    spare: dict[str, Rows] = {}
    for site, rows in parts.items():
        out = site_random(seed, site).random(len(rows.y)) < share
        out[0] = False
        for chosen, kept in ((fitted, ~out), (spare, out)):
            group = None if rows.group is None else rows.group[kept]
            chosen[site] = Rows(rows.X[kept], rows.y[kept], group, rows.missing)
    return fitted, {site: rows for site, rows in spare.items() if len(rows.y)}


def _shard(design: Design, model: AbstractModel, rows: Rows) -> Any:
    X, y = design.inputs(rows.X), design.targets(rows.y)
    if isinstance(model, NumPyroModel):
        return X, np.zeros(len(y), np.int32) if rows.group is None else rows.group, y
    return X, y


def _model(design: Design) -> AbstractModel:
    features, grouped = len(design.names), design.group is not None
    scales = {"prior_scale": design.prior_scale}
    plain: dict[str, Any] = {"bernoulli": LogisticRegression, "poisson": PoissonRegression}
    if design.family == "gaussian":
        plain, scales = {"gaussian": LinearRegression}, {**scales, "noise_scale": design.noise_scale}
    if not grouped and design.family in plain and (features or design.intercept):
        return plain[design.family](features=features, intercept=design.intercept, **scales)
    program = _program(design.family, design.intercept, grouped, **scales)
    return from_numpyro(program, ("X", "group", "y"), local={"group": "group"} if grouped else None)


def rebuild_model(design: Design) -> AbstractModel:
    """The model of a regression that comes from a file."""
    model = _model(design)
    if not isinstance(model, NumPyroModel):
        return model
    return model.sized((np.zeros((1, len(design.names))), np.zeros(1, np.int32), np.zeros(1)))


def _start(design: Design, model: AbstractModel) -> Family | None:
    """Where the model starts; for counts with an intercept that gives their mean, because exponentials are steep."""
    start: Any = model.start
    if design.mean_count is None or not design.intercept:
        return start
    location = np.array(start.location)
    places = {latent.name: latent.start for latent in getattr(getattr(model, "layout", None), "latents", ())}
    location[places.get("intercept", -1)] = np.log(max(design.mean_count, 0.1))
    return Gaussian.from_moments(location, start.covariance)


def _program(family: str, intercept: bool, grouped: bool, prior_scale: float, noise_scale: float = 1.0) -> Any:
    """The same regressions as a NumPyro program: with a negative binomial's size, noise, and groups."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def program(X: Any, group: Any, y: Any) -> None:
        f = jnp.zeros(X.shape[0])
        if X.shape[1]:
            weights = numpyro.sample("weights", dist.Normal(0, prior_scale).expand([X.shape[1]]).to_event(1))
            f = X @ weights
        if intercept:
            f = f + numpyro.sample("intercept", dist.Normal(0, 10))
        if grouped:
            spread = numpyro.sample("spread", dist.HalfNormal(1))
            with numpyro.plate("group", 1):
                f = f + numpyro.sample("own", dist.Normal(0, spread))
        if family == "gaussian":
            noise = numpyro.sample("noise", dist.FoldedDistribution(dist.StudentT(DEGREES, 0, noise_scale)))
            numpyro.sample("y", dist.Normal(f, noise), obs=y)
        elif family == "bernoulli":
            numpyro.sample("y", dist.Bernoulli(logits=f), obs=y)
        elif family == "poisson":
            numpyro.sample("y", dist.Poisson(jnp.exp(f)), obs=y)
        else:
            size = numpyro.sample("size", dist.Gamma(2, 0.1))
            numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(f), size), obs=y)

    return program


def _digest(sites: Mapping[str, Rows]) -> str:
    """What was observed, and where, whatever the order of sites."""
    digest = hashlib.sha256()
    for name, rows in sorted(sites.items()):
        digest.update(f"{name}:{len(rows.y)}:".encode())
        digest.update(np.ascontiguousarray(rows.y, "<f8").tobytes())
    return digest.hexdigest()
