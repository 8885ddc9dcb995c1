"""A site's rows as a NumPyro program takes them: by argument, and group by group."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from partita.errors import ShardError
from partita.foundation.runtime import Array
from partita.models.base import Weighted
from partita.shards import Shard, as_numbers, check_rows, make_shard, rounded


class Observed(NamedTuple):
    """A shard's rows; where there are local variables, its groups, each with as many rows as the largest."""

    arrays: Mapping[str, Array]
    # Which rows of a group are there, and which of the program's groups it is; None, where rows have no groups.
    there: Any
    group: Any
    # Whether this is the site of the prior, which has no data.
    is_prior: Array


class PriorTerms(NamedTuple):
    """The shard of a site that stands for what of the prior is not Gaussian."""


def read_arrays(
    site: int, raw: Any, names: Sequence[str], groups: Sequence[str], dtype: np.dtype
) -> dict[str, np.ndarray]:
    """One array per data argument, with equally many rows."""
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


def arrange_groups(
    site: int, arrays: Mapping[str, np.ndarray], argument: str | None, count: int, length: int, most: int | None
) -> Shard:
    """Rows of a shard, group by group.

    Args:
        site: whose shard it is, for errors.
        arrays: all rows, by argument.
        argument: which of them names groups; None, where every row is a group of its own.
        count: how many rows there are.
        length: how many groups the program's plate has; one, if it is written for one group.
        most: to how many rows groups are padded; to their own largest, if None.
    """
    codes = np.arange(count, dtype=np.int32) if argument is None else arrays[argument].astype(np.int32)
    if length > 1 and (codes.min() < 0 or codes.max() >= length):
        words = f"groups are 0 to {length - 1}, got {codes.min()} to {codes.max()}"
        raise ShardError(site, argument or "group", words)
    known, first, index, sizes = np.unique(codes, return_index=True, return_inverse=True, return_counts=True)
    most = most or rounded(int(sizes.max()))
    # Group by group: each row's place in its own.
    order = np.argsort(index, kind="stable")
    place = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen, there = np.repeat(first[:, None], most, axis=1), np.zeros((len(known), most), bool)
    chosen[index[order], place], there[index[order], place] = order, True
    grouped = {name: array[chosen] for name, array in arrays.items()}
    group = known if length > 1 else np.zeros(len(known), np.int32)
    return make_shard(Observed(grouped, there, group, np.zeros(len(known), bool)), np.ones(len(known)))
