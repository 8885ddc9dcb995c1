"""Every data set by name: what it is, and what loads it. A new one is a file in this folder and a line here."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import numpy as np

from partita.datasets.banana import read_banana
from partita.datasets.mnist import read_mnist
from partita.datasets.places import Data, Folder, Split
from partita.datasets.robot_arms import read_wam, simulate_arm
from partita.errors import InputError


@dataclass(frozen=True)
class DataSet:
    """A data set. One that is published in two parts has `load_split`; others have `load`, which needs no file."""

    words: str
    load: Callable[[], Data] | None = None
    load_split: Callable[[Folder], Split] | None = None


def _load_embedded(name: str) -> Data:
    X, y = getattr(import_module("sklearn.datasets"), f"load_{name}")(return_X_y=True)
    return np.asarray(X), np.asarray(y)


REGISTRY: dict[str, DataSet] = {
    "breast-cancer": DataSet("569 tumours, 30 measurements, benign or not", partial(_load_embedded, "breast_cancer")),
    "diabetes": DataSet("442 patients, 10 measurements, progression", partial(_load_embedded, "diabetes")),
    "digits": DataSet("1,797 images of 8 × 8 pixels from 0 to 16, ten digits", partial(_load_embedded, "digits")),
    "simulated-arm": DataSet("a planar arm with two links, and the torques that move it", simulate_arm),
    "wine": DataSet("178 wines, 13 measurements, three growers", partial(_load_embedded, "wine")),
    "mnist": DataSet("70,000 images of 28 × 28 pixels from 0 to 1, ten digits", load_split=read_mnist),
    "banana": DataSet("5,300 points of two crescents", load_split=read_banana),
    "barrett-wam": DataSet("15,000 positions of an arm with seven joints, and their torques", load_split=read_wam),
}
NAMES = tuple(REGISTRY)
WITH_SPLIT = tuple(name for name, data in REGISTRY.items() if data.load_split is not None)


def load(name: str, folder: Folder = None) -> Data:
    """A public data set as (X, y): one of scikit-learn's embedded ones, as it is published, or one from files.

    "simulated-arm" is made here: a planar arm with two links, and the torques that move it. "banana" and "barrett-wam"
    are read from files banana/ and barrett_wam.mat, training part first.

    MNIST has 70,000 rows of 784 pixels, float32 from 0 to 1, and labels from 0 to 9. The first 60,000 rows are the
    published training part. The file mnist.npz is looked for in `folder`, then in the folder that the environment
    variable PARTITA_DATA names, then in the user's cache, where it is downloaded to if it is in none of them.
    """
    data = find_data(name)
    if data.load is not None:
        return data.load()
    (X, y), (X_test, y_test) = load_split(name, folder)
    return np.concatenate([X, X_test]), np.concatenate([y, y_test])


def load_split(name: str, folder: Folder = None) -> Split:
    """The published training and test part of a data set, each as (X, y); see `load`."""
    data = find_data(name)
    if data.load_split is None:
        raise InputError(f"data set {name!r} has no published split: use train_test(load({name!r}))")
    return data.load_split(folder)


def find_data(name: str) -> DataSet:
    if not isinstance(name, str) or name not in REGISTRY:
        raise InputError(f"data set {name!r} is not known: use one of {', '.join(NAMES)}")
    return REGISTRY[name]
