"""Table 1 as text, CSV and LaTeX."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from rich.cells import cell_len

from partita.foundation.checks import check_one_of
from partita.foundation.plain import Row
from partita.foundation.text import clean
from partita.report.summary_lines import Line, build_crosses, build_lines, describe_heads, describe_notes
from partita.report.summary_page import render_page
from partita.summaries.table_one import MISSING, OTHERS, Group, Summary

TITLE = "Table 1"
FORMATS = ("text", "html", "csv", "latex")
FIELDS = ("column", "level", "of", "group", "statistic", "value", "low", "high", "at_least")
# What LaTeX reads as something else than itself.
LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "*": "{*}",
    "`": r"\textasciigrave{}",
    "[": "{[}",
    "]": "{]}",
    "–": "--",
    "≥": r"$\geq$",
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
}
# A spreadsheet takes a text that begins with one of these for a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def render(summary: Summary, how: str) -> str:
    """A summary in one of FORMATS."""
    check_one_of("", FORMATS, format=how)
    renderers = {"text": render_text, "html": render_page, "csv": render_csv, "latex": render_latex}
    return renderers[how](summary)


def describe(summary: Summary) -> Row:
    """What a summary is of, as plain values."""
    return {
        "sites": list(summary.sites),
        "rows": summary.size().rows,
        "columns": list(summary.columns),
        "by": summary.by,
        "fewest_per_cell": summary.question.fewest,
        "notes": describe_notes(summary),
    }


def render_text(summary: Summary) -> str:
    """Tables for a terminal or a file, and footnotes."""
    lines = [TITLE, *_align(describe_heads(summary), build_lines(summary))]
    for cross in build_crosses(summary):
        lines += ["", cross.title, *_align(cross.head, cross.lines), *([cross.note] if cross.note else [])]
    return "\n".join([*lines, "", *describe_notes(summary), ""])


def _align(heads: Sequence[str], lines: Sequence[Line]) -> list[str]:
    """Lines with their cells below each other; a head of several words is broken where its number of rows begins."""
    parts = [head.partition(" (n ") for head in heads]
    tops = [Line("", tuple(name for name, _, _ in parts)), Line("", tuple(f"{n}{more}"[1:] for _, n, more in parts))]
    is_named = any(n for _, n, _ in parts)
    indented = (line if line.is_heading else replace(line, label=f"  {line.label}") for line in lines)
    shown = [*tops[: 1 + is_named], *indented]
    first = max(cell_len(line.label) for line in shown)
    widths = [max((cell_len(line.cells[i]) for line in shown if line.cells), default=0) for i in range(len(heads))]
    return [(line.label + " " * (first - cell_len(line.label)) + _pad(line.cells, widths)).rstrip() for line in shown]


def _pad(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join("  " + " " * (width - cell_len(cell)) + cell for cell, width in zip(cells, widths, strict=False))


def render_csv(summary: Summary) -> str:
    """A line for every number, with all digits, for programs and spreadsheets."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(FIELDS)
    for row in list_values(summary):
        writer.writerow([_cell(row.get(name, "")) for name in FIELDS])
    return stream.getvalue()


def _cell(value: Any) -> Any:
    """A cell that no spreadsheet runs; numbers stay what they are, and what is not known is empty."""
    if isinstance(value, str):
        text = clean(value)
        return f"'{text}" if text.startswith(FORMULA) else text
    if isinstance(value, bool):
        return str(value).lower()
    return "" if not np.isfinite(value) else value


def list_values(summary: Summary) -> Iterator[Row]:
    """Every number of a summary, as plain rows."""
    for group in summary.groups():
        place = {"of": group.kind, "group": group.name}
        size = summary.size(group)
        yield {**place, "statistic": "rows", "value": size.rows, "at_least": size.at_least}
        for name in summary.columns:
            values = _list_numbers if summary.cut(name).levels is None else _list_levels
            for row in values(summary, name, group):
                yield {"column": name, **place, **row}
    for first, second in summary.question.crosses:
        cross = summary.cross(first, second)
        for (i, j), count in np.ndenumerate(cross.counts):
            place = {"column": first, "level": cross.rows[i], "of": second, "group": cross.columns[j]}
            yield {**place, "statistic": "cross", "value": int(count), "at_least": not cross.told[i, j]}


def _list_numbers(summary: Summary, name: str, group: Group) -> Iterator[Row]:
    found = summary.numbers(name, group)
    yield {"statistic": "present", "value": found.rows, "at_least": found.at_least}
    yield {"statistic": MISSING, "value": found.missing, "at_least": found.at_least or found.hides_missing}
    for statistic, value in (("mean", found.mean), ("sd", found.sd)):
        yield {"statistic": statistic, "value": value}
    for share, (value, low, high) in found.quantiles().items():
        yield {"statistic": f"quantile {share:g}", "value": value, "low": low, "high": high}
    cut = summary.cut(name)
    distribution = found.distribution
    for edge, about, least, most in zip(
        cut.edges, distribution.about, distribution.least, distribution.most, strict=True
    ):
        yield {"level": repr(edge), "statistic": "rows below", "value": about, "low": least, "high": most}


def _list_levels(summary: Summary, name: str, group: Group) -> Iterator[Row]:
    found = summary.levels(name, group)
    for level, count in found.counts.items():
        at_least = found.at_least or level in found.hidden
        yield {"level": level, "statistic": "count", "value": count, "at_least": at_least}
        yield {"level": level, "statistic": "share", "value": found.share(count), "at_least": at_least}
    yield {"statistic": OTHERS, "value": found.others, "at_least": found.at_least}
    yield {"statistic": MISSING, "value": found.missing, "at_least": found.at_least}


def render_latex(summary: Summary) -> str:
    r"""A table for a paper, and one for each pair, in the style of booktabs, which is all the package they need."""
    lines = ["% \\usepackage{booktabs}", *_begin_table(TITLE, describe_heads(summary))]
    for number, line in enumerate(build_lines(summary)):
        if line.is_heading:
            lines += ["\\addlinespace"] * (number > 0) + [rf"\textbf{{{escape_latex(line.label)}}} \\"]
        else:
            lines.append(_write_row(rf"\quad {escape_latex(line.label)}", line.cells))
    lines += [*_END_TABULAR, *(rf"\par\footnotesize {escape_latex(note)}" for note in describe_notes(summary))]
    lines.append(r"\end{table}")
    for cross in build_crosses(summary):
        lines += ["", *_begin_table(cross.title, cross.head)]
        lines += [_write_row(escape_latex(line.label), line.cells) for line in cross.lines]
        lines += [*_END_TABULAR, *([rf"\par\footnotesize {escape_latex(cross.note)}"] if cross.note else [])]
        lines.append(r"\end{table}")
    return "\n".join([*lines, ""])


_END_TABULAR = (r"\bottomrule", r"\end{tabular}")


def _begin_table(title: str, heads: Any) -> list[str]:
    return [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_latex(title)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(heads)}}}",
        r"\toprule",
        _write_row("", heads),
        r"\midrule",
    ]


def _write_row(label: str, cells: Any) -> str:
    return " & ".join([label, *map(escape_latex, cells)]) + r" \\"


def escape_latex(text: object) -> str:
    """Text that LaTeX shows as it is."""
    return "".join(LATEX.get(character, character) for character in clean(text, most=1000))
