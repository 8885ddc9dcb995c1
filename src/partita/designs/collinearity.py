"""Columns that data say nothing of, as they do not vary or follow from others: from sums that sites tell, not rows."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from partita.foundation.moments import Moments, has_spread

# The share of a column's variance that others leave open, below which it follows from them; and the share of a column
# in a sum, below which it is none of the terms.
LEFT_OPEN, TERM = 1e-10, 1e-6
# Products of more columns are not asked for: they would take as much memory as the posterior.
MOST_COLUMNS = 2000
NAMES_SHOWN, COLUMNS_SHOWN = 5, 3


class Idle(NamedTuple):
    """Columns by their places: those that do not vary, and of each that follows from others, which these are."""

    flat: tuple[int, ...] = ()
    following: tuple[tuple[int, tuple[int, ...]], ...] = ()


# From the columns that vary, their middles and units, to products around those, summed over the rows of all sites.
AskProducts = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def find_idle(moments: Moments, ask_products: AskProducts, intercept: bool = True) -> Idle:
    """Which columns have coefficients that only a prior can tell.

    Every site tells its number of rows, means, and squares and products around them; with as many columns as rows each
    follows from others, and nothing is said of that.

    >>> x = np.arange(4.0)
    >>> X = np.column_stack([x, 0 * x, 2 - 3 * x])
    >>> find_idle(Moments().with_rows(X), lambda *view: multiply_columns(X, *view))
    Idle(flat=(1,), following=((2, (0,)),))
    """
    mean, deviation = np.asarray(moments.mean), moments.deviation
    varies = has_spread(mean, deviation)
    unit = deviation if intercept else np.hypot(mean, deviation)
    counts = varies if intercept else unit > 0
    used = np.flatnonzero(counts)
    flat = tuple(np.flatnonzero(~counts).tolist())
    if not 0 < len(used) < min(moments.count - intercept + 1, MOST_COLUMNS):
        return Idle(flat)
    centre = mean[used] if intercept else np.zeros(len(used))
    products = ask_products(used, centre, unit[used]) / moments.count
    following = tuple((int(used[j]), tuple(used[list(terms)].tolist())) for j, terms in _following(products))
    return Idle(flat, following)


def has_flat(moments: Moments) -> bool:
    """Whether some column does not vary."""
    return not np.all(has_spread(np.asarray(moments.mean), moments.deviation))


def multiply_columns(rows: np.ndarray, used: np.ndarray, centre: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Products of some columns with each other, in these units around these middles, summed over rows."""
    Z = (rows[:, used] - centre) / unit
    products: np.ndarray = Z.T @ Z
    return products


def describe_idle(idle: Idle, names: Sequence[str]) -> list[str]:
    """What to say of such columns, and what to do about them."""
    words = []
    if idle.flat:
        several = len(idle.flat) > 1
        its = "their coefficients" if several else "its coefficient"
        what = f"columns {_list_names(idle.flat, names)} are" if several else f"column {names[idle.flat[0]]!r} is"
        words.append(
            f"{what} the same in all rows: data say nothing of {its}, which only "
            f"the prior tells: leave {'them' if several else 'it'} out"
        )
    for column, terms in idle.following[:COLUMNS_SHOWN]:
        kind = "a multiple" if len(terms) == 1 else "a sum of multiples"
        words.append(
            f"column {names[column]!r} is {kind} of {_list_names(terms, names)} in all rows, but for a constant: data "
            "cannot tell their coefficients apart, only the prior does: leave one of them out"
        )
    rest = [column for column, _ in idle.following[COLUMNS_SHOWN:]]
    if rest:
        words.append(
            f"other columns follow from those before them in the same way, {_list_names(rest, names)}: leave them out"
        )
    return words


def _list_names(columns: Sequence[int], names: Sequence[str]) -> str:
    more = f" and {len(columns) - NAMES_SHOWN} more" if len(columns) > NAMES_SHOWN else ""
    return ", ".join(repr(names[column]) for column in columns[:NAMES_SHOWN]) + more


def _following(G: np.ndarray) -> list[tuple[int, tuple[int, ...]]]:
    """Columns that follow from those before them, by a Cholesky factorisation that leaves such columns out."""
    L, kept, found = np.zeros_like(G), list[int](), []
    for j in range(len(G)):
        k = len(kept)
        row = solve_triangular(L[:k, :k], G[kept, j], lower=True) if k else np.zeros(0)
        left = G[j, j] - row @ row
        if left > LEFT_OPEN * G[j, j]:
            L[k, :k], L[k, k] = row, np.sqrt(left)
            kept.append(j)
            continue
        share = np.abs(solve_triangular(L[:k, :k], row, lower=True, trans=1))
        found.append((j, tuple(np.asarray(kept)[share > TERM * share.max()].tolist())))
    return found
