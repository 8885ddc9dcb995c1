"""Ways to spread the rows of a data set over sites, and to hold some out."""

from collections.abc import Sequence
from typing import Any, Literal, get_args, overload

import numpy as np

from partita.datasets.places import Split
from partita.errors import InputError
from partita.foundation.checks import check_count, check_one_of, check_positive, is_number

How = Literal["iid", "by-label", "whole-labels", "dirichlet"]
Arrays = tuple[np.ndarray, ...]


@overload
def train_test(arrays: tuple[Any, Any], share: float = 0.2, seed: int = 0) -> Split: ...


@overload
def train_test(arrays: Sequence[Any], share: float = 0.2, seed: int = 0) -> tuple[Arrays, Arrays]: ...


def train_test(arrays: Sequence[Any], share: float = 0.2, seed: int = 0) -> Any:
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
) -> list[Arrays]:
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
    shares = _read_sizes(sites, how, sizes)
    generator = np.random.default_rng(seed)
    order = generator.permutation(rows)
    if how == "by-label":
        order = order[np.argsort(arrays[1][order], kind="stable")]
    if how == "dirichlet":
        places = _draw_by_label(arrays[1][order], sites, concentration, generator)
    elif how == "whole-labels":
        places = _deal_labels(arrays[1][order], sites)
    else:
        places = np.split(np.arange(rows), _find_cuts(rows, shares))
    parts = [order[part] for part in places]
    return [tuple(array[np.sort(part)] for array in arrays) for part in parts]


def _check_split(arrays: Sequence[np.ndarray], sites: int, how: str, concentration: float) -> int:
    """Check what was asked for, and return the number of rows."""
    check_one_of("", get_args(How), how=how)
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


def _read_sizes(sites: int, how: str, sizes: Sequence[float] | float | None) -> np.ndarray:
    """The relative sizes of all sites."""
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


def _find_cuts(rows: int, shares: np.ndarray) -> np.ndarray:
    """Where to cut, so that every site has at least one row."""
    ends = np.round(np.cumsum(shares) / shares.sum() * (rows - len(shares))).astype(int)
    cuts: np.ndarray = ends + np.arange(1, len(shares) + 1)
    return cuts[:-1]


def _deal_labels(labels: np.ndarray, sites: int) -> list[np.ndarray]:
    """Deal labels out in turn, each whole or in even shares."""
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


def _draw_by_label(
    labels: np.ndarray, sites: int, concentration: float, generator: np.random.Generator
) -> list[np.ndarray]:
    """Spread the rows of every label by shares that are drawn for it; no site is left without a row."""
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
