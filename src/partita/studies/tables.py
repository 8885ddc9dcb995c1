"""Tables and curves of a study's rows."""

from collections.abc import Sequence

import numpy as np

from partita.foundation.plain import Row
from partita.report import Curve


def curves(rows: Sequence[Row], setting: str) -> list[Curve]:
    """One curve per method: the first seed's."""
    here = [row for row in rows if row["setting"] == setting]
    methods = list(dict.fromkeys(row["method"] for row in here))
    seeds = {method: min(row["seed"] for row in here if row["method"] == method) for method in methods}
    return [
        Curve(method, [r for r in here if r["method"] == method and r["seed"] == seeds[method]]) for method in methods
    ]


def summary(
    rows: Sequence[Row], names: Sequence[str] = ("error", "nll", "ece"), reach: float | None = None
) -> list[Row]:
    """The last row of every cell, as mean and spread (half the range) over seeds.

    With `reach`, also how many messages it took to a test error of that much, if all seeds got there.
    """
    groups: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        groups.setdefault((row["setting"], row["method"]), {})[row["seed"]] = row
    table = []
    for (setting, method), by_seed in groups.items():
        last = list(by_seed.values())
        line: Row = {"setting": setting, "method": method, "seeds": len(last), "rounds": round(last[0]["round"])}
        for name in names:
            values = [row[name] for row in last if row.get(name) is not None]
            line[name] = spread(values, 100 if name.endswith("error") else 1)
        line |= {
            name: last[0][name]
            for name in ("messages", "bytes", "points", "held")
            if isinstance(last[0].get(name), int)
        }
        line["seconds"] = float(np.mean([row["seconds"] for row in last]))
        if reach is not None:
            counts = messages_to(rows, setting, method, reach)
            line[f"messages to {100 * reach:g} %"] = round(np.mean(counts)) if len(counts) == len(last) else None
        table.append(line)
    return table


def spread(values: Sequence[float], scale: float = 1.0) -> str:
    """Mean ± half the range."""
    if not values:
        return "–"
    half = scale * (max(values) - min(values)) / 2
    digits = 2 if scale == 100 else 4
    mean = f"{scale * float(np.mean(values)):.{digits}f}"
    return f"{mean} ± {half:.{digits}f}" if len(values) > 1 else mean


def messages_to(rows: Sequence[Row], setting: str, method: str, error: float) -> list[int]:
    """How many messages it takes until the test error is at most this, for every seed that gets there."""
    counts = {}
    for row in rows:
        here = row["setting"] == setting and row["method"] == method
        if here and row["error"] is not None and row["error"] <= error and row["seed"] not in counts:
            counts[row["seed"]] = row["messages"]
    return [int(count) for count in counts.values()]
