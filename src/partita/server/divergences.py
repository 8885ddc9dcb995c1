"""How far densities are from each other, in nats."""

import equinox as eqx
import numpy as np

from partita.families import Family
from partita.families.cone import is_surely_inside
from partita.foundation.runtime import Array, precision


def divergence(first: Family, second: Family) -> float:
    """KL(first ‖ second); infinite, where the first is improper and what the formula gives is no divergence."""
    if not is_surely_inside(first.cone()):
        return np.inf
    with precision(first.dtype):
        return float(_kl(first, second))


@eqx.filter_jit
def _kl(first: Family, second: Family) -> Array:
    nats: Array = first.kl(second)
    return nats
