"""What studies of streams share: batches learnt one after the other, and how good predictions of numbers are."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from partita.foundation.plain import Row
from partita.metrics import intervals, regression

KEYS = ("method", "setting", "seed", "round", "seconds", "smse", "nlpd", "coverage", "points", "free_energy")

Data = tuple[np.ndarray, np.ndarray]


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
