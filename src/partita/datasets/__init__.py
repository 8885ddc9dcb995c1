"""Public data, and ways to spread data over sites."""

import os
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from partita.datasets.documents import load_documents as load_documents
from partita.datasets.mnist import Split, read_mnist
from partita.datasets.streams import read_banana, read_wam, simulated_arm
from partita.datasets.tables import load_table as load_table
from partita.errors import InputError
from partita.foundation.checks import check_count, check_positive, is_number
from partita.foundation.csv_tables import read_columns as read_columns
from partita.foundation.csv_tables import read_csv as read_csv
from partita.foundation.csv_tables import read_header as read_header

WITH_SPLIT = ("mnist", "banana", "barrett-wam")
NAMES = ("breast-cancer", "diabetes", "digits", "simulated-arm", "wine", *WITH_SPLIT)
How = Literal["iid", "by-label", "whole-labels", "dirichlet"]


def load(name: str, folder: str | os.PathLike[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """A public data set as (X, y): one of scikit-learn's embedded ones, as it is published, or one from files.

    "simulated-arm" is made here: a planar arm with two links, and the torques that move it. "banana" and "barrett-wam"
    are read from files banana/ and barrett_wam.mat, training part first.

    MNIST has 70,000 rows of 784 pixels, float32 from 0 to 1, and labels from 0 to 9. The first 60,000 rows are the
    published training part. The file mnist.npz is looked for in `folder`, then in the folder that the environment
    variable PARTITA_DATA names, then in the user's cache, where it is downloaded to if it is in none of them.
    """
    _check_name(name)
    if name == "simulated-arm":
        return simulated_arm()
    if name in WITH_SPLIT:
        (X, y), (X_test, y_test) = load_split(name, folder)
        return np.concatenate([X, X_test]), np.concatenate([y, y_test])
    from sklearn import datasets

    loaders = {
        "breast-cancer": datasets.load_breast_cancer,
        "diabetes": datasets.load_diabetes,
        "digits": datasets.load_digits,
        "wine": datasets.load_wine,
    }
    return loaders[name](return_X_y=True)


def load_split(name: str, folder: str | os.PathLike[str] | None = None) -> Split:
    """The published training and test part of a data set, each as (X, y); see `load`."""
    _check_name(name)
    if name not in WITH_SPLIT:
        raise InputError(f"data set {name!r} has no published split: use train_test(load({name!r}))")
    if name == "banana":
        return read_banana(folder)
    if name == "barrett-wam":
        return read_wam(folder)
    (X, y), (X_test, y_test) = read_mnist(folder)
    return (_unit(X), y), (_unit(X_test), y_test)


def _check_name(name: str) -> None:
    if name not in NAMES:
        raise InputError(f"data set {name!r} is not known: use one of {', '.join(NAMES)}")


def _unit(pixels: np.ndarray) -> np.ndarray:
    return np.divide(pixels, 255, dtype=np.float32)


def standardised(X: np.ndarray, like: np.ndarray | None = None) -> np.ndarray:
    """Columns with mean 0 and standard deviation 1, by the figures of `like` (X itself, if not given)."""
    X = np.asarray(X, float)
    reference = X if like is None else np.asarray(like, float)
    centre, unit, varies = _units(reference)
    return np.where(varies, (X - centre) / unit, 0.0)


def column_units(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What `standardised` subtracts from columns, and divides them by: one, where they do not vary."""
    return _units(np.asarray(X, float))[:2]


def _units(X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    centre, spread = X.mean(axis=0), X.std(axis=0)
    varies = spread > 1e-12 * np.abs(centre)
    return centre, np.where(varies, spread, 1.0), varies


def train_test(arrays: Sequence[Any], share: float = 0.2, seed: int = 0) -> tuple[tuple, tuple]:
    """A random split of equally long arrays into a training and a test part."""
    arrays = [np.asarray(array) for array in arrays]
    order = np.random.default_rng(seed).permutation(len(arrays[0]))
    held_out = max(1, round(share * len(order)))
    if not 0 < share < 1 or held_out >= len(order):
        raise InputError(f"share: expected one between 0 and 1 that leaves rows on both sides, got {share}")
    test, train = order[:held_out], order[held_out:]
    return tuple(a[train] for a in arrays), tuple(a[test] for a in arrays)


def split(
    data: Sequence[Any],
    sites: int,
    how: How = "iid",
    *,
    concentration: float = 0.3,
    sizes: Sequence[float] | float | None = None,
    seed: int = 0,
) -> list[tuple[np.ndarray, ...]]:
    """Spread the rows of equally long arrays over sites; weights, if given, go along.

    Args:
        data: `(X, y)` or `(X, y, weights)`.
        sites: how many shards to make; each gets at least one row.
        how: "iid" at random; "by-label", sorted by y and cut so that a site has few labels; "whole-labels", the labels
            dealt out in turn, so that a site has all rows of its labels or, if there are more sites than labels, an
            even share of the rows of one; or "dirichlet", each label spread with proportions drawn from a Dirichlet
            distribution.
        concentration: of that Dirichlet distribution: the smaller, the more skewed.
        sizes: relative sizes of the sites, for "iid" and "by-label"; or a number, about how many times as many rows the
            last site has as the first, with sizes that grow by the same factor from site to site. Equal if not given.
        seed: of the random choices.

    >>> shards = split((np.zeros((10, 2)), np.arange(10) % 2), sites=2, how="by-label")
    >>> [np.unique(y).tolist() for _, y in shards]
    [[0], [1]]
    """
    arrays = [np.asarray(array) for array in data]
    rows = _check_split(arrays, sites, how, concentration)
    shares = _shares(sites, how, sizes)
    generator = np.random.default_rng(seed)
    order = generator.permutation(rows)
    if how == "dirichlet":
        parts = _dirichlet(arrays[1][order], sites, concentration, generator)
        parts = [order[part] for part in parts]
    elif how == "whole-labels":
        parts = [order[part] for part in _whole_labels(arrays[1][order], sites)]
    else:
        if how == "by-label":
            order = order[np.argsort(arrays[1][order], kind="stable")]
        parts = np.split(order, _cuts(rows, shares))
    return [tuple(array[np.sort(part)] for array in arrays) for part in parts]


def _check_split(arrays: list, sites: int, how: str, concentration: float) -> int:
    if how not in get_args(How):
        raise InputError(f"how: expected one of {', '.join(get_args(How))}, got {how!r}")
    if len({len(array) for array in arrays}) != 1:
        raise InputError("data: expected arrays with equally many rows")
    rows = len(arrays[0])
    check_count(sites=sites)
    check_positive(concentration=concentration)
    if not 1 <= sites <= rows:
        raise InputError(f"sites: expected a number from 1 to {rows}, the number of rows, got {sites}")
    if how != "iid" and len(arrays) < 2:
        raise InputError(f"data: {how!r} needs labels: pass (X, y)")
    return rows


def _shares(sites: int, how: str, sizes: Sequence[float] | float | None) -> np.ndarray:
    if sizes is None:
        return np.ones(sites)
    if how not in ("iid", "by-label"):
        raise InputError(f'sizes: follow from the labels if how is {how!r}: leave them out, or use "iid" or "by-label"')
    if np.ndim(sizes) == 0:
        check_positive(sizes=sizes)
        return np.geomspace(1, sizes, sites)
    shares = np.asarray(sizes)
    if shares.shape != (sites,) or not all(is_number(share) and share > 0 for share in shares):
        raise InputError(f"sizes: expected {sites} positive numbers, or one")
    return shares


def _cuts(rows: int, shares: np.ndarray) -> np.ndarray:
    """Where to cut, so that every site has at least one row."""
    ends = np.round(np.cumsum(shares) / shares.sum() * (rows - len(shares))).astype(int)
    return (ends + np.arange(1, len(shares) + 1))[:-1]


def _whole_labels(labels: np.ndarray, sites: int) -> list:
    parts: list[list[int]] = [[] for _ in range(sites)]
    names, codes = np.unique(labels, return_inverse=True)
    for code, name in enumerate(names):
        members = np.flatnonzero(codes == code)
        holders = [site for site in range(sites) if site % len(names) == code % sites]
        if len(members) < len(holders):
            raise InputError(f"sites: label {name} has {len(members)} rows for {len(holders)} sites: use fewer sites")
        for site, piece in zip(holders, np.array_split(members, len(holders)), strict=True):
            parts[site].extend(piece)
    return [np.asarray(part) for part in parts]


def _dirichlet(labels: np.ndarray, sites: int, concentration: float, generator: np.random.Generator) -> list:
    parts: list[list[int]] = [[] for _ in range(sites)]
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        shares = generator.dirichlet(np.full(sites, concentration))
        cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(int)
        for part, piece in zip(parts, np.split(members, cuts), strict=True):
            part.extend(piece)
    for part in parts:
        while not part:
            part.append(max(parts, key=len).pop())
    return [np.asarray(part) for part in parts]
