"""The banana data: two crescents, in files that are not downloaded."""

import numpy as np

from partita.datasets.places import Data, Folder, Split, find_needed
from partita.errors import InputError

FILE = "banana"
SOURCE = "the banana benchmark of Rätsch, Onoda and Müller (2001)"


def read_banana(folder: Folder = None) -> Split:
    """400 and 4,900 rows of two inputs, with labels 0 and 1."""
    path = find_needed(FILE, folder, SOURCE)

    def part(name: str) -> Data:
        try:
            X = np.loadtxt(path / f"banana_{name}_x.txt", delimiter=",", ndmin=2)
            y = np.loadtxt(path / f"banana_{name}_y.txt", ndmin=1)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path}: expected banana_{name}_x.txt and banana_{name}_y.txt of numbers ({error})"
            ) from None
        if X.shape != (len(y), 2) or not np.all(np.abs(y) == 1):
            raise InputError(f"{path}: expected two inputs and a label -1 or 1 per row, got {X.shape} and {y.shape}")
        return X, (y > 0).astype(float)

    return part("train"), part("test")
