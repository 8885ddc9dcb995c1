"""Stacks: densities of one shape as one tree whose arrays have a leading axis, one row per density."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from partita.families.base import Family


def stacked(families: Sequence[Any]) -> Any:
    """Several trees of one shape as one tree with a leading axis; a view, if it is one."""
    if len(families) == 1:
        return jax.tree.map(lambda leaf: np.asarray(leaf)[None], families[0])
    return jax.tree.map(lambda *leaves: np.stack(leaves), *families)


def rows_of(stack: Family) -> list[Family]:
    """Each row of a stack as a density of its own."""
    leaves, structure = jax.tree.flatten(stack)
    return [jax.tree.unflatten(structure, row) for row in zip(*leaves, strict=True)]


def product(stack: Family) -> Family:
    """The product of stacked densities."""
    return jax.tree.map(lambda a: a[0] if len(a) == 1 else a.sum(axis=0), stack)


def scaled(stack: Family, shares: Any) -> Family:
    """Each row of a stack to the power of its own share."""
    shares = np.asarray(shares)
    if np.all(shares == 1):
        return stack

    def rows(leaf: np.ndarray) -> np.ndarray:
        # Nothing of what is too large to be a number is nothing.
        weights = shares.reshape(-1, *[1] * (leaf.ndim - 1)).astype(leaf.dtype)
        return np.where(weights == 0, 0, leaf * weights).astype(leaf.dtype)

    return jax.tree.map(rows, stack)


def repeat(density: Family, number: int) -> Family:
    """A stack of so many copies of one density."""
    return jax.tree.map(lambda a: np.repeat(np.asarray(a)[None], number, axis=0), density)


def sums_of_others(stack: np.ndarray) -> np.ndarray:
    """For every row the sum of all others, without subtracting: those before it plus those after it."""
    before, after = np.zeros_like(stack), np.zeros_like(stack)
    np.cumsum(stack[:-1], axis=0, out=before[1:])
    after[:-1] = np.cumsum(stack[:0:-1], axis=0)[::-1]
    return before + after
