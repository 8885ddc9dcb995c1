"""Tables on a terminal, and a run that is watched there."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from partita.foundation.plain import Row
from partita.foundation.text import clean
from partita.report.charts import LABELS
from partita.report.follower import Follower
from partita.report.formatting import format_value
from partita.telemetry import MOST_OF_LINE, Progress

LOOK = 1.0
# Characters of a line in a file or a pipe.
WIDE = 200
BLOCKS = "▁▂▃▄▅▆▇█"
# The numbers of a history that have a sparkline, and how many characters it takes.
SPARKS, WIDTH = ("free_energy", "error", "nll", "rmse", "accepted", "staleness"), 44
# The most sites in a table, so that there is room for the rest.
MOST_SITES = 15


def make_table(title: str, rows: Sequence[Row]) -> Table:
    """A table for a terminal, whose words Rich does not read as markup."""
    table = Table(
        title=Text(clean(title, lines=True)), title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False
    )
    for number, name in enumerate(rows[0]):
        table.add_column(Text(clean(name).replace(" ", "\n")), justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(clean(format_value(value, name))) for name, value in row.items()))
    return table


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows as a table: as wide as the terminal, or as wide as the table in a file or a pipe."""
    console = Console()
    Console(width=None if console.is_terminal else max(console.width, WIDE)).print(make_table(title, rows))


def draw_sparkline(values: Sequence[float]) -> str:
    """Numbers as a row of blocks; of many, some from the first to the last.

    >>> draw_sparkline([0, 1, 2, 7])
    '▁▂▃█'
    """
    taken = np.asarray(values)[np.linspace(0, len(values) - 1, min(len(values), WIDTH)).round().astype(int)]
    low, high = float(taken.min()), float(taken.max())
    # Numbers that differ by rounding alone make a flat line.
    step = max(high - low, 1e-6 * max(abs(low), abs(high)), np.finfo(float).tiny) / (len(BLOCKS) - 1)
    return "".join(BLOCKS[round((value - low) / step)] for value in taken.tolist())


def draw_run(follower: Follower) -> RenderableType:
    """A run on one screen: how far it is, its curves, its sites."""
    state, rows = follower.state(), follower.rows()
    ago = f" Last update {state['still']:.0f} s ago." if state["state"] in ("running", "still") else ""
    parts: list[RenderableType] = [Text(clean(f"{follower.title}. {state['words']}{ago}", MOST_OF_LINE), style="bold")]
    for name in SPARKS:
        values = [row[name] for row in rows if row.get(name) is not None]
        if len(set(values)) > 1:
            parts.append(Text(f"{LABELS[name]:<22} {draw_sparkline(values)} {format_value(values[-1])}"))
    if follower.last:
        parts.append(make_table("", [follower.summary()]))
    sites = follower.site_rows()
    if sites:
        more = f" (the first {MOST_SITES} of {len(follower.sites)})" if len(sites) > MOST_SITES else ""
        parts.append(make_table(f"\nSites{more}", sites[:MOST_SITES]))
    return Group(*parts)


def watch(follower: Follower, console: Console | None = None) -> None:
    """Show a run until it is finished: on a screen that changes, or in plain lines where there is no terminal."""
    console = console or Console()
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            while _look_again(follower):
                live.update(draw_run(follower), refresh=True)
                time.sleep(LOOK)
            live.update(draw_run(follower), refresh=True)
        return
    with Progress(follower.title, console) as progress:
        while _look_again(follower):
            progress.show(0, None, follower.state()["words"])
            time.sleep(LOOK)
    console.print(draw_run(follower))


def _look_again(follower: Follower) -> bool:
    """Read what is new; return whether the run goes on."""
    follower.read()
    return not follower.is_finished
