"""Columns of tables: their names and kinds, and how large their values have been in a stream."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from partita.errors import InputError, ShardError
from partita.foundation.fields import anything, fields, items, maybe, text
from partita.foundation.frames import names_of
from partita.foundation.moments import Moments

# Rows that tell how large values are; how much larger or smaller a batch may be.
FEW, FAR = 10, 100.0
# Columns of which each counts.
MANY = 20


def arrange(table: Any, names: Sequence[str] | None) -> Any:
    """A frame with its columns in this order; anything else as it is."""
    own = names_of(table)
    if names is None or own is None or own == tuple(names):
        return table
    missing, unknown = sorted(set(names) - set(own)), sorted(set(own) - set(names))
    if missing or unknown:
        lacks = [f"{', '.join(missing)} missing"] * bool(missing) + [f"{', '.join(unknown)} unknown"] * bool(unknown)
        raise InputError(f"X: expected the columns {', '.join(names)}, as in the first table: {'; '.join(lacks)}")
    return table[list(names)]


def arrange_shard(site: int, shard: Any, names: Sequence[str] | None) -> Any:
    """A site's `(X, y)`, or whatever a model takes, with the columns of a frame X in this order."""
    if not isinstance(shard, tuple | list) or not len(shard) or names is None:
        return shard
    try:
        return (arrange(shard[0], names), *shard[1:])
    except InputError as error:
        raise ShardError(site, "X", str(error).removeprefix("X: ")) from None


def warn_of_units(name: str, before: Moments, rows: np.ndarray, stacklevel: int) -> None:
    """Say so where a batch's values are of another order than all before it."""
    if before.count < FEW or not np.size(rows):
        return
    wider = before.with_rows(rows).affine.scale > FAR * before.affine.scale
    size, known = np.sqrt(np.mean(rows**2, axis=0)), np.hypot(before.mean, before.deviation)
    # A column of zeros may be a level that nobody has in this batch.
    smaller = (size > 0) & (FAR * size < known) & (len(rows) >= FEW)
    # Among very many columns, some are rare: pixels at an edge, words.
    few = max(0, wider.size - MANY) / 10
    if np.count_nonzero(wider | smaller) > few:
        warnings.warn(f"{name}: this batch is far from all before it: has it other units?", stacklevel=stacklevel)


@dataclass(frozen=True)
class Columns:
    """What a stream remembers of the columns of its tables: names, if they have any, and how large values were."""

    names: tuple[str, ...] | None = None
    inputs: Moments = field(default_factory=Moments)
    targets: Moments = field(default_factory=Moments)

    def arrange(self, shard: Any) -> Any:
        """A batch, `(X, y)` or `(X, y, weights)`, with the columns of a frame in the order of the first one's."""
        if not isinstance(shard, tuple | list) or not len(shard):
            return arrange(shard, self.names)
        if self.names and self.inputs.count and names_of(shard[0]) is None:
            warnings.warn(f"X: has no names of columns: taken as {', '.join(self.names)}, as before", stacklevel=3)
        return (arrange(shard[0], self.names), *shard[1:])

    def after(self, shard: Any, stacklevel: int = 4) -> "Columns":
        """With one more batch, which is said to be far off if it is."""
        if not isinstance(shard, tuple | list) or len(shard) not in (2, 3):
            return self
        X, y = (_numbers(part) for part in shard[:2])
        if X is None or y is None:
            return self
        warn_of_units("X", self.inputs, X, stacklevel)
        warn_of_units("y", self.targets, y, stacklevel)
        first = names_of(shard[0]) if self.inputs.count == 0 and self.names is None else self.names
        return Columns(first, self.inputs.with_rows(X), self.targets.with_rows(y))

    def settings(self) -> dict[str, Any]:
        """As plain values, to store."""
        parts = {"inputs": self.inputs, "targets": self.targets}
        values = {
            name: [part.count, np.asarray(part.mean).tolist(), np.asarray(part.total).tolist()]
            for name, part in parts.items()
        }
        return {"names": None if self.names is None else list(self.names), **values}

    @classmethod
    def from_settings(cls, settings: Any, width: int | None = None) -> "Columns":
        """The inverse of `settings`, which are checked; nothing, where nothing was stored.

        Args:
            settings: from a file.
            width: columns of inputs, if that is known.
        """
        if settings is None:
            return cls()
        fields({"names": maybe(items(text(), width)), "inputs": items(anything, 3), "targets": items(anything, 3)})(
            settings, "columns"
        )
        inputs, targets = (Moments.checked(*settings[name]) for name in ("inputs", "targets"))
        names = settings["names"]
        return cls(None if names is None else tuple(names), inputs, targets)


def _numbers(values: Any) -> np.ndarray | None:
    """Rows of numbers; None where they are not, or none, or of another shape than before, which a model refuses."""
    try:
        array = np.asarray(values, float)
    except (TypeError, ValueError):
        return None
    return array.reshape(len(array), -1) if array.ndim in (1, 2) and len(array) and np.isfinite(array).all() else None
