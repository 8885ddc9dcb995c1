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

import numpy as np

from partita.foundation.plain import Row, plain, to_json
from partita.foundation.text import clean
from partita.report.charts import AXES, CHARTS, COLOURS, DASHES, LABELS, ON_DARK, Chart, Curve, Picture, plotly_text
from partita.server.storage import write_text

# Rows of a curve that are drawn; screens have no more columns.
MOST_ROWS = 1500
# Numbers that are written out; larger ones have an exponent.
LARGE = 1e9
# Characters of a paragraph.
MOST_WORDS = 2000
# Of these, differences of one or two matter, however large they are.
NATS = ("free energy", "log evidence", "behind")


@dataclass(frozen=True)
class Report:
    """What goes on a page: a title, some words, tables, curves in charts, and pictures made elsewhere.

    `notes` say what a name in the table stands for; `against` is what charts are drawn against at first.
    """

    title: str
    words: str
    table: Sequence[Row]
    curves: Sequence[Curve]
    pictures: Sequence[Picture] = ()
    charts: Sequence[Chart] = CHARTS
    notes: Mapping[str, str] = field(default_factory=dict)
    sites: Sequence[Row] = ()
    # Other tables, by their captions.
    more: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    against: str = "round"
    log_axis: bool = False


def write_report(path: str | os.PathLike[str], report: Report) -> Path:
    """Write the page, complete or not at all."""
    return write_text(path, page(report))


def page(report: Report, live: bool = False) -> str:
    """The whole page. One that is `live` listens to /events for what has changed."""
    from plotly.offline import get_plotlyjs

    folder = files("partita.report")
    shown = contents(report)
    return TEMPLATE.format(
        title=_escaped(report.title),
        words=_escaped(report.words),
        table=shown["table"],
        sites=shown["sites"],
        notes=html_notes(report.notes),
        live="true" if live else "false",
        style=folder.joinpath("page.css").read_text(encoding="utf-8"),
        plotly=get_plotlyjs(),
        # Nothing in the data can end the element that holds them.
        contents=to_json(shown).replace("<", "\\u003c"),
        script=folder.joinpath("page.js").read_text(encoding="utf-8"),
    )


def contents(report: Report) -> Row:
    """What changes while a run goes on, as JSON: all that the page's script draws."""
    names = [chart.y for chart in report.charts]
    curves: list[Row] = [
        {
            "name": clean(curve.name),
            "label": plotly_text(curve.name),
            "dash": DASHES[number % len(DASHES)],
            "columns": columns(curve.rows, names),
        }
        for number, curve in enumerate(report.curves)
    ]
    drawn = [chart for chart in report.charts if any(_says(chart, curve["columns"].get(chart.y)) for curve in curves)]
    return {
        "words": clean(report.words, MOST_WORDS),
        "table": html_table(report.table) + "".join(html_table(rows, name) for name, rows in report.more.items()),
        "sites": html_table(report.sites, "Sites"),
        "axes": [
            {"name": x, "short": short, "label": LABELS[x]}
            for x, short in AXES.items()
            if any(x in curve["columns"] for curve in curves)
        ],
        "against": report.against,
        "log": report.log_axis,
        "colours": {"light": COLOURS, "dark": ON_DARK},
        "curves": curves,
        "charts": [
            {"y": chart.y, "label": LABELS.get(chart.y, chart.y), "log": chart.log, "words": chart.words}
            for chart in drawn
        ],
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


def _says(chart: Chart, values: Sequence[float | None] | None) -> bool:
    return values is not None and (chart.if_zero or any(values))


def columns(rows: Sequence[Row], names: Sequence[str]) -> dict[str, list[float | None]]:
    """Numbers by name, None where there is none; of long histories, rows evenly apart for every name."""
    kept = sorted({place for name in names for place in _spread(rows, name)})
    wanted = [*AXES, *names, "log_evidence"]
    found = {name: [_number(rows[place].get(name)) for place in kept] for name in wanted}
    return {name: values for name, values in found.items() if any(value is not None for value in values)}


def _spread(rows: Sequence[Row], name: str) -> list[int]:
    """At most so many places where a name has a number: the last, and others evenly apart."""
    places = [place for place, row in enumerate(rows) if _number(row.get(name)) is not None]
    step = max(1, math.ceil(len(places) / MOST_ROWS))
    return places[::-1][::step]


def _number(value: Any) -> float | None:
    value = plain(value)
    return value if isinstance(value, int | float) else None


def html_table(rows: Sequence[Row], caption: str = "") -> str:
    if not rows:
        return ""
    title = f"<caption>{_escaped(caption)}</caption>" if caption else ""
    head = "".join(f"<th scope='col'>{_escaped(name)}</th>" for name in rows[0])
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in rows)
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(row: Row) -> str:
    first, *rest = (_escaped(shown(value, name)) for name, value in row.items())
    return f"<th scope='row'>{first}</th>" + "".join(f"<td>{text}</td>" for text in rest)


def _escaped(text: str) -> str:
    return html.escape(clean(text, MOST_WORDS))


def html_notes(notes: Mapping[str, str]) -> str:
    items = (f"<dt>{_escaped(name)}</dt><dd>{_escaped(words)}</dd>" for name, words in notes.items())
    return f"<dl>{''.join(items)}</dl>" if notes else ""


def shown(value: Any, name: str = "") -> str:
    """A number as people read it."""
    if value is None:
        return "–"
    if name == "bytes" and value >= 1e9:
        return f"{value / 1e9:.1f} GB"
    if name == "bytes":
        return f"{value / 1e6:.1f} MB" if value >= 1e6 else f"{value / 1e3:.0f} kB"
    if isinstance(value, float):
        if np.isnan(value):
            return "–"
        if not np.isfinite(value):
            return "∞" if value > 0 else "–∞"
        if name in NATS:
            return f"{value:,.2f}" if abs(value) < LARGE else f"{value:.6g}"
        return f"{value:,.0f}" if 1000 <= abs(value) < LARGE else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


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
