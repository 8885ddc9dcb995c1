"""What is shown of an experiment: its table, and a page with the paper's plots for every setting."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from partita.foundation.checks import check_one_of
from partita.foundation.plain import Row
from partita.report import Chart, Picture, Report, write_report
from partita.studies.runner import Cell
from partita.studies.tables import curves, summary

KEYS = ("method", "setting", "seed", "round", "seconds", "messages", "bytes", "error", "nll", "ece", "free_energy")
# The paper's charts: error and log likelihood, against time or communication.
CHARTS = (Chart("error"), Chart("nll"), Chart("free_energy", log=False))
WORDS = "Mean ± half the range over seeds; errors in percent. Curves and pictures are the first seed's."


@dataclass(frozen=True)
class Presentation:
    """What is shown of rows: numbers of the table, charts, keys of JSON rows, pictures of a setting.

    With `reach`, the table counts messages until the test error is that small. Without `charts`, there are the paper's.
    Pictures `over_seeds` are given the rows of all seeds, others those of the first. `chosen` makes the first table
    where one line for each method would be too many; these stand below it.
    """

    title: str
    names: Sequence[str] = ("error", "nll", "ece")
    charts: Sequence[str] | None = None
    keys: Sequence[str] = KEYS
    reach: float | None = None
    pictures: Callable[[list[Row]], Sequence[Picture]] = lambda rows: ()
    over_seeds: Callable[[list[Row]], Sequence[Picture]] = lambda rows: ()
    chosen: Callable[[Sequence[Row]], list[Row]] | None = None


@dataclass(frozen=True)
class Experiment:
    """Cells to run, how fast they run here (called only if one has to), and how their rows are shown."""

    presentation: Presentation
    cells: Sequence[Cell]
    speed: Callable[[], float]
    # What is said before anything runs.
    notice: str = ""


def choose_names(given: str | None, known: Sequence[str]) -> list[str] | None:
    """The methods that `--method` names, separated by commas; None, which is all of them, without it."""
    if given is None:
        return None
    names = [name.strip() for name in given.split(",")]
    for name in names:
        check_one_of("--", known, method=name)
    return names


def write_pages(experiment: Experiment, rows: Sequence[Row], folder: Path) -> tuple[list[Row], list[str]]:
    """Write a page for every setting; return the whole table, and where the pages are."""
    shown = experiment.presentation
    whole = summary(rows, shown.names, shown.reach)
    table = whole if shown.chosen is None else shown.chosen(rows)
    notes = {cell.method: cell.words for cell in experiment.cells if cell.words}
    pages = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        here, below = ([line for line in lines if line["setting"] == setting] for lines in (table, whole))
        report = _report(shown, rows, setting, here, below if shown.chosen else [], notes)
        pages.append(str(write_report(folder / f"{setting.replace(' ', '-')}.html", report)))
    return table, pages


def _report(
    shown: Presentation,
    rows: Sequence[Row],
    setting: str,
    table: Sequence[Row],
    below: Sequence[Row],
    notes: dict[str, str],
) -> Report:
    drawn = curves(rows, setting)
    return Report(
        title=f"{shown.title}: {setting}",
        words=WORDS,
        table=table,
        curves=drawn,
        pictures=[
            *shown.over_seeds([row for row in rows if row["setting"] == setting]),
            *shown.pictures([row for curve in drawn for row in curve.rows]),
        ],
        charts=CHARTS if shown.charts is None else [Chart(y, log=y in ("smse", "variance")) for y in shown.charts],
        notes=notes,
        more={"All settings": below} if below else {},
        # A study without charts of its own has the axes of the paper's.
        against="seconds" if shown.charts is None else "round",
        log_axis=shown.charts is None,
    )
