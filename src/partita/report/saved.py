"""The page of a saved result, estimator or stream: its history, without data, model or the folder of a run."""

import math
import os
from collections.abc import Sequence
from pathlib import Path

from partita.errors import StorageError
from partita.foundation.archives import doubted, read_arrays
from partita.foundation.fields import anything, fields, items, number, whole
from partita.foundation.plain import Row
from partita.report.charts import Chart, Curve, choose_lines
from partita.report.page import Report

HISTORY = items(fields({"fold": whole(1), "round": number(0), "seconds": number(0)}, others=anything))
# The most hyperparameters that have a chart each.
MOST_HYPER = 12
SCORES = ("error", "nll", "ece", "rmse", "smse", "nlpd", "coverage")
# What a row of a stream does not show, because nothing travels and every batch is taken whole.
NOT_OF_STREAMS = ("messages", "bytes", "bytes_down", "bytes_up", "round", "accepted", "staleness")


def saved_report(path: str | os.PathLike[str]) -> Report:
    """The history in a file that `save` of a result, an estimator or a stream wrote."""
    about = read_arrays(path)[1]
    with doubted(path):
        rows, name = about.get("history", []), Path(path).name
        HISTORY(rows, "history")
        kind = _read_kind(about)
        if not rows:
            raise StorageError(f"{path}: the {kind} has no history: it was written by an earlier version")
        known = about.get("log_evidence") if isinstance(about.get("estimator"), str | None) else None
        return history_report(f"{kind} {name}", rows, known, is_stream="batches" in about)


def history_report(
    title: str, rows: Sequence[Row], log_evidence: float | None = None, is_stream: bool = False
) -> Report:
    """A page of rows of history, such as `result.history` or a stream's `history_`.

    Args:
        title: of the page.
        rows: one per fold, or per batch.
        log_evidence: of the last row's posterior, if it is known.
        is_stream: whether a row is a batch of a stream, so that all is drawn over batches.
    """
    shown = [_draw_over_batches(row) for row in rows] if is_stream else list(rows)
    last = shown[-1]
    if log_evidence is not None and math.isfinite(log_evidence):
        last = shown[-1] = {**last, "log_evidence": log_evidence}
    names = [name for name in last if name.startswith("hyper.")]
    hyper = [Chart(name) for name in names if all((row.get(name) or 0) > 0 for row in rows)]
    table = {
        "name": title,
        **{name: last[name] for name in SCORES if name in last},
        ("batches" if is_stream else "rounds"): last["batch" if is_stream else "round"],
        **({"points": last["points"]} if "points" in last else {}),
        "seconds": last["seconds"],
        "free energy": last.get("free_energy"),
        "log evidence": last.get("log_evidence"),
    }
    return Report(
        title=title,
        words=f"{len(rows)} {'batches of a stream' if is_stream else 'folds'}.",
        table=[table],
        curves=[Curve(title, shown)],
        charts=(*choose_lines("history"), *hyper[:MOST_HYPER]),
        notes={name: words for name, words in NOTES.items() if any(name in one for one in names)},
        against="batch" if is_stream else "round",
    )


NOTES = {
    "lengthscale": "how far apart inputs are before the function has changed, in units of standardised inputs",
    "noise": "standard deviation of the noise, in units of standardised targets",
}


def _draw_over_batches(row: Row) -> Row:
    """A row of a stream's history whose axis is the number of the batch."""
    kept = {name: value for name, value in row.items() if name not in NOT_OF_STREAMS}
    return {**kept, "batch": row["round"]}


def _read_kind(about: Row) -> str:
    """What a file holds, in a word."""
    estimator = about.get("estimator")
    if isinstance(estimator, dict):
        return str(estimator.get("name"))
    model = about.get("model")
    return estimator or (str(model.get("name")) if isinstance(model, dict) else "Stream")
