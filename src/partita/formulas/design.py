"""What sites agree on before a regression: columns, levels, units, and how a formula reads their tables."""

import difflib
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from partita.errors import InputError, reason
from partita.formulas.advice import alike, unlikely_levels, warnings_of
from partita.formulas.language import Parsed, parse
from partita.formulas.tables import Column, agreed, as_text, complete, conformed, described, example, labelled
from partita.foundation.moments import Moments
from partita.site.collinearity import describe_idle, find_idle

FAMILIES = ("gaussian", "bernoulli", "poisson", "negative binomial")
COUNTS = ("poisson", "negative binomial")
# What else they are called, in small letters and with blanks.
ALSO_CALLED = {
    "normal": "gaussian",
    "binomial": "bernoulli",
    "binary": "bernoulli",
    "logistic": "bernoulli",
    "logit": "bernoulli",
    "negativebinomial": "negative binomial",
    "negbinomial": "negative binomial",
    "neg binomial": "negative binomial",
    "negbin": "negative binomial",
}
# A dense posterior cannot have more; and how many rows are evaluated once more, without the others.
MOST_COLUMNS, ROWS_ALONE = 10_000, 20
# The largest number of a column whose squares, summed, still have some digits.
SMALLEST = 1e-145


@dataclass(frozen=True)
class Design:
    """What all sites agree on before they fit: columns, their levels and units, and how the formula reads them.

    Sites have told which levels their columns have, how many rows and groups there are, and means of columns and of
    squares and products around them.
    """

    formula: str
    family: str
    group: str | None
    columns: Mapping[str, Column]
    spec: Any = field(repr=False)
    parsed: Parsed = field(repr=False)
    names: tuple[str, ...]
    intercept: bool
    # Of the columns, and of the target.
    centre: np.ndarray = field(repr=False)
    unit: np.ndarray = field(repr=False)
    target_centre: float = 0.0
    target_unit: float = 1.0
    # Of counts.
    mean_count: float | None = None
    # Of coefficients in these units, under the prior.
    prior_scale: float = 2.5
    noise_scale: float = 1.0
    # What looks wrong in the tables, in words.
    advice: tuple[str, ...] = field(default=(), repr=False)

    def inputs(self, X: np.ndarray) -> np.ndarray:
        return (X - self.centre) / self.unit

    def targets(self, y: np.ndarray) -> np.ndarray:
        return (y - self.target_centre) / self.target_unit

    @property
    def target(self) -> str:
        return target_name(self.parsed)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The two levels of a target that is text, of which the second is what is predicted."""
        return target_levels(self.parsed, self.columns)


@dataclass(frozen=True)
class Counts:
    """How much data one site has: all that is kept of them in a file."""

    rows: int
    groups: int | None
    missing: int


@dataclass(frozen=True)
class Rows:
    """One site's rows as a formula reads them; `group` counts the groups of all sites."""

    X: np.ndarray
    y: np.ndarray
    group: np.ndarray | None
    missing: int

    @property
    def counts(self) -> Counts:
        return Counts(len(self.y), None if self.group is None else len(np.unique(self.group)), self.missing)


def as_family(family: Any) -> str:
    """One of FAMILIES, by its name or another one that can only mean it."""
    words = re.sub(r"[\s_-]+", " ", family).strip().lower() if isinstance(family, str) else ""
    known = ALSO_CALLED.get(words, words)
    if known in FAMILIES:
        return known
    asked = words or type(family).__name__.lower()
    close = difflib.get_close_matches(asked, [*FAMILIES, *ALSO_CALLED], n=1)
    meant = f"; did you mean {ALSO_CALLED.get(close[0], close[0])!r}?" if close else ""
    raise InputError(f"family: expected one of {', '.join(FAMILIES)}, got {family!r}{meant}")


def target_levels(parsed: Parsed, columns: Mapping[str, Column]) -> tuple[str, ...] | None:
    """Of a target that is a column of text."""
    name = target_name(parsed)
    return columns[name].levels if name in columns else None


def target_name(parsed: Parsed) -> str:
    return str(parsed.left).strip().strip("`")


def designed(formula: str, family: str, frames: Mapping[str, Any]) -> tuple[Design, dict[str, Rows]]:
    """What sites agree on, and their rows read that way."""
    parsed = parse(formula)
    told = {site: described(f"site {site}", frame, parsed.names, parsed.categorical) for site, frame in frames.items()}
    columns = agreed(told)
    advice = _advise(parsed, columns, sum(map(len, frames.values())))
    spec = specified(parsed, columns)
    reader = _Reader(columns, spec, parsed, family)
    parts = {site: reader.rows(site, frame) for site, frame in frames.items()}
    _number_groups(parts)
    found = [name for name in spec.column_names if name != "Intercept"]
    intercept = "Intercept" in spec.column_names
    _check_squares(found, [rows.X for rows in parts.values()])
    _check_squares([target_name(parsed)], [rows.y[:, None] for rows in parts.values()])
    mean, deviation = _moments([rows.X for rows in parts.values()])
    target_mean, target_deviation = _moments([rows.y[:, None] for rows in parts.values()])
    if not intercept:
        # Lines go through zero: sizes are distances from there.
        deviation, target_deviation = np.hypot(mean, deviation), np.hypot(target_mean, target_deviation)
    is_gaussian = family == "gaussian"
    advice += _advise_on_groups(parsed.group, frames)
    advice += describe_idle(find_idle([rows.X for rows in parts.values()], intercept), found)
    advice += _advise_on_rows(family, len(found) + intercept, parts, is_explained=bool(advice))
    design = Design(
        formula,
        family,
        parsed.group,
        columns,
        spec,
        parsed,
        tuple(found),
        intercept,
        centre=mean if intercept else np.zeros_like(mean),
        unit=_unit(mean, deviation),
        target_centre=float(target_mean[0]) if is_gaussian and intercept else 0.0,
        target_unit=float(_unit(target_mean, target_deviation)[0]) if is_gaussian else 1.0,
        mean_count=float(target_mean[0]) if family in COUNTS else None,
        advice=tuple(advice),
    )
    return design, parts


def _advise(parsed: Parsed, columns: Mapping[str, Column], rows: int) -> list[str]:
    """What looks wrong; refused, if nobody has said that a column's values are levels."""
    expanded = {name for names in parsed.expanded for name in names}
    for name in sorted(expanded - set(parsed.categorical)):
        if why := unlikely_levels(name, columns[name].levels or (), rows):
            raise InputError(f"formula: {why}; if each level is to have a coefficient, say C({name})")
    levels = {name: column.levels for name, column in columns.items() if column.levels is not None}
    return warnings_of(levels, expanded, rows)


def _advise_on_groups(group: str | None, frames: Mapping[str, Any]) -> list[str]:
    """A site's groups are not named: they may be people."""
    if group is None:
        return []
    numbers = {site: len(alike(set(as_text(frame[group].dropna())))) for site, frame in frames.items()}
    return [
        f"site {site}: {number} groups of {group!r} have names that differ by case or blanks only: make them alike"
        for site, number in numbers.items()
        if number
    ]


def _advise_on_rows(family: str, coefficients: int, parts: Mapping[str, Rows], is_explained: bool) -> list[str]:
    """Where rows are too few or too much alike, so that the prior tells what data leave open."""
    rows = sum(len(part.y) for part in parts.values())
    groups = sum(part.counts.groups or 0 for part in parts.values())
    found = []
    if coefficients > rows and not is_explained:
        found.append(
            f"there are {coefficients} coefficients for {rows} rows: what data leave open, the prior tells; use fewer "
            "columns"
        )
    if find_idle([part.y[:, None] for part in parts.values()]).flat:
        found.append("the target is the same in all rows: there is nothing to explain")
    if groups == 1:
        found.append("there is one group only: its intercept is not told from the formula's; leave (1 | group) out")
    elif groups == rows and family in ("gaussian", "bernoulli"):
        found.append("every row is a group of its own: its intercept is not told from noise; leave (1 | group) out")
    return found


def specified(parsed: Parsed, columns: Mapping[str, Column]) -> Any:
    """How formulaic turns rows into columns of numbers: from levels alone."""
    from formulaic.errors import DataMismatchWarning, FormulaicError

    sizes = [math.prod(len(columns[name].levels or "1") for name in names) for names in parsed.expanded]
    if sum(sizes) > MOST_COLUMNS:
        raise InputError(f"formula: has up to {sum(sizes)} coefficients, more than {MOST_COLUMNS}: use fewer levels")
    try:
        with warnings.catch_warnings():
            # C(arm, levels=[...]) without some level would make rows of no numbers.
            warnings.simplefilter("error", DataMismatchWarning)
            return parsed.right.get_model_matrix(example(columns), na_action="ignore").model_spec
    except DataMismatchWarning:
        raise InputError("formula: levels=[...] of C() leaves out levels that sites have: name all of them") from None
    except (FormulaicError, NameError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"formula: cannot be evaluated: {reason(error)}") from None


def evaluate(place: str, spec: Any, kept: Any) -> np.ndarray:
    """Rows as a formula reads them, without the intercept.

    Every row's values are from that row alone, or sites would read the formula in different ways: `language` sees to
    it, and here some rows are evaluated by themselves.
    """
    X = _matrix(place, spec, kept)
    some = np.unique(np.linspace(0, len(kept) - 1, ROWS_ALONE).astype(int))[::-1]
    if not np.allclose(_matrix(place, spec, kept.iloc[some]), X[some], rtol=1e-9, equal_nan=True):
        raise InputError(f"{place}: the formula gives a row other values if it is alone: sites would not agree on it")
    check_size(place, "formula", X)
    return X


def _matrix(place: str, spec: Any, kept: Any) -> np.ndarray:
    from formulaic.errors import FormulaicError

    try:
        # What is not a number is told of by those who ask.
        with np.errstate(all="ignore"):
            found = spec.get_model_matrix(kept, na_action="ignore")
        return np.asarray(found, float)[:, [i for i, name in enumerate(found.columns) if name != "Intercept"]]
    except (FormulaicError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{place}: the formula cannot be evaluated: {reason(error)}") from None


def check_size(place: str, what: str, array: np.ndarray) -> None:
    """That squares can be summed."""
    if not np.all(np.abs(array) < np.sqrt(np.finfo(float).max)):
        raise InputError(
            f"{place}: the {what} gives numbers that are not finite, or too large: look for cells that cannot be, "
            "log(0) or 1/0"
        )


def _check_squares(names: Sequence[str], arrays: Sequence[np.ndarray]) -> None:
    """That squares do not vanish, or columns would be taken for ones that do not vary."""
    size = np.max([np.abs(rows).max(axis=0) for rows in arrays], axis=0)
    for name in np.asarray(names, dtype=object)[(size > 0) & (size < SMALLEST)]:
        raise InputError(f"column {name!r}: has numbers so small that their squares are zero: give it another unit")


@dataclass(frozen=True)
class _Reader:
    """Turns a site's table into rows, at that site."""

    columns: Mapping[str, Column]
    spec: Any
    parsed: Parsed
    family: str

    @property
    def group(self) -> str | None:
        return self.parsed.group

    def rows(self, site: str, frame: Any) -> Rows:
        if self.group is not None and self.group not in frame.columns:
            raise InputError(f"site {site}: has no column {self.group!r}, which names groups")
        present = complete(site, frame, [*self.columns, *([] if self.group is None else [self.group])])
        kept = conformed(present, self.columns)
        X, y = evaluate(f"site {site}", self.spec, kept), self._target(site, kept)
        check_size(f"site {site}", "target", y)
        group = None if self.group is None else labelled(present[self.group])
        return Rows(X, y, group, len(frame) - len(kept))

    def _target(self, site: str, kept: Any) -> np.ndarray:
        name = target_name(self.parsed)
        levels = target_levels(self.parsed, self.columns)
        if levels is not None:
            if self.family != "bernoulli" or len(levels) != 2:
                raise self._unfit_levels(name, levels)
            return (kept[name] == levels[1]).to_numpy().astype(float)
        y = _matrix(f"site {site}: target {name!r}", self.parsed.left, kept)
        if y.shape[1] != 1:
            raise InputError(f"target {name!r}: expected one column, got {y.shape[1]}")
        y = y[:, 0]
        if self.family == "bernoulli" and not np.all(np.isin(y, (0, 1))):
            raise InputError(f"site {site}: target {name!r} has to be 0 or 1 for bernoulli")
        if self.family in COUNTS and (np.any(y < 0) or np.any(y != np.floor(y))):
            raise InputError(f"site {site}: target {name!r} has to be a count for {self.family}")
        return y

    def _unfit_levels(self, name: str, levels: Sequence[str]) -> InputError:
        wanted = "two of them, or 0 and 1" if self.family == "bernoulli" else "numbers"
        same = [", ".join(map(repr, one)) for one in alike(levels)]
        hint = f": {'; '.join(same)} differ by case or blanks only, make them alike" if same else ""
        shown = ", ".join(map(repr, levels[:5]))
        return InputError(f"target {name!r}: is text with the levels {shown}; {self.family} needs {wanted}{hint}")


def _number_groups(parts: dict[str, Rows]) -> None:
    """Groups of all sites, counted through."""
    before = 0
    for site, rows in parts.items():
        if rows.group is not None:
            parts[site] = Rows(rows.X, rows.y, before + rows.group, rows.missing)
            before += int(rows.group.max()) + 1


def _moments(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of columns, from every site's number of rows, means, and squares around them."""
    told = reduce(lambda so_far, rows: so_far.with_rows(rows), arrays, Moments())
    return np.asarray(told.mean), told.deviation


def _unit(mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """The deviation; of columns that do not vary, their size, or one."""
    size = np.where(mean != 0, np.abs(mean), 1.0)
    return np.where(deviation > 1e-12 * np.abs(mean), deviation, size)
