"""Table 1 line by line, as every format shows it: columns with their statistics, levels with counts, and footnotes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partita.foundation.text import clean
from partita.report.formatting import format_value
from partita.summaries.table_one import MISSING, OTHERS, Group, Levels, Numbers, Size, Summary

# What stands where nothing is told, and before a count that may be more.
NOTHING, AT_LEAST = "–", "≥ "
# Numbers from here on are written with an exponent.
LARGE = 1e7
# How many columns' bounds are named in a footnote.
MOST_NAMED = 40


@dataclass(frozen=True)
class Line:
    """A line of the table: a column's name by itself, or one of its statistics for every group."""

    label: str
    cells: tuple[str, ...] = ()

    @property
    def is_heading(self) -> bool:
        return not self.cells


@dataclass(frozen=True)
class CrossTable:
    """A cross-table as text: the names of its columns, and a line for each level of the first column."""

    title: str
    head: tuple[str, ...]
    lines: tuple[Line, ...]
    note: str


def describe_heads(summary: Summary) -> list[str]:
    """What groups are called, with how many rows they have."""
    return [f"{_name(summary, group)} (n {_show_size(summary.size(group))})" for group in summary.groups()]


def _name(summary: Summary, group: Group) -> str:
    own = clean(group.label)
    return f"{clean(summary.by)} = {own}" if group.kind == "level" else own


def _show_size(size: Size) -> str:
    return f"{AT_LEAST if size.at_least else '= '}{size.rows:,}"


def build_lines(summary: Summary) -> list[Line]:
    """All lines, in the order of the columns."""
    groups, lines = summary.groups(), []
    for name in summary.columns:
        is_numbers = summary.cut(name).levels is None
        lines.append(Line(clean(name)))
        if is_numbers:
            lines += _describe_numbers([summary.numbers(name, group) for group in groups])
        else:
            lines += _describe_levels([summary.levels(name, group) for group in groups])
    return lines


def _describe_numbers(found: Sequence[Numbers]) -> list[Line]:
    decimals = choose_decimals(found[0].sd)
    lines = [
        Line("mean (SD)", tuple(_show_moments(one, decimals) for one in found)),
        Line("median [quartiles]", tuple(_show_quartiles(one, decimals) for one in found)),
    ]
    if any(one.missing or one.hides_missing for one in found):
        lines.append(Line(MISSING, tuple(_show_missing(one) for one in found)))
    return lines


def choose_decimals(sd: float) -> int:
    """How many decimals show three digits of a deviation."""
    if not sd > 0:
        return 2
    return min(8, max(0, 2 - math.floor(math.log10(sd))))


def _show_number(value: float, decimals: int) -> str:
    if not np.isfinite(value):
        return NOTHING
    if abs(value) >= LARGE or (value != 0 and abs(value) < 10.0**-decimals):
        return f"{value:.4g}"
    return f"{value:,.{decimals}f}"


def _show_moments(one: Numbers, decimals: int) -> str:
    if not one.rows:
        return NOTHING
    return f"{_show_number(one.mean, decimals)} ({_show_number(one.sd, decimals)})"


def _show_quartiles(one: Numbers, decimals: int) -> str:
    quantiles = one.quantiles().values()
    if all(quantile.low == quantile.high and float(quantile.value).is_integer() for quantile in quantiles):
        decimals = 0
    low, middle, high = (_show_number(quantile.value, decimals) for quantile in quantiles)
    return f"{middle} [{low}, {high}]" if one.rows else NOTHING


def _show_missing(one: Numbers) -> str:
    # A few more may be among the others, or in rows of which nothing is told.
    more = AT_LEAST if one.hides_missing or one.at_least else ""
    return f"{more}{one.missing:,}" if one.rows + one.missing or more else NOTHING


def _describe_levels(found: Sequence[Levels]) -> list[Line]:
    lines = [
        Line(clean(level) or "(empty)", tuple(_show_level(one, level) for one in found)) for level in found[0].counts
    ]
    if any(one.others for one in found):
        lines.append(Line(OTHERS, tuple(_show_count(one, one.others, one.at_least) for one in found)))
    if any(one.missing for one in found):
        lines.append(Line(MISSING, tuple(f"{AT_LEAST if one.at_least else ''}{one.missing:,}" for one in found)))
    return lines


def _show_level(one: Levels, level: str) -> str:
    return _show_count(one, one.counts[level], one.at_least or level in one.hidden)


def _show_count(one: Levels, count: int, at_least: bool) -> str:
    more = AT_LEAST if at_least else ""
    if not one.rows:
        return f"{more}{count:,}" if more else NOTHING
    return f"{more}{count:,} ({100 * one.share(count):.1f} %)"


def build_crosses(summary: Summary) -> list[CrossTable]:
    """The cross-tables, over all sites."""
    found = []
    for first, second in summary.question.crosses:
        cross = summary.cross(first, second)
        lines = tuple(
            Line(
                clean(level) or "(empty)",
                tuple(
                    f"{'' if told else AT_LEAST}{count:,}"
                    for count, told in zip(cross.counts[i].tolist(), cross.told[i].tolist(), strict=True)
                ),
            )
            for i, level in enumerate(cross.rows)
        )
        note = f"{cross.others:,} rows are in none of these cells." if cross.others else ""
        head = tuple(f"{clean(second)} = {clean(level)}" for level in cross.columns)
        found.append(CrossTable(f"{clean(first)} by {clean(second)}, all sites", head, lines, note))
    return found


def describe_notes(summary: Summary) -> list[str]:
    """Footnotes: how exact the table is, and what is not told."""
    fewest = summary.question.fewest
    notes = [
        f"Counts of fewer than {fewest} rows were not told by sites, but only together with others; "
        f"“{AT_LEAST.strip()}” stands before counts that may be more because of that."
    ]
    bounds = _describe_bounds(summary)
    if bounds:
        notes.append(
            "Medians and quartiles come from counts of bins, not from rows. Those over all rows differ from what the "
            f"pooled rows would give by at most: {', '.join(bounds)}."
        )
    hiding = [
        name for name in summary.columns if summary.cut(name).levels is None and summary.numbers(name).hides_missing
    ]
    if hiding:
        names = ", ".join(map(clean, hiding))
        notes.append(
            f"Of {names}, a site with fewer than {fewest} rows that miss it counts them among the others, as if they "
            "had its mean."
        )
    return [*notes, *summary.notes]


def _describe_bounds(summary: Summary) -> list[str]:
    """How far quartiles over all rows may be off, column by column."""
    found = []
    for name in summary.columns:
        if summary.cut(name).levels is not None:
            continue
        quantiles = [one for one in summary.numbers(name).quantiles().values() if np.isfinite(one.value)]
        if quantiles:
            off = max(max(one.value - one.low, one.high - one.value) for one in quantiles)
            found.append(f"{clean(name)} {format_value(float(off)) if off else 'nothing'}")
    return found if len(found) <= MOST_NAMED else [*found[:MOST_NAMED], "…"]
