"""What studies of streams share: batches learnt one after the other, and how good predictions of numbers are."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from partita.foundation.plain import Row
from partita.metrics import intervals, regression
from partita.studies.pages import choose_names
from partita.studies.paper.forms import Form

KEYS = ("method", "setting", "seed", "round", "seconds", "smse", "nlpd", "coverage", "points", "free_energy")

Data = tuple[np.ndarray, np.ndarray]

# The paper's schemes, by the names that studies have for them.
FORMS = {
    "paper-private-vi": Form("private", "variational"),
    "paper-private-ml": Form("private", "ml"),
    "paper-shared-vi": Form("shared", "variational"),
    "paper-shared-ml": Form("shared", "ml"),
}
FORM_WORDS = {
    "paper-private-vi": "the paper's: private points, old values stay, a distribution over hyperparameters",
    "paper-private-ml": "the paper's: private points, old values stay, best hyperparameters",
    "paper-shared-vi": "the paper's: all points move, a distribution over hyperparameters",
    "paper-shared-ml": "the paper's: all points move, best hyperparameters",
}


def choose_methods(given: str | None, paper: bool, ours: Sequence[str], papers: Sequence[str]) -> list[str] | None:
    """The methods that `--method` names; without it the paper's with `--paper`, and else None, which is all of ours."""
    chosen = choose_names(given, [*ours, *papers])
    return list(papers) if chosen is None and paper else chosen


def learn_batches(
    model: Any, batches: Sequence[Data], learn: Callable[[Any, Data], Any]
) -> Iterator[tuple[Row, Any, Data]]:
    """Yield after every batch its round and the seconds that learning took so far, the model, and the batch."""
    seconds = 0.0
    for number, batch in enumerate(batches):
        began = time.perf_counter()
        model = learn(model, batch)
        seconds += time.perf_counter() - began
        yield {"round": number + 1, "seconds": seconds}, model, batch


def learn_numbers(model: Any, batch: Data) -> Any:
    return model.partial_fit(*batch)


def scores(mean: np.ndarray, std: np.ndarray, y: np.ndarray) -> Row:
    """Standardised mean squared error, negative log predictive density, and the share of rows in 95 % intervals."""
    return {"smse": regression(mean, y)["smse"], **intervals(mean, std, y)}
