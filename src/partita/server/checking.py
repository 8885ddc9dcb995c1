"""What changes have to be like before a ledger looks at what they say."""

from collections.abc import Sequence

import jax
import numpy as np

from partita.errors import MalformedUpdate
from partita.families import Cone, Family
from partita.foundation.runtime import same_structure
from partita.wire.tasks import Update

# Matrices have to be symmetric up to this, relative to their largest number.
SYMMETRIC = 1e-6


def check_structure(update: Update, like: Family) -> None:
    """Refuse a change that is of another family, shape or dtype than the prior, `like`."""
    change = update.change
    if type(change) is not type(like) or not same_structure(change, like):
        raise MalformedUpdate(update.site, f"expected a change of family {type(like).__name__}")
    for i, (a, b) in enumerate(zip(jax.tree.leaves(like), jax.tree.leaves(change), strict=True)):
        kind = getattr(b, "dtype", type(b).__name__)
        if np.shape(a) != np.shape(b) or a.dtype != kind:
            problem = f"expected {a.dtype} of shape {np.shape(a)}, got {kind} of shape {np.shape(b)}"
            raise MalformedUpdate(update.site, f"change{_name(like, i)}: {problem}")


def check_values(sites: Sequence[int], changes: Family, floor: Cone) -> None:
    """Refuse stacked changes with numbers that are not finite, or with matrices that are not symmetric."""
    for i, leaf in enumerate([] if changes.is_finite() else jax.tree.leaves(changes)):
        good = np.isfinite(leaf).reshape(len(sites), -1).all(axis=1)
        if not good.all():
            raise MalformedUpdate(sites[int(np.argmin(good))], f"change{_name(changes, i)}: is not finite")
    for matrices, rounding in zip(changes.cone().definite, floor.definite, strict=True):
        size = np.abs(matrices).max(axis=(1, 2))
        gap = np.abs(matrices - np.swapaxes(matrices, 1, 2)).max(axis=(1, 2))
        good = gap <= SYMMETRIC * size + rounding.max()
        if not good.all():
            raise MalformedUpdate(sites[int(np.argmin(good))], "change: a matrix is not symmetric")


def _name(tree: Family, leaf: int) -> str:
    """The name of an array of a density, as errors call it."""
    return jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(tree)[leaf][0])
