"""Tables on a terminal."""

from typing import Any

from rich.console import Console
from rich.table import Table

from partita.report.page import shown


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for number, name in enumerate(rows[0]):
        table.add_column(name.replace(" ", "\n"), justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(shown(value, name) for name, value in row.items()))
    Console().print(table)
