"""Images for studies of networks, and an optimiser for these."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import optax

from partita import datasets
from partita.datasets.npz import read_arrays
from partita.errors import InputError
from partita.families import Family
from partita.foundation.plain import Row
from partita.metrics import classification
from partita.models import Network
from partita.predictive import expected_response

# What a file of data of one's own has, and how many bytes at most.
NAMES = ("X", "y", "X_test", "y_test")
LARGEST = 2**30


@dataclass(frozen=True)
class Images:
    """Training and test images with labels: MNIST, or scikit-learn's digits where a quick look is enough."""

    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]

    @classmethod
    def load(cls, name: str, folder: Path | None = None, rows: int | None = None, validate: bool = False) -> "Images":
        """Load a data set; of its training part only `rows` random ones, if that is given.

        With `validate`, a sixth of the training part takes the place of the test set: settings are chosen on it.
        """
        if name == "mnist":
            train, test = datasets.load_split("mnist", folder)
        else:
            X, y = datasets.load(name)
            train, test = datasets.train_test((X / X.max(), y), share=0.2)
        return cls(train, test)._shuffled(rows, validate)

    @classmethod
    def read(cls, path: Path, validate: bool = False) -> "Images":
        """Data of one's own, from an .npz file with `X`, `y`, `X_test` and `y_test`; classes are 0, 1, …"""
        X, y, X_test, y_test = read_arrays(path, NAMES, LARGEST).values()
        for rows, labels in ((X, y), (X_test, y_test)):
            is_table = rows.ndim == 2 and len(rows) > 0 and rows.dtype.kind in "fiu"
            if not is_table or labels.shape != rows.shape[:1] or labels.dtype.kind not in "iu" or labels.min() < 0:
                raise InputError(f"{path}: expected a table of numbers, and a class 0, 1, … for each row")
        train, test = ((rows.astype(np.float32), labels.astype(int)) for rows, labels in ((X, y), (X_test, y_test)))
        own = cls(train, test)
        return own._shuffled(None, validate) if validate else own

    def _shuffled(self, rows: int | None, validate: bool) -> "Images":
        """In another order; of the training part only so many rows, and with `validate` some of it as test set."""
        train, test = self.train, self.test
        order = np.random.default_rng(0).permutation(len(train[1]))
        if validate:
            held_out, order = order[: len(order) // 6], order[len(order) // 6 :]
            test = (train[0][held_out], train[1][held_out])
        order = order[:rows]
        return Images((train[0][order], train[1][order]), test)

    def score(self, model: Network, posterior: Family) -> Row:
        """Error, negative log likelihood and calibration error on the test images, from 32 draws of the weights."""
        return classification(expected_response(model, posterior, self.test[0], 32), self.test[1])

    def score_training(self, model: Network, posterior: Family) -> Row:
        """Error and negative log likelihood on as many of the training images, which are in a random order."""
        X, y = (part[: len(self.test[1])] for part in self.train)
        found = classification(expected_response(model, posterior, X, 32), y)
        return {f"train_{name}": found[name] for name in ("error", "nll")}

    def network(self, hidden: Sequence[int], **settings: Any) -> Network:
        return Network([self.train[0].shape[1], *hidden, int(self.train[1].max()) + 1], **settings)


@lru_cache
def decaying_adam(rate: float, steps: int) -> optax.GradientTransformation:
    """Adam whose rate falls to zero, as that of natural gradients does: what is left is the solvers' difference.

    The same object for the same numbers, so that programs are compiled once.
    """
    # Free energies are sums over rows: gradients as small as eps are rounding, which Adam would make whole steps of.
    return optax.adam(optax.cosine_decay_schedule(rate, steps), eps=1e-4)
