"""What all estimators share: seeds, listeners, names of columns, and how rows and labels are checked."""

import os
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from partita.errors import InputError
from partita.foundation.fields import items, text
from partita.foundation.frames import check_columns
from partita.shards import as_numbers, check_rows
from partita.telemetry import Callback, JsonLines, Progress, check_callbacks

Path = str | os.PathLike[str]
Arrays = dict[str, np.ndarray]


class Estimator(BaseEstimator):  # type: ignore[misc, unused-ignore]
    """What all estimators share."""

    random_state: int | None
    verbose: bool
    quiet: bool
    n_features_in_: int
    feature_names_in_: np.ndarray

    @property
    def _seed(self) -> int:
        return 0 if self.random_state is None else int(self.random_state)

    def _listeners(self, callbacks: Sequence[Callback]) -> list[Callback]:
        """Those who were given, and progress.

        Progress is shown from the beginning if asked for, else after two seconds; not at all where nobody wants to hear
        of it, or where somebody is told of it already.
        """
        check_callbacks(callbacks)
        if self.quiet or any(isinstance(one, Progress | JsonLines) for one in callbacks):
            return list(callbacks)
        return [*callbacks, Progress(type(self).__name__, patient=not self.verbose)]

    @property
    def _column_names(self) -> list[str]:
        """The names of a frame's columns; nothing, where rows had none."""
        names: list[str] = getattr(self, "feature_names_in_", np.array([])).tolist()
        return names

    def _restore_columns(self, features: int, names: list[str]) -> Self:
        """So many columns, with the names that a file gives them, if it does."""
        self.n_features_in_ = features
        if names:
            items(text(), features)(names, "names")
            self.feature_names_in_ = np.array(names, dtype=object)
        return self


def check_inputs(estimator: Estimator, X: Any) -> np.ndarray:
    """Rows of new inputs, with the columns of those that were learnt from."""
    rows: np.ndarray = validate_data(estimator, X, reset=False, dtype=np.float64)
    return rows


def check_numbers(estimator: Estimator, X: Any, y: Any, first: bool, **more: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows and targets that are numbers; the `first` ones say how many columns there are."""
    check_columns(None, X)
    X, y = validate_data(estimator, X, y, reset=first, dtype=np.float64, y_numeric=True, **more)
    y = as_numbers(None, "y", y, np.dtype(np.float64))
    check_rows(None, {"X": X, "y": y})
    return X, y


def check_labels(estimator: Any, X: Any, y: Any, first: bool, classes: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows, and the place of every row's label among `classes_`, which the first rows or `classes` name."""
    check_columns(None, X)
    X, y = validate_data(estimator, X, y, reset=first, dtype=np.float64)
    check_rows(None, {"X": X})
    check_classification_targets(y)
    if first:
        estimator.classes_ = np.unique(y if classes is None else classes)
        if len(estimator.classes_) < 2:
            raise InputError(
                "y: expected at least 2 classes, got only one class; with partial_fit, name all of them: classes=[...]"
            )
    elif classes is not None and not np.array_equal(np.unique(classes), estimator.classes_):
        raise InputError(f"classes: cannot change within a stream, where they are {estimator.classes_.tolist()}")
    known = estimator.classes_
    unknown = np.setdiff1d(y, known).tolist()
    if unknown:
        raise InputError(
            f"y: the class {unknown[0]!r} was not named before, only {known.tolist()}: give all classes to the first "
            "partial_fit"
        )
    return X, np.searchsorted(known, y)
