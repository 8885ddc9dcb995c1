"""An HTML page with tables and charts: one file, readable offline, in light and dark, on a phone, by keyboard."""

import html
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from partita.foundation.archives import write_text
from partita.foundation.plain import Row, plain, to_json
from partita.foundation.text import clean
from partita.report.charts import COLOURS, LABELS, ON_DARK, Chart, Curve, Picture, choose_lines
from partita.report.charts.base import AXES, DASHES, escape_for_plotly
from partita.report.formatting import format_value

# The most rows of a curve that are drawn, because screens have no more columns.
MOST_ROWS = 1500
# The most characters of a paragraph.
MOST_WORDS = 2000


@dataclass(frozen=True)
class Report:
    """What goes on a page.

    Args:
        title, words: of the page.
        table: the first table, a row per method.
        curves: histories, one per method.
        pictures: figures beside the lines.
        charts: which numbers of the histories are drawn as lines.
        notes: what names in the table stand for.
        sites: a table with a row per site, at the end of the page.
        more: other tables, by their captions.
        against: what lines are drawn against at first.
        log_axis: whether that axis is logarithmic at first.
    """

    title: str
    words: str
    table: Sequence[Row]
    curves: Sequence[Curve]
    pictures: Sequence[Picture] = ()
    charts: Sequence[Chart] = field(default_factory=lambda: choose_lines("run"))
    notes: Mapping[str, str] = field(default_factory=dict)
    sites: Sequence[Row] = ()
    more: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    against: str = "round"
    log_axis: bool = False


def write_report(path: str | os.PathLike[str], report: Report) -> Path:
    """Write the page, complete or not at all."""
    return write_text(path, render_page(report))


def render_page(report: Report, live: bool = False) -> str:
    """The whole page as HTML. A page that is `live` listens to /events for what has changed."""
    from plotly.offline import get_plotlyjs

    folder = files("partita.report")
    contents = build_contents(report)
    return TEMPLATE.format(
        title=_escape(report.title),
        words=_escape(report.words),
        table=contents["table"],
        sites=contents["sites"],
        notes=render_notes(report.notes),
        live="true" if live else "false",
        style=folder.joinpath("page.css").read_text(encoding="utf-8"),
        plotly=get_plotlyjs(),
        # Nothing in the data can end the element that holds them.
        contents=to_json(contents).replace("<", "\\u003c"),
        script=folder.joinpath("page.js").read_text(encoding="utf-8"),
    )


def build_contents(report: Report) -> Row:
    """What changes while a run goes on, as JSON: all that the page's script draws."""
    names = [chart.y for chart in report.charts]
    curves: list[Row] = [
        {
            "name": clean(curve.name),
            "label": escape_for_plotly(curve.name),
            "dash": DASHES[number % len(DASHES)],
            "columns": pick_columns(curve.rows, names),
        }
        for number, curve in enumerate(report.curves)
    ]
    drawn = [chart for chart in report.charts if any(_has_line(chart, curve["columns"]) for curve in curves)]
    return {
        "words": clean(report.words, MOST_WORDS),
        "table": render_table(report.table) + "".join(render_table(rows, name) for name, rows in report.more.items()),
        "sites": render_table(report.sites, "Sites"),
        "axes": [
            {"name": x, "short": short, "label": label}
            for x, (short, label) in AXES.items()
            if any(x in curve["columns"] for curve in curves)
        ],
        "against": report.against,
        "log": report.log_axis,
        "colours": {"light": COLOURS, "dark": ON_DARK},
        "curves": curves,
        "charts": [{"y": chart.y, "label": _label(chart), "log": chart.log, "words": chart.words} for chart in drawn],
        "pictures": [
            {
                "title": clean(picture.title),
                "words": clean(picture.words, MOST_WORDS),
                "wide": picture.wide,
                **json.loads(picture.figure.to_json()),
            }
            for picture in report.pictures
        ],
    }


def _label(chart: Chart) -> str:
    return chart.label or LABELS.get(chart.y, chart.y)


def _has_line(chart: Chart, columns: Mapping[str, Sequence[float | None]]) -> bool:
    return chart.y in columns and (chart.if_zero or any(columns[chart.y]))


def pick_columns(rows: Sequence[Row], names: Sequence[str]) -> dict[str, list[float | None]]:
    """Numbers by name, with None for what is missing. Of a long history, rows evenly apart are taken for every name."""
    kept = sorted({place for name in names for place in _pick_places(rows, name)})
    wanted = [*AXES, *names, "log_evidence"]
    found = {name: [_read_number(rows[place].get(name)) for place in kept] for name in wanted}
    return {name: values for name, values in found.items() if any(value is not None for value in values)}


def _pick_places(rows: Sequence[Row], name: str) -> list[int]:
    """Places where a name has a number, MOST_ROWS at most: the last one, and others evenly apart."""
    places = [place for place, row in enumerate(rows) if _read_number(row.get(name)) is not None]
    step = max(1, math.ceil(len(places) / MOST_ROWS))
    return places[::-1][::step]


def _read_number(value: Any) -> float | None:
    value = plain(value)
    return value if isinstance(value, int | float) else None


def render_table(rows: Sequence[Row], caption: str = "") -> str:
    if not rows:
        return ""
    title = f"<caption>{_escape(caption)}</caption>" if caption else ""
    head = "".join(f"<th scope='col'>{_escape(name)}</th>" for name in rows[0])
    body = "".join(f"<tr>{_render_cells(row)}</tr>" for row in rows)
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _render_cells(row: Row) -> str:
    first, *rest = (_escape(format_value(value, name)) for name, value in row.items())
    return f"<th scope='row'>{first}</th>" + "".join(f"<td>{text}</td>" for text in rest)


def _escape(text: str) -> str:
    return html.escape(clean(text, MOST_WORDS))


def render_notes(notes: Mapping[str, str]) -> str:
    items = (f"<dt>{_escape(name)}</dt><dd>{_escape(words)}</dd>" for name, words in notes.items())
    return f"<dl>{''.join(items)}</dl>" if notes else ""


TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline';
  style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body data-live="{live}">
<a class="skip" href="#charts">Skip to the charts</a>
<header>
<h1>{title}</h1>
<p id="words">{words}</p>
<p id="state" hidden><strong role="status"></strong> <span></span></p>
</header>
<main>
<div id="table" class="scroll" role="region" tabindex="0" aria-label="Results">{table}</div>
{notes}
<form id="controls" aria-label="What the charts show" hidden>
<label>Draw against <select name="against"></select></label>
<label><input type="checkbox" name="log"> logarithmic</label>
<fieldset><legend>Lines</legend></fieldset>
</form>
<div id="charts" tabindex="-1"></div>
<div id="sites" class="scroll" role="region" tabindex="0" aria-label="Sites">{sites}</div>
<noscript>The charts need JavaScript; the tables do not.</noscript>
</main>
<script>{plotly}</script>
<script type="application/json" id="contents">{contents}</script>
<script>
{script}
</script>
</body>
</html>
"""
