"""What a long cell keeps on disk, so that it goes on where it was stopped: rows so far, and arrays."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from partita.datasets.npz import read_arrays
from partita.foundation.files import replace_file
from partita.foundation.plain import Row, plain

LARGEST = 10_000_000_000
ADVICE = ": delete it, and its cell begins anew"


def keep(path: Path, rows: Sequence[Row], carried: Any) -> None:
    """Put rows and the leaves of a pytree into one file, in place of what it had."""
    told = np.frombuffer(json.dumps(plain(list(rows))).encode(), np.uint8)
    leaves = {str(number): np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(carried))}
    packed = io.BytesIO()
    np.savez(packed, rows=told, **leaves)  # type: ignore[arg-type]
    replace_file(path, packed.getvalue())


def recall(path: Path, like: Any) -> tuple[list[Row], Any]:
    """The rows and the pytree that were kept, of the structure of `like`; if there are none, no rows and `like`."""
    if not path.exists():
        return [], like
    leaves, structure = jax.tree.flatten(like)
    names = [str(number) for number in range(len(leaves))]
    found = read_arrays(path, ["rows", *names], LARGEST, ADVICE)
    rows = json.loads(found["rows"].tobytes())
    return rows, jax.tree.unflatten(structure, [found[name] for name in names])
