"""How far densities are from each other, in nats."""

import numpy as np

from partita.families import Family
from partita.families.cone import is_surely_inside


def divergence(first: Family, second: Family) -> float:
    """KL(first ‖ second); infinite, where the first is improper and what the formula gives is no divergence."""
    if not is_surely_inside(first.cone()):
        return np.inf
    return float(first.kl(second))
