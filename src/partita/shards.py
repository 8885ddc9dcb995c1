"""One site's data, checked and padded to a size that many sites share."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from partita.errors import ShardError
from partita.foundation.frames import check_columns, has_dates
from partita.foundation.runtime import Array

# Few rows are padded to so many at least, and to twice as many again up to the second number: every size is compiled
# anew, which takes longer than work on rows that weigh nothing.
FEWEST, MOST_DOUBLED = 64, 1024


class Shard(eqx.Module):
    """Rows of data, with a weight each. Padding repeats the first row with weight zero, so it is always valid."""

    data: Any
    weights: Array
    rows: Array

    @property
    def capacity(self) -> int:
        return self.weights.shape[0]

    def total(self, numbers: Array) -> Array:
        """The sum of one number per row, times weights; of rows with weight zero, whatever the number is, nothing."""
        return jnp.sum(jnp.where(self.weights > 0, self.weights * numbers, 0))

    def batch(self, key: Array, size: int) -> "Shard":
        """`size` rows drawn with replacement, weighted so that sums over them estimate sums over the shard."""
        index = jax.random.randint(key, (size,), 0, self.rows)
        scale = (self.rows / size).astype(self.weights.dtype)
        return self._taken(index, scale)

    def epoch_batch(self, order: Array, number: Array, size: int) -> "Shard":
        """The `number`-th batch of a shuffled pass; the last one wraps around."""
        index = order[(number * size + jnp.arange(size)) % self.rows]
        return self._taken(index, (self.rows / size).astype(self.weights.dtype))

    def shuffled(self, key: Array) -> Array:
        """A random order of the rows, padding last."""
        draw = jax.random.uniform(key, (self.capacity,))
        return jnp.argsort(jnp.where(jnp.arange(self.capacity) < self.rows, draw, 2.0))

    def shuffled_blocks(self, key: Array, size: int) -> Array:
        """All rows with whole blocks of `size` in a random order; rows that fill no block come last."""
        blocks = max(self.capacity // size, 1)
        draw = jax.random.uniform(key, (blocks,))
        order = jnp.argsort(jnp.where(jnp.arange(blocks) < self.rows // size, draw, 2.0))
        index = (order[:, None] * size + jnp.arange(size)).ravel()
        return jnp.concatenate([index, jnp.arange(blocks * size, self.capacity)])[: self.capacity]

    def part(self, number: Array, size: int) -> "Shard":
        """The `number`-th `size` rows as they are; the last part overlaps the one before it, with weight zero."""
        start = jnp.minimum(number * size, self.capacity - size)
        data, weights = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, size), (self.data, self.weights))
        return Shard(data, jnp.where(start + jnp.arange(size) >= number * size, weights, 0), jnp.asarray(size))

    def _taken(self, index: Array, scale: Array) -> "Shard":
        data = jax.tree.map(lambda a: a[index], self.data)
        return Shard(data, self.weights[index] * scale, jnp.asarray(index.shape[0]))


def make_shard(data: Any, weights: np.ndarray) -> Shard:
    """Checked data, not padded yet."""
    return Shard(data, weights, np.asarray(len(weights)))


def padded(shard: Shard, capacity: int) -> Shard:
    """The same rows, and copies of the first one with weight zero."""
    rows = int(shard.rows)
    index = np.concatenate([np.arange(rows), np.zeros(capacity - rows, np.int64)])
    weights = shard.weights[index]
    weights[rows:] = 0
    return Shard(jax.tree.map(lambda a: np.ascontiguousarray(a[index]), shard.data), weights, shard.rows)


def unpadded(shard: Shard) -> Shard:
    """The rows that were there before a shard was padded."""
    rows = int(shard.rows)
    return Shard(jax.tree.map(lambda a: a[:rows], shard.data), shard.weights[:rows], shard.rows)


def rounded(rows: int) -> int:
    """The next of four sizes per doubling, so that batches of a stream share their shapes."""
    step = max(1, 2 ** (rows.bit_length() - 3))
    return -(-rows // step) * step


def rounded_up(rows: int) -> int:
    """A coarser size, where padding costs little beside compiling: 64, 128, … 1,024, then four sizes per doubling.

    >>> [rounded_up(rows) for rows in (1, 64, 65, 1000, 1100)]
    [64, 64, 128, 1024, 1280]
    """
    return rounded(rows) if rows > MOST_DOUBLED else max(FEWEST, 1 << (rows - 1).bit_length())


def pad_rows(rows: np.ndarray) -> np.ndarray:
    """Rows, then copies of the first one up to one of few sizes: what is predicted for copies is cut off again."""
    extra = rounded_up(len(rows)) - len(rows)
    return np.concatenate([rows, np.repeat(rows[:1], extra, axis=0)]) if extra else rows


def capacities(counts: Sequence[int]) -> list[int]:
    """What to pad shards with so many rows to: a few sizes, because every size is compiled anew.

    The sizes are the largest, a quarter of it, and so on; sites move up a size where that adds less than a quarter to
    all rows together, or fewer than a thousand rows. For the same reason the largest is rounded up further where rows
    are few.
    """
    rows = np.asarray(counts)
    spare = max(1024, int(rows.sum()) // 4)
    largest = rounded(int(rows.max()))
    # A single row stays alone, because solvers know more of a likelihood of one number.
    if largest > 1 and len(rows) * rounded_up(largest) <= spare:
        largest = rounded_up(largest)
    sizes = np.array([largest])
    while sizes[0] > rows.min():
        sizes = np.concatenate([[-(-sizes[0] // 4)], sizes])
    level = np.searchsorted(sizes, rows)
    for number in range(len(sizes) - 1):
        here = level == number
        if here.sum() * sizes[number + 1] <= spare:
            level[here] = number + 1
    return [int(sizes[i]) for i in level]


def agree_on_sizes(counts: Mapping[int, int]) -> dict[int, int]:
    """What all sites of a run pad to, by site, from the numbers of their rows."""
    sites = sorted(counts)
    return dict(zip(sites, capacities([counts[site] for site in sites]), strict=True))


def padded_together(shards: Sequence[Shard]) -> list[Shard]:
    """Shards of all sites of a run, padded."""
    sizes = capacities([int(shard.rows) for shard in shards])
    return [padded(shard, size) for shard, size in zip(shards, sizes, strict=True)]


def check_rows(site: int | None, named: Mapping[str, np.ndarray]) -> None:
    """All arrays have at least one row, equally many, and are finite, as their squares are."""
    first, *others = named
    rows = len(named[first])
    if rows == 0:
        raise ShardError(site, first, "has no rows: leave the site out, or give it data")
    for name in others:
        if len(named[name]) != rows:
            raise ShardError(site, name, f"has {len(named[name])} rows where {first} has {rows}")
    for name, array in named.items():
        if not np.issubdtype(array.dtype, np.floating):
            continue
        if not np.all(np.isfinite(array)):
            place = np.argwhere(~np.isfinite(array))[0].tolist()
            raise ShardError(site, name, f"is not finite at {place}: drop or impute such rows first")
        most = float(np.sqrt(np.finfo(array.dtype).max))
        if np.abs(array).max(initial=0) > most:
            place = np.argwhere(np.abs(array) > most)[0].tolist()
            raise ShardError(site, name, f"is too large to be squared, {array[tuple(place)]:.2g} at {place}: scale it")


def check_weights(site: int | None, weights: Any, rows: int, dtype: Any) -> np.ndarray:
    """Weights of rows: missing means one each; finite, not negative, not all zero."""
    if weights is None:
        return np.ones(rows, dtype)
    array = as_numbers(site, "weights", weights, dtype)
    if array.shape != (rows,):
        raise ShardError(site, "weights", f"expected shape ({rows},), got {array.shape}")
    if not np.all(np.isfinite(array)) or np.any(array < 0) or not np.any(array > 0):
        raise ShardError(site, "weights", "must be finite, not negative and not all zero")
    return array


def as_numbers(site: int | None, name: str, value: Any, dtype: Any) -> np.ndarray:
    """An array of numbers, or an error that names the argument, or the column of a frame."""
    check_columns(site, value)
    try:
        if hasattr(value, "toarray"):
            raise TypeError("it is sparse: use toarray()")
        if np.iscomplexobj(value):
            raise TypeError("it is complex")
        if np.asarray(value).dtype.kind in "US":
            raise TypeError("it is text")
        if has_dates(value):
            raise TypeError("it holds dates: give numbers instead, such as days since the first one")
        return np.array(value, dtype)
    except (TypeError, ValueError) as error:
        raise ShardError(site, name, f"is not an array of numbers ({error})") from None
