"""What sites agree on before their tables are summed up: kinds of columns, their levels, and edges of bins."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from partita.designs.columns import sort_levels
from partita.designs.tallies import MOST_LEVELS, NUMERIC, SHARES, ColumnOutline, Cut
from partita.errors import InputError
from partita.foundation.text import clean

# Whole numbers in so wide a range have a bin each; others about so many bins of equal width, and of equal shares.
WIDEST_WHOLE, EQUAL_WIDTH, EQUAL_SHARES = 300, 40, 100


def choose_names(outlines: Mapping[str, Sequence[ColumnOutline]]) -> tuple[list[str], list[str]]:
    """The columns that all sites have, in the first one's order; and what is left out, in words."""
    own = {site: [column.name for column in columns] for site, columns in outlines.items()}
    first = next(iter(own.values()))
    shared = [name for name in first if all(name in names for names in own.values())]
    if not shared:
        raise InputError("columns: the tables have no column in common")
    left_out = sorted({name for names in own.values() for name in names} - set(shared))
    return shared, [f"{clean(name)}: left out, because not all sites have it" for name in left_out]


def agree_on_cut(name: str, outlines: Mapping[str, ColumnOutline]) -> tuple[Cut | None, str]:
    """How a column is cut at every site, None if it is left out; and what has to be said of it."""
    kinds = {site: one.kind for site, one in outlines.items() if one.kind != "nothing"}
    if not kinds:
        return Cut(name, ()), f"{clean(name)}: no site has enough rows with a value"
    if "dates" in kinds.values():
        return None, f"{clean(name)}: left out, because it holds dates: give numbers instead, such as years"
    numeric = {site: kind in NUMERIC for site, kind in kinds.items()}
    if len(set(numeric.values())) > 1:
        a, b = (next(site for site in numeric if numeric[site] is wanted) for wanted in (True, False))
        raise InputError(
            f"column {name!r}: is numbers at site {a}, text at site {b}: make them alike, or name it in `categorical`"
        )
    if all(numeric.values()):
        if set(kinds.values()) == {"two values"}:
            return Cut(name, ("0", "1")), ""
        edges = choose_edges([one.knots for one in outlines.values() if one.knots], "numbers" not in kinds.values())
        return Cut(name, None, edges, "numbers" not in kinds.values()), ""
    return _agree_on_levels(name, outlines)


def _agree_on_levels(name: str, outlines: Mapping[str, ColumnOutline]) -> tuple[Cut, str]:
    """The levels that enough rows have somewhere; of very many, those that most sites told."""
    counts = Counter(level for one in outlines.values() for level in one.levels)
    chosen = sort_levels(sorted(counts, key=lambda level: (-counts[level], level))[:MOST_LEVELS])
    if not chosen:
        return Cut(
            name, ()
        ), f"{clean(name)}: no level of it has enough rows to be told apart: is it a name, or a text?"
    more = len(counts) - len(chosen)
    return Cut(name, chosen), f"{clean(name)}: {more} levels more are counted together" if more else ""


def choose_edges(knots: Sequence[Sequence[float]], is_whole: bool) -> tuple[float, ...]:
    """Edges of bins: close together where some site has many rows."""
    if not knots:
        return ()
    low, high = min(own[0] for own in knots), max(own[-1] for own in knots)
    if is_whole and high - low <= WIDEST_WHOLE:
        return tuple(np.arange(low - 0.5, high + 1).tolist())
    if high == low:
        # Neighbours of a column that does not vary.
        away = 1e-6 * max(abs(low), 1e-6)
        return (low - away, low + away)
    shares = np.linspace(0, 1, EQUAL_SHARES + 1)
    points = np.sort(np.concatenate([np.interp(shares, SHARES, own) for own in knots]))
    # Knots are rounded: where many rows have the smallest or the largest number, it may lie a little further out.
    width = (high - low) / EQUAL_WIDTH
    even = np.linspace(low - width, high + width, EQUAL_WIDTH + 3)
    edges = np.unique(np.concatenate([even, points[:: len(knots)]]))
    if is_whole:
        edges = np.unique(np.floor(edges)) + 0.5
    apart = np.diff(edges, prepend=-np.inf) > 1e-9 * (high - low)
    return tuple(edges[apart].tolist())
