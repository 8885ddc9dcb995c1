"""What sites agree on before a regression, from what they answer: columns, levels, units, and what looks wrong."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from partita.designs.advice import doubt_columns, doubt_levels
from partita.designs.collinearity import describe_idle, find_idle, has_flat
from partita.designs.columns import Column, agree_on_columns
from partita.designs.design import Counts, Design, Reading, target_name
from partita.designs.language import Parsed, parse
from partita.errors import InputError
from partita.formulas.silos import Connection
from partita.foundation.moments import Moments, deviation_or_size, join_moments
from partita.wire.questions import Levels, LevelsAnswer, MomentsAnswer, Products, Rows, RowsAnswer
from partita.wire.questions import Moments as AskMoments

# The largest number of a column whose squares, summed, still have some digits.
SMALLEST = 1e-145


@dataclass(frozen=True)
class Agreement:
    """How sites read their tables, and how much each has that way."""

    reading: Reading
    counts: Mapping[str, Counts]
    digest: str
    largest_group: int
    # Whether each column is 0 or 1 in all rows.
    two_valued: tuple[bool, ...]

    @property
    def design(self) -> Design:
        return self.reading.design


def agree(
    connection: Connection, formula: str, family: str, weights: str | None = None, held_out: float = 0.0, seed: int = 0
) -> Agreement:
    """Ask sites what has to be known of their tables before a regression."""
    if weights is not None and not isinstance(weights, str):
        raise InputError(
            "weights: expected the name of a column that says how many observations a row stands for, "
            f"got {type(weights).__name__}"
        )
    parsed = parse(formula)
    answers = connection.ask(Levels(parsed.names, parsed.categorical, parsed.group, weights))
    columns = _merge_columns(connection, answers)
    advice = _advise(parsed, columns, sum(answer.rows for answer in answers))
    reading = Reading(Design.unscaled(formula, family, parsed, columns), weights)
    counts = connection.ask(Rows(reading))
    reading = _agree_on_units(connection, reading, advice, answers, counts)
    reading = replace(reading, held_out=held_out, seed=seed, first_groups=_number_groups(counts))
    if held_out > 0:
        counts = connection.ask(Rows(reading))
    names = connection.sites
    return Agreement(
        reading,
        {name: Counts(one.rows, one.groups, one.missing) for name, one in zip(names, counts, strict=True)},
        _merge_digests(names, counts),
        max(one.largest_group for one in counts),
        tuple(np.all([one.two_valued for one in counts], axis=0).tolist()),
    )


def _merge_columns(connection: Connection, answers: Sequence[LevelsAnswer]) -> dict[str, Column]:
    columns_by_site = {
        name: {column.name: column for column in answer.columns}
        for name, answer in zip(connection.sites, answers, strict=True)
    }
    return agree_on_columns(columns_by_site)


def _agree_on_units(
    connection: Connection,
    reading: Reading,
    advice: list[str],
    levels: Sequence[LevelsAnswer],
    counts: Sequence[RowsAnswer],
) -> Reading:
    """Middles and units of columns and target, from means and squares around them; and what looks wrong in these."""
    design = reading.design
    answers = connection.ask(AskMoments(reading))
    _check_squares(design.names, [answer.size for answer in answers])
    _check_squares([target_name(design.parsed)], [answer.target_size for answer in answers])
    inputs, target = _merge_moments(answers)
    mean, deviation = np.asarray(inputs.mean), inputs.deviation
    target_mean, target_deviation = np.asarray(target.mean), target.deviation
    if not design.intercept:
        # Lines go through zero: sizes are distances from there.
        deviation, target_deviation = np.hypot(mean, deviation), np.hypot(target_mean, target_deviation)

    def ask_products(used: np.ndarray, centre: np.ndarray, unit: np.ndarray) -> np.ndarray:
        products = [answer.products for answer in connection.ask(Products(used, centre, unit, reading))]
        total: np.ndarray = np.sum(products, axis=0)
        return total

    advice += _advise_on_groups(design.group, connection, levels)
    advice += describe_idle(find_idle(inputs, ask_products, design.intercept), design.names)
    advice += _advise_on_rows(design, counts, has_flat(target), is_explained=bool(advice))
    response = design.response
    design = replace(
        design,
        centre=mean if design.intercept else np.zeros_like(mean),
        unit=deviation_or_size(mean, deviation),
        target_centre=float(target_mean[0]) if response.has_units and design.intercept else 0.0,
        target_unit=float(deviation_or_size(target_mean, target_deviation)[0]) if response.has_units else 1.0,
        mean_count=float(target_mean[0]) if response.keeps_mean else None,
        advice=tuple(advice),
    )
    return replace(reading, design=design)


def _merge_moments(answers: Sequence[MomentsAnswer]) -> tuple[Moments, Moments]:
    """Moments of the columns and of the target, over the rows of all sites."""
    inputs = join_moments(Moments(answer.count, answer.mean, answer.total) for answer in answers)
    return inputs, join_moments(Moments(answer.count, answer.target_mean, answer.target_total) for answer in answers)


def _advise(parsed: Parsed, columns: Mapping[str, Column], rows: int) -> list[str]:
    """What looks wrong; refused, if nobody has said that a column's values are levels."""
    expanded = {name for names in parsed.expanded for name in names}
    for name in sorted(expanded - set(parsed.categorical)):
        if why := doubt_levels(name, columns[name].levels or (), rows):
            raise InputError(f"formula: {why}; if each level is to have a coefficient, say C({name})")
    levels = {name: column.levels for name, column in columns.items() if column.levels is not None}
    return doubt_columns(levels, expanded, rows)


def _advise_on_groups(group: str | None, connection: Connection, answers: Sequence[LevelsAnswer]) -> list[str]:
    """A site's groups are not named: they may be people."""
    return [
        f"site {site}: {answer.alike_groups} groups of {group!r} have names that differ by case or blanks only: make "
        "them alike"
        for site, answer in zip(connection.sites, answers, strict=True)
        if answer.alike_groups
    ]


def _advise_on_rows(design: Design, counts: Sequence[RowsAnswer], is_flat: bool, is_explained: bool) -> list[str]:
    """Where rows are too few or too much alike, so that the prior tells what data leave open."""
    coefficients = len(design.names) + design.intercept
    rows, groups = sum(one.rows for one in counts), sum(one.groups or 0 for one in counts)
    found = []
    if coefficients > rows and not is_explained:
        found.append(
            f"there are {coefficients} coefficients for {rows} rows: what data leave open, the prior tells; use fewer "
            "columns"
        )
    if is_flat:
        found.append("the target is the same in all rows: there is nothing to explain")
    if groups == 1:
        found.append("there is one group only: its intercept is not told from the formula's; leave (1 | group) out")
    elif groups == rows and not design.response.tells_rows_apart:
        found.append("every row is a group of its own: its intercept is not told from noise; leave (1 | group) out")
    return found


def _check_squares(names: Sequence[str], sizes: Sequence[np.ndarray]) -> None:
    """Check that squares do not vanish, or columns would be taken for ones that do not vary."""
    size = np.max(sizes, axis=0)
    for name in np.asarray(names, dtype=object)[(size > 0) & (size < SMALLEST)]:
        raise InputError(f"column {name!r}: has numbers so small that their squares are zero: give it another unit")


def _number_groups(counts: Sequence[RowsAnswer]) -> tuple[int, ...]:
    """The number of each site's first group, when the groups of all sites are counted through."""
    groups = [one.groups or 0 for one in counts]
    return tuple(np.cumsum([0, *groups[:-1]]).tolist())


def _merge_digests(names: Sequence[str], counts: Sequence[RowsAnswer]) -> str:
    """What was observed, and where, whatever the order of sites: of each site only a digest is known here."""
    digest = hashlib.sha256()
    for name, one in sorted(zip(names, counts, strict=True), key=lambda pair: pair[0]):
        digest.update(f"{name}:{one.digest}:".encode())
    return f"sites:{digest.hexdigest()}"


def check_unchanged(digest: str, connection: Connection, reading: Reading) -> None:
    """Check that tables are still what was fitted: files and frames may have been changed since."""
    if _merge_digests(connection.sites, connection.ask(Rows(reading))) != digest:
        raise InputError("calibration: the tables of sites are not those that were fitted: fit them again")
