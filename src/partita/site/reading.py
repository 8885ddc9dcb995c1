"""A site's rows as a formula reads them: evaluated, checked, and parted into what is fitted and what is held out."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.designs.advice import find_alike
from partita.designs.columns import to_text
from partita.designs.design import Design, Reading, random_of_site, target_levels, target_name
from partita.designs.responses import Response
from partita.errors import InputError, reason
from partita.site.tables import conform, describe_columns, keep_complete, number_labels, read_table, repeat_rows

# How many rows are evaluated once more, without the others.
ROWS_ALONE = 20
LEVELS_SHOWN = 8


@dataclass(frozen=True)
class SiteRows:
    """One site's complete rows as a formula reads them, and how many others miss something; groups count from 0."""

    X: np.ndarray
    y: np.ndarray
    group: np.ndarray | None
    missing: int

    @property
    def groups(self) -> int | None:
        """How many groups there are."""
        return None if self.group is None else len(np.unique(self.group))

    @property
    def largest_group(self) -> int:
        """How many rows the largest group has; none, without groups."""
        return 0 if self.group is None else int(np.unique(self.group, return_counts=True)[1].max())

    def part(self, chosen: np.ndarray) -> "SiteRows":
        group = None if self.group is None else self.group[chosen]
        return SiteRows(self.X[chosen], self.y[chosen], group, self.missing)

    def digest(self, name: str, secret: bytes = b"") -> str:
        """What was observed at a site of this name, to tell it from other observations.

        With a secret: whoever knows what may have been observed, as a few zeros and ones, could try all of it.
        """
        digest = hashlib.sha256(secret + f"{name}:{len(self.y)}:".encode())
        digest.update(np.ascontiguousarray(self.y, "<f8").tobytes())
        return digest.hexdigest()


def weigh_table(place: str, table: Any, weights: str | None) -> Any:
    """A site's table, with every row as often as the column of weights says, if there is one."""
    try:
        frame = read_table(table)
    except InputError as error:
        raise InputError(f"{place}: {str(error).removeprefix('sites: ')}") from None
    if not len(frame):
        raise InputError(f"{place}: its table has no rows")
    return frame if weights is None else repeat_rows(place, frame, weights)


def read_rows(place: str, frame: Any, design: Design) -> SiteRows:
    """The complete rows of a site's table."""
    if design.group is not None and design.group not in frame.columns:
        raise InputError(f"{place}: has no column {design.group!r}, which names groups")
    present = keep_complete(place, frame, [*design.columns, *([] if design.group is None else [design.group])])
    kept = conform(present, design.columns)
    X, y = evaluate(place, design.spec, kept), _read_target(place, design, kept)
    _check_size(place, "target", y)
    group = None if design.group is None else number_labels(present[design.group])
    return SiteRows(X, y, group, len(frame) - len(kept))


def part_rows(rows: SiteRows, reading: Reading, name: str) -> tuple[SiteRows, SiteRows]:
    """What is fitted of a site, at least a row, and what is held out: the same rows, whatever the formula is."""
    out = np.zeros(len(rows.y), bool)
    if reading.held_out > 0:
        out = random_of_site(reading.seed, name).random(len(rows.y)) < reading.held_out
        out[0] = False
    return (rows if not out.any() else rows.part(~out)), rows.part(out)


def scale_rows(rows: SiteRows, design: Design, first_group: int | None) -> tuple[np.ndarray, ...]:
    """Rows as a model takes them, in the agreed units: inputs and targets; with groups between, for a program.

    Args:
        rows: what is fitted of a site.
        design: with the agreed units.
        first_group: the number of the site's first group; None, for a model that takes no groups.
    """
    X, y = design.inputs(rows.X), design.targets(rows.y)
    if first_group is None:
        return X, y
    return X, np.zeros(len(y), np.int32) if rows.group is None else first_group + rows.group, y


def count_alike_groups(frame: Any, group: str | None) -> int:
    """How many groups have names that differ by case or blanks only. They are not named: they may be people."""
    if group is None or group not in frame.columns:
        return 0
    return len(find_alike(set(to_text(frame[group].dropna()))))


def evaluate(place: str, spec: Any, kept: Any) -> np.ndarray:
    """Rows as a formula reads them, without the intercept.

    Every row's values are from that row alone, or sites would read the formula in different ways: `language` sees to
    it, and here some rows are evaluated by themselves.
    """
    X = _make_matrix(place, spec, kept)
    some = np.unique(np.linspace(0, len(kept) - 1, ROWS_ALONE).astype(int))[::-1]
    if not np.allclose(_make_matrix(place, spec, kept.iloc[some]), X[some], rtol=1e-9, equal_nan=True):
        raise InputError(f"{place}: the formula gives a row other values if it is alone: sites would not agree on it")
    _check_size(place, "formula", X)
    return X


def _make_matrix(place: str, spec: Any, kept: Any) -> np.ndarray:
    from formulaic.errors import FormulaicError

    try:
        # Whoever asks for the matrix looks for what is not a number, and says so.
        with np.errstate(all="ignore"):
            found = spec.get_model_matrix(kept, na_action="ignore")
        return np.asarray(found, float)[:, [i for i, name in enumerate(found.columns) if name != "Intercept"]]
    except (FormulaicError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{place}: the formula cannot be evaluated: {reason(error)}") from None


def _check_size(place: str, what: str, array: np.ndarray) -> None:
    """Check that squares can be summed."""
    if not np.all(np.abs(array) < np.sqrt(np.finfo(float).max)):
        raise InputError(
            f"{place}: the {what} gives numbers that are not finite, or too large: look for cells that cannot be, "
            "log(0) or 1/0"
        )


def _read_target(place: str, design: Design, kept: Any) -> np.ndarray:
    name, response = target_name(design.parsed), design.response
    levels = target_levels(design.parsed, design.columns)
    if levels is not None:
        if len(levels) != response.classes:
            raise _unfit_levels(name, response, levels)
        return np.asarray((kept[name] == levels[1]).to_numpy(), float)
    matrix = _make_matrix(f"{place}: target {name!r}", design.parsed.left, kept)
    if matrix.shape[1] != 1:
        raise InputError(f"target {name!r}: expected one column, got {matrix.shape[1]}")
    y: np.ndarray = matrix[:, 0]
    if not response.is_possible(y):
        raise InputError(f"{place}: target {name!r} has to be {response.wanted} for {response.name}")
    return y


def _unfit_levels(name: str, response: Response, levels: Sequence[str]) -> InputError:
    same = [", ".join(map(repr, one)) for one in find_alike(levels)]
    hint = f": {'; '.join(same)} differ by case or blanks only, make them alike" if same else ""
    shown = ", ".join(map(repr, levels[:5]))
    return InputError(
        f"target {name!r}: is text with the levels {shown}; {response.name} needs {response.wanted_levels}{hint}"
    )


def read_inputs(design: Design, table: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a table of one's own as the formula reads them, and which rows have all that it needs."""
    frame = read_table(table, "table")
    _check_columns(design, frame)
    names = list(design.parsed.inputs)
    whole = frame[names].notna().all(axis=1).to_numpy()
    if not names or not whole.any():
        return np.empty((int(whole.sum()), len(design.names))), whole
    kept = conform(frame.loc[whole], {name: design.columns[name] for name in names})
    return evaluate("table", design.spec, kept), whole


def _check_columns(design: Design, frame: Any) -> None:
    """Check that columns are of the kind that was agreed on, with no level that no site had."""
    # A column without any value is of no kind.
    present = [
        name for name in design.parsed.inputs if name not in frame.columns or frame[[name]].notna().any(axis=None)
    ]
    categorical = [name for name in present if design.columns[name].levels is not None]
    for name, column in describe_columns("table", frame, present, categorical).items():
        known = design.columns[name]
        if known.levels is None and column.levels is not None:
            raise InputError(f"table: column {name!r} is not numbers, as it was at all sites: make it numbers")
        new = sorted(set(column.levels or ()) - set(known.levels or ()))
        if new and known.levels is not None:
            raise InputError(
                f"table: column {name!r} has {_show(new)}, which no site had: known are {_show(known.levels)}; "
                "leave such rows out"
            )


def _show(levels: Sequence[str]) -> str:
    more = f" and {len(levels) - LEVELS_SHOWN} more" if len(levels) > LEVELS_SHOWN else ""
    return ", ".join(map(repr, levels[:LEVELS_SHOWN])) + more
