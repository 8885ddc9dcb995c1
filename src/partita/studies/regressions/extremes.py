"""Made-up regressions at the edges: from no signal to hardly any noise, five rows to a million, unlike units.

`partita study extremes` says how far each way to fit is from quadrature; a whole run of `partita study regressions` has
the same as a section of its page.
"""

from collections.abc import Sequence

import numpy as np

from partita.studies.options import Say
from partita.studies.regressions.packages import import_pandas
from partita.studies.regressions.page import extremes
from partita.studies.regressions.sets import DataSet, Table
from partita.studies.regressions.table import Row, compare

# What a regression leaves unexplained: 1 - R².
UNEXPLAINED = (1.0, 0.5, 1e-2, 1e-4, 1e-8)
ROWS = (5, 20, 1_000, 1_000_000)
UNITS = {"tiny": 1e-6, "plain": 1.0, "huge": 1e6}
TARGET_UNIT = 1e4


def make(unexplained: float, rows: int) -> DataSet:
    """Three correlated columns whose units differ by twelve orders of magnitude, none of them centred."""

    def load() -> Table:
        rng = np.random.default_rng(int(rows - np.log10(unexplained)))
        z = rng.normal(size=(rows, 3)) @ np.array([[1.0, 0.6, 0.0], [0.0, 0.8, 0.3], [0.0, 0.0, 1.0]])
        signal, noise = z @ [1.0, -0.5, 0.7], rng.normal(size=rows)
        y = np.sqrt(1 - unexplained) * signal / signal.std() + np.sqrt(unexplained) * noise
        columns = {name: unit * (3.0 + z[:, i]) for i, (name, unit) in enumerate(UNITS.items())}
        return import_pandas().DataFrame({**columns, "y": TARGET_UNIT * (1 + y)})

    name = f"1 − R² = {unexplained:g}, n = {rows:,}"
    return DataSet(name, "made up", load, "y ~ tiny + plain + huge", sites=2 if rows < 1000 else 5)


def compare_extremes(say: Say, rows: Sequence[int] = ROWS) -> list[Row]:
    """Every combination beside quadrature."""
    found = []
    for number in rows:
        for unexplained in UNEXPLAINED:
            found.append(compare(make(unexplained, number), draws=False))
            say(found[-1].data.name)
    return found


def run_extremes(say: Say) -> None:
    say(extremes(compare_extremes(say)))
