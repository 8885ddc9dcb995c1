"""What sites agree on before a regression: columns, levels, units, and how a formula reads their tables."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from partita.errors import InputError
from partita.formulas.tables import Column, agreed, complete, conformed, described, example, labelled
from partita.moments import Moments

# A column's name, in backticks if it is not a plain one.
NAME = r"(`[^`]+`|[\w.]+)"
RANDOM_INTERCEPT = re.compile(rf"\+?\s*\(\s*1\s*\|\s*{NAME}\s*\)")
COUNTS = ("poisson", "negative binomial")
CATEGORICAL = re.compile(rf"\bC\(\s*{NAME}\s*[,)]")


@dataclass(frozen=True)
class Design:
    """What all sites agree on before they fit: columns, their levels and units, and how the formula reads them.

    Sites have told which levels their columns have, how many rows and groups there are, and means of columns and of
    squares around them.
    """

    formula: str
    family: str
    group: str | None
    columns: Mapping[str, Column]
    spec: Any = field(repr=False)
    response: Any = field(repr=False)
    names: tuple[str, ...]
    intercept: bool
    # Of the columns, and of the target.
    centre: np.ndarray = field(repr=False)
    unit: np.ndarray = field(repr=False)
    target_centre: float = 0.0
    target_unit: float = 1.0
    # Of counts.
    mean_count: float | None = None

    def inputs(self, X: np.ndarray) -> np.ndarray:
        return (X - self.centre) / self.unit

    def targets(self, y: np.ndarray) -> np.ndarray:
        return (y - self.target_centre) / self.target_unit


@dataclass(frozen=True)
class Rows:
    """One site's rows as a formula reads them; `group` counts the groups of all sites."""

    X: np.ndarray
    y: np.ndarray
    group: np.ndarray | None
    missing: int


def designed(formula: str, family: str, frames: Mapping[str, Any]) -> tuple[Design, dict[str, Rows]]:
    """What sites agree on, and their rows read that way."""
    fixed, group = _read_formula(formula)
    from formulaic import Formula
    from formulaic.errors import FormulaicError

    try:
        parsed = Formula(fixed)
        names = sorted(map(str, parsed.required_variables))
        left, right = parsed.lhs, parsed.rhs
    except (FormulaicError, AttributeError, SyntaxError):
        raise InputError(f"formula: expected something like 'y ~ age + C(clinic)', got {formula!r}") from None
    _check_transforms(fixed)
    categorical = _categorical(fixed)
    told = {site: described(site, frame, names, categorical) for site, frame in frames.items()}
    columns = agreed(told)
    try:
        spec = right.get_model_matrix(example(columns), na_action="ignore").model_spec
    except (FormulaicError, NameError, TypeError, ValueError) as error:
        raise InputError(f"formula: {formula!r} cannot be evaluated: {error}") from None
    reader = _Reader(columns, spec, left, family, group)
    parts = {site: reader.rows(site, frame) for site, frame in frames.items()}
    _number_groups(parts)
    found = [name for name in spec.column_names if name != "Intercept"]
    intercept = "Intercept" in spec.column_names
    mean, deviation = _moments([rows.X for rows in parts.values()])
    target_mean, target_deviation = _moments([rows.y[:, None] for rows in parts.values()])
    if not intercept:
        # Lines go through zero: sizes are distances from there.
        deviation, target_deviation = np.hypot(mean, deviation), np.hypot(target_mean, target_deviation)
    is_gaussian = family == "gaussian"
    design = Design(
        formula,
        family,
        group,
        columns,
        spec,
        left,
        tuple(found),
        intercept,
        centre=mean if intercept else np.zeros_like(mean),
        unit=_unit(mean, deviation),
        target_centre=float(target_mean[0]) if is_gaussian and intercept else 0.0,
        target_unit=float(_unit(target_mean, target_deviation)[0]) if is_gaussian else 1.0,
        mean_count=float(target_mean[0]) if family in COUNTS else None,
    )
    return design, parts


def _categorical(formula: str) -> list[str]:
    """The columns whose numbers stand for levels."""
    names = CATEGORICAL.findall(formula)
    if len(names) < len(re.findall(r"\bC\(", formula)):
        raise InputError("formula: C() takes a column, whose levels all sites tell: make what it holds a column first")
    return [name.strip("`") for name in names]


def _check_transforms(formula: str) -> None:
    """Refuse those that take numbers from the data, such as their mean."""
    from formulaic.transforms import TRANSFORMS

    of_data = [
        name for name, one in TRANSFORMS.items() if getattr(one, "__is_stateful_transform__", False) and name != "C"
    ]
    for name in re.findall(r"\b(\w+)\(", formula):
        if name == "offset":
            raise InputError(
                "formula: offsets are not known: an exposure n is a column, log(n), whose coefficient is learnt"
            )
        if name in of_data:
            raise InputError(
                f"formula: {name}() depends on all data, which nobody has: use numbers, such as I((age - 50) / 10)"
            )


def _read_formula(formula: str) -> tuple[str, str | None]:
    """The part that formulaic reads, and the group that has intercepts of its own."""
    if not isinstance(formula, str) or formula.count("~") != 1:
        raise InputError(f"formula: expected something like 'y ~ age + C(clinic)', got {formula!r}")
    groups = RANDOM_INTERCEPT.findall(formula)
    fixed = RANDOM_INTERCEPT.sub("", formula)
    if re.search(r"(?<!\|)\|(?!\|)", fixed) or len(groups) > 1:
        raise InputError(f"formula: of terms with |, only one random intercept (1 | group) is known; got {formula!r}")
    if not fixed.split("~")[1].strip(" +"):
        fixed = fixed.split("~")[0] + "~ 1"
    return fixed, (groups[0].strip("`") if groups else None)


@dataclass(frozen=True)
class _Reader:
    """Turns a site's table into rows, at that site."""

    columns: Mapping[str, Column]
    spec: Any
    left: Any
    family: str
    group: str | None

    def rows(self, site: str, frame: Any) -> Rows:
        if self.group is not None and self.group not in frame.columns:
            raise InputError(f"site {site}: has no column {self.group!r}, which names groups")
        present = complete(site, frame, [*self.columns, *([] if self.group is None else [self.group])])
        kept = conformed(present, self.columns)
        # What is not a number is told below.
        with np.errstate(all="ignore"):
            X = np.asarray(self.spec.get_model_matrix(kept), float)
        inner = [i for i, name in enumerate(self.spec.column_names) if name != "Intercept"]
        y = self._target(site, kept)
        for what, array in (("formula", X), ("target", y)):
            # Their squares are summed.
            if not np.all(np.abs(array) < np.sqrt(np.finfo(float).max)):
                raise InputError(
                    f"site {site}: the {what} gives numbers that are not finite, or too large: look for cells that "
                    "cannot be, log(0) or 1/0"
                )
        group = None if self.group is None else labelled(present[self.group])
        return Rows(X[:, inner], y, group, len(frame) - len(kept))

    def _target(self, site: str, kept: Any) -> np.ndarray:
        name = str(self.left).strip()
        column = self.columns.get(name)
        if column is not None and column.levels is not None:
            if self.family != "bernoulli" or len(column.levels) != 2:
                raise InputError(
                    f"target {name!r}: is text with the levels {', '.join(column.levels[:5])}; {self.family} needs "
                    + ("two of them, or 0 and 1" if self.family == "bernoulli" else "numbers")
                )
            return (kept[name] == column.levels[1]).to_numpy().astype(float)
        y = np.asarray(self.left.get_model_matrix(kept, na_action="ignore"), float)
        if y.ndim != 2 or y.shape[1] != 1:
            raise InputError(f"target {name!r}: expected one column, got {y.shape[1]}")
        y = y[:, 0]
        if self.family == "bernoulli" and not np.all(np.isin(y, (0, 1))):
            raise InputError(f"site {site}: target {name!r} has to be 0 or 1 for bernoulli")
        if self.family in COUNTS and (np.any(y < 0) or np.any(y != np.floor(y))):
            raise InputError(f"site {site}: target {name!r} has to be a count for {self.family}")
        return y


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
