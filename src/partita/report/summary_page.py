"""Table 1 as one HTML file: readable offline, without a script, in light and dark, on paper."""

import html
from collections.abc import Sequence

import numpy as np

from partita.foundation.text import clean
from partita.report.summary_lines import build_crosses, build_lines, describe_heads, describe_notes
from partita.summaries.table_one import Numbers, Summary

# Bars of a histogram, and its size in pixels.
BARS, WIDTH, HEIGHT = 16, 112, 30
# A column of whole numbers with so few of them has a bar for each.
FEW = 20


def render_page(summary: Summary, title: str = "Table 1") -> str:
    """The whole page."""
    sites = ", ".join(map(clean, summary.sites))
    crosses = "".join(
        f"<h2>{_escape(cross.title)}</h2>"
        + _render_table(cross.head, [(line.label, line.cells, "") for line in cross.lines])
        + (f"<p>{_escape(cross.note)}</p>" if cross.note else "")
        for cross in build_crosses(summary)
    )
    notes = "".join(f"<li>{_escape(note)}</li>" for note in describe_notes(summary))
    return TEMPLATE.format(
        title=_escape(title),
        words=_escape(f"{summary.size().rows:,} rows at {len(summary.sites)} sites: {sites}"),
        table=_render_main(summary),
        crosses=crosses,
        notes=notes,
    )


def _render_main(summary: Summary) -> str:
    rows: list[tuple[str, Sequence[str], str]] = []
    names = iter(summary.columns)
    for line in build_lines(summary):
        picture = ""
        if line.is_heading:
            name = next(names)
            if summary.cut(name).levels is None:
                picture = draw_histogram(summary.numbers(name), name)
        rows.append((line.label, line.cells, picture))
    return _render_table([*describe_heads(summary)], rows, has_pictures=any(picture for *_, picture in rows))


def _render_table(
    heads: Sequence[str], rows: Sequence[tuple[str, Sequence[str], str]], has_pictures: bool = False
) -> str:
    second = "<th scope='col'>distribution</th>" if has_pictures else ""
    head = "".join(f"<th scope='col'>{_break(name)}</th>" for name in heads)
    body = []
    for label, cells, picture in rows:
        shown = f"<td>{picture}</td>" if has_pictures else ""
        shown += "".join(f"<td>{_escape(cell)}</td>" for cell in cells) or f"<td colspan='{max(1, len(heads))}'></td>"
        kind = "" if cells else " class='name'"
        body.append(f"<tr{kind}><th scope='row'>{_escape(label)}</th>{shown}</tr>")
    return (
        "<div class='scroll' tabindex='0' role='region' aria-label='table'><table>"
        f"<thead><tr><td></td>{second}{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _break(head: str) -> str:
    """A group's name, and below it how many rows it has."""
    name, begins, rows = head.rpartition(" (n ")
    return f"{_escape(name)}<br>(n {_escape(rows)}" if begins else _escape(head)


def draw_histogram(found: Numbers, name: str) -> str:
    """Bars over equal parts of the range in which nearly all rows are, as a picture in the page itself."""
    distribution = found.distribution
    if not found.rows or len(distribution.edges) < 2:
        return ""
    low, high = float(distribution.edges[0]), float(distribution.edges[-1])
    is_few = distribution.whole and high - low <= FEW
    edges = distribution.edges if is_few else np.linspace(low, high, BARS + 1)
    shares = distribution.shares(edges)
    top, width = max(float(shares.max()), 1e-300), WIDTH / len(shares)
    bars = "".join(
        f"<rect x='{i * width:.2f}' y='{HEIGHT - share / top * HEIGHT:.2f}' width='{max(width - 1, 0.5):.2f}' "
        f"height='{share / top * HEIGHT:.2f}'/>"
        for i, share in enumerate(shares.tolist())
    )
    words = _escape(f"{name}: about how all rows are spread from {low:.4g} to {high:.4g}")
    return (
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}' role='img' aria-label='{words}'>"
        f"<title>{words}</title>{bars}</svg>"
    )


def _escape(text: object) -> str:
    return html.escape(clean(text, most=2000))


TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 95rem; padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; margin-bottom: 0; }}
h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; border-top: 2px solid; border-bottom: 2px solid; }}
td {{ font-variant-numeric: tabular-nums; }}
thead tr {{ border-bottom: 1px solid; }}
th, td {{ padding: 0.15rem 0.8rem; text-align: right; white-space: nowrap; vertical-align: bottom; }}
thead th {{ white-space: normal; min-width: 6rem; }}
tbody th {{ text-align: left; font-weight: normal; padding-left: 1.8rem; }}
tbody .name th {{ font-weight: 600; padding-left: 0.4rem; padding-top: 0.5rem; }}
svg {{ vertical-align: bottom; margin-top: 0.3rem; }}
rect {{ fill: #0072b2; }}
ul {{ color: GrayText; padding-left: 1.1rem; max-width: 60rem; }}
@media (prefers-color-scheme: dark) {{ rect {{ fill: #4aa8e0; }} }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{words}</p>
{table}
{crosses}
<ul>{notes}</ul>
</body>
</html>
"""
