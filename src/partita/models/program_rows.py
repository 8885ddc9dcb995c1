"""Rows of a NumPyro program's shard: checked, and gathered by group where groups have variables of their own."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from partita.errors import ShardError
from partita.foundation.runtime import Array
from partita.models.base import Weighted
from partita.models.layout import Layout
from partita.shards import as_numbers, check_rows, rounded


class Observed(NamedTuple):
    """A shard's rows; where there are local variables, its groups, each with as many rows as the largest."""

    arrays: Mapping[str, Array]
    # Which rows of a group are not padding, and which of the program's groups it is; None where rows have no groups.
    is_row: Any
    group: Any
    # Whether this is the site of the prior, which has no data.
    is_prior: Array


class PreparedProgram(NamedTuple):
    """What a program is made of; and the Gaussian in the place of its prior, and whether that is the prior."""

    layout: Layout
    location: np.ndarray
    scale: np.ndarray
    is_gaussian: bool


class PriorTerms(NamedTuple):
    """The shard of a site that stands for what of the prior is not Gaussian."""


def read_arrays(
    site: int, raw: Any, names: Sequence[str], dtype: np.dtype[Any], groups: Sequence[str]
) -> dict[str, np.ndarray]:
    """One array per data argument, with equally many rows; those that name groups hold whole numbers."""
    data = raw.data if isinstance(raw, Weighted) else raw
    if isinstance(data, Mapping):
        if set(data) != set(names):
            raise ShardError(site, "shard", f"expected {', '.join(names)}, got {', '.join(map(str, data))}")
    elif isinstance(data, tuple | list) and len(data) == len(names):
        data = dict(zip(names, data, strict=True))
    else:
        raise ShardError(site, "shard", f"expected ({', '.join(names)}), or a dictionary of these")
    arrays = {}
    for name in names:
        given = np.asarray(data[name])
        whole = np.issubdtype(given.dtype, np.integer) or given.dtype == np.bool_
        arrays[name] = as_numbers(site, name, given, given.dtype if whole else dtype)
        if arrays[name].ndim == 0:
            raise ShardError(site, name, "expected an array with one row per observation")
    check_rows(site, arrays)
    for argument in groups:
        if not np.issubdtype(arrays[argument].dtype, np.integer) or arrays[argument].ndim != 1:
            raise ShardError(site, argument, "names groups: expected a whole number for each row")
    return arrays


def gather_groups(arrays: Mapping[str, np.ndarray], codes: np.ndarray, length: int, group_rows: int | None) -> Observed:
    """Rows by their group, padded to so many rows each with copies of the group's first one.

    Args:
        arrays: with a row for each observation.
        codes: each row's group.
        length: of the program's plate of groups; 1, if it is written for one group.
        group_rows: what all sites pad groups to; what this site needs, if None.
    """
    known, first, index, sizes = np.unique(codes, return_index=True, return_inverse=True, return_counts=True)
    most = group_rows or rounded(int(sizes.max()))
    # Group by group: each row's place in its own.
    order = np.argsort(index, kind="stable")
    place = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen, is_row = np.repeat(first[:, None], most, axis=1), np.zeros((len(known), most), bool)
    chosen[index[order], place], is_row[index[order], place] = order, True
    gathered = {name: array[chosen] for name, array in arrays.items()}
    group = known if length > 1 else np.zeros(len(known), np.int32)
    return Observed(gathered, is_row, group, np.zeros(len(known), bool))


def stand_for_prior(layout: Layout, group_rows: int) -> Observed:
    """The row of a site without data, in the shape of the others'."""
    arrays, is_row, group = layout.empty_row(), None, None
    if layout.local:
        is_row, group = np.ones((1, group_rows), bool), np.zeros(1, np.int32)
        arrays = {name: np.repeat(array[None], group_rows, axis=1) for name, array in arrays.items()}
    return Observed(arrays, is_row, group, np.ones(1, bool))
