"""Regressions by their log evidence: which of them can be compared, and why others cannot."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from partita.designs.design import Counts, Design
from partita.errors import InputError
from partita.formulas.regression import Regression


class Observed(NamedTuple):
    """What a regression was fitted to, as far as its file says: no data, but a digest of the targets."""

    design: Design
    counts: Mapping[str, Counts]
    digest: str


def check_same(first: Observed, other: Observed) -> None:
    """Check that both are of the same observations; an error gives the reason that is true of these two."""
    one, two = (repr(observed.design.formula) for observed in (first, other))
    if set(first.counts) != set(other.counts):
        problem = f"{two} is of other sites than {one}: {_other_sites(first.counts, other.counts)}"
    elif first.design.response.has_density != other.design.response.has_density:
        problem = (
            f"{two} is {other.design.family}, {one} is {first.design.family}: densities of numbers and probabilities "
            "of counts or classes cannot be compared; give both families of one kind"
        )
    elif first.digest == other.digest:
        return
    elif first.digest.startswith("sites:") != other.digest.startswith("sites:"):
        problem = (
            f"{one} and {two} are of different versions of Partita, which tell observations apart in two ways; fit both"
        )
    elif (of_first := first.design.target) != (of_other := other.design.target):
        same = set(first.design.parsed.targets) == set(other.design.parsed.targets)
        what = "its target in other units" if same else "another target"
        problem = (
            f"{two} has {what} than {one}, {of_other!r} and not {of_first!r}: their log evidence is of different "
            "numbers; write the same left side in both"
        )
    else:
        problem = f"{two} is of other observations than {one}: {_other_rows(first.counts, other.counts)}"
    raise InputError(f"compare: {problem}")


def _other_sites(first: Mapping[str, Counts], other: Mapping[str, Counts]) -> str:
    single = sorted(set(first) ^ set(other))
    shown = ", ".join(single[:5]) + (f" and {len(single) - 5} more" if len(single) > 5 else "")
    return f"only one of them has {shown}; fit both to the same sites"


def _other_rows(first: Mapping[str, Counts], other: Mapping[str, Counts]) -> str:
    """What is different about the rows of the same target at the same sites."""
    for site, one in first.items():
        two = other[site]
        if one.missing != two.missing:
            return (
                f"rows that miss a column are left out, at site {site} {two.missing} and {one.missing} of them; give "
                "both the same rows, without missing cells in any of their columns"
            )
        if one.rows != two.rows:
            return (
                f"site {site} has {two.rows} and {one.rows} rows, and no others were left out for missing cells; give "
                "both the same tables, weights and held_out"
            )
    lossy = [site for site, one in first.items() if one.missing]
    also = f", or other rows of site {lossy[0]} miss a column" if lossy else ""
    return (
        f"there are as many, but other targets or another order of rows{also}; give both the same tables and the same "
        "seed"
    )


def compare(regressions: Sequence[Regression]) -> list[dict[str, Any]]:
    """Formulas by their log evidence, the best first, with what each is worth if all were equally likely before.

    Only regressions of the same observations at the same sites can be compared. The log evidence is a lower bound, so
    differences of less than about one nat say little.
    """
    if not regressions:
        raise InputError("compare: expected at least one regression")
    observed = [Observed(one.design, one.counts, one.digest) for one in regressions]
    for other in observed[1:]:
        check_same(observed[0], other)
    best = max(one.log_evidence for one in regressions)
    weights = np.exp([one.log_evidence - best for one in regressions])
    rows = [
        {
            "formula": one.formula,
            "family": one.design.family,
            "log evidence": one.log_evidence,
            "behind": best - one.log_evidence,
            "weight": float(weight / weights.sum()),
        }
        for one, weight in zip(regressions, weights, strict=True)
    ]
    return sorted(rows, key=lambda row: -row["log evidence"])
