"""Panels of the paper's experiments on federated networks, and a table at equal budgets, from their rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from partita.foundation.plain import Row
from partita.report.charts import COLOURS, LABELS, Picture
from partita.report.charts.base import style_figure
from partita.studies.tables import messages_to, spread

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")
QUANTITIES = ("error", "nll")
# Runs for over-fitting are longer than others.
OVER_FITTING = "over-fitting"


def group_traces(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of the first seed of every cell, by its name."""
    traces: dict[str, dict[int, list[Row]]] = {}
    for row in rows:
        traces.setdefault(row["method"], {}).setdefault(row["seed"], []).append(row)
    return {method: by_seed[min(by_seed)] for method, by_seed in traces.items()}


def choose_best(rows: Sequence[Row]) -> dict[str, str]:
    """Of every scheme the cell whose test error was least in the end, as the paper chooses."""
    best: dict[str, list[Row]] = {}
    for trace in group_traces(rows).values():
        scheme = trace[-1]["scheme"]
        if scheme != OVER_FITTING and (scheme not in best or trace[-1]["error"] < best[scheme][-1]["error"]):
            best[scheme] = trace
    return {scheme: trace[-1]["method"] for scheme, trace in best.items()}


def share_budgets(rows: Sequence[Row], passes: int, reach: float) -> list[Row]:
    """For every scheme's best cell: error and NLL after as many passes, after few messages, and when it was good.

    Passes are what sites compute, so that all schemes had as much of it; those that run longer are looked at there.
    """
    table = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        here = [row for row in rows if row["setting"] == setting]
        for method in choose_best(here).values():
            own = [row for row in here if row["method"] == method]
            by_seed = [[row for row in own if row["seed"] == seed] for seed in sorted({row["seed"] for row in own})]
            line: Row = {"setting": setting, "method": method, "seeds": len(by_seed)}
            for name in QUANTITIES:
                scale = 100 if name == "error" else 1
                line[f"{name} after {passes} passes"] = spread(_at(by_seed, "round", passes, name), scale)
                line[f"{name} in the end"] = spread([trace[-1][name] for trace in by_seed], scale)
            budget = 20 * passes
            line[f"error after {budget} messages"] = spread(_at(by_seed, "messages", budget, "error"), 100)
            line["passes"] = by_seed[0][-1]["round"]
            line["seconds"] = float(np.mean([trace[-1]["seconds"] for trace in by_seed]))
            seconds = [trace_seconds for trace in by_seed if (trace_seconds := _seconds_to(trace, reach)) is not None]
            counts = messages_to(own, setting, method, reach)
            all_there = len(counts) == len(by_seed)
            line[f"seconds to {100 * reach:g} %"] = float(np.mean(seconds)) if all_there else None
            line[f"messages to {100 * reach:g} %"] = round(np.mean(counts)) if all_there else None
            table.append(line)
    return table


def _at(traces: Sequence[Sequence[Row]], budget: str, most: float, name: str) -> list[float]:
    """The last number of every seed that was within a budget, where there is one."""
    within = [[row[name] for row in trace if row[budget] <= most * (1 + 1e-9)] for trace in traces]
    return [values[-1] for values in within if values]


def _seconds_to(trace: Sequence[Row], reach: float) -> float | None:
    return next((row["seconds"] for row in trace if row["error"] <= reach), None)


def draw_panels(rows: list[Row]) -> list[Picture]:
    """The best of every scheme against time and against communication; then every scheme with all its settings."""
    traces = group_traces(rows)
    best = {scheme: traces[method] for scheme, method in choose_best(rows).items()}
    titles = {"seconds": "seconds of workers side by side", "messages": LABELS["messages"]}
    pictures = [
        Picture(
            f"The best of every scheme, against {'time' if against == 'seconds' else 'communication'}",
            "Of each scheme the cell whose test error was least in the end.",
            _draw(
                {traces_[-1]["method"]: (traces_, COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS)])
                 for number, traces_ in enumerate(best.values())},
                against, label,
            ),
            wide=True,
        )
        for against, label in titles.items()
    ]  # fmt: skip
    for scheme in dict.fromkeys(row["scheme"] for row in rows if row["rate"] and row["scheme"] != OVER_FITTING):
        own = {method: trace for method, trace in traces.items() if trace[0]["scheme"] == scheme}
        against = "messages" if scheme == "pvi-one-pass" else "seconds"
        pictures.append(
            Picture(scheme, "All settings of this scheme.", _draw(_style(own), against, titles[against]), wide=True)
        )
    return [*pictures, *_over_fitting(traces)]


def _style(traces: Mapping[str, list[Row]]) -> dict[str, tuple[list[Row], str, str]]:
    """A colour for every rate, and a dash for every damping, or number of epochs."""
    rates = sorted({trace[0]["rate"] for trace in traces.values()})
    others = sorted({_other(trace[0]) for trace in traces.values()})
    return {
        method: (trace, COLOURS[rates.index(trace[0]["rate"]) % len(COLOURS)], DASHES[others.index(_other(trace[0]))])
        for method, trace in traces.items()
    }


def _other(row: Row) -> float:
    return float(row["epochs"] if row["damping"] is None else row["damping"])


def _draw(styled: Mapping[str, tuple[Sequence[Row], str, str]], against: str, label: str) -> Any:
    from plotly.subplots import make_subplots

    figure = make_subplots(1, 2, subplot_titles=[LABELS[name] for name in QUANTITIES], horizontal_spacing=0.08)
    for method, (trace, colour, dash) in styled.items():
        for column, name in enumerate(QUANTITIES, 1):
            figure.add_scatter(
                x=[row[against] for row in trace], y=[row[name] for row in trace], mode="lines+markers", name=method,
                legendgroup=method, showlegend=column == 1, line={"color": colour, "dash": dash}, marker={"size": 4},
                row=1, col=column,
            )  # fmt: skip
    style_figure(figure).update_layout(height=460, legend={"orientation": "v", "x": 1.01, "y": 1, "yanchor": "top"})
    figure.update_xaxes(type="log", title=label)
    return figure.update_yaxes(type="log")


def _over_fitting(traces: Mapping[str, list[Row]]) -> list[Picture]:
    """Test and training rows side by side, of runs that are long."""
    styled = {}
    for number, (method, trace) in enumerate(traces.items()):
        if trace[0]["scheme"] == OVER_FITTING:
            colour = COLOURS[number % len(COLOURS)]
            trained = [row | {name: row[f"train_{name}"] for name in QUANTITIES} for row in trace]
            styled[f"{method}: test"] = (trace, colour, "solid")
            styled[f"{method}: training"] = (trained, colour, "dash")
    words = "Synchronous PVI for longer: predictions of test rows, and of as many training rows."
    return [Picture("Over-fitting", words, _draw(styled, "round", LABELS["round"]), wide=True)] if styled else []
