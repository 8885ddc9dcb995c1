"""What looks wrong in tables before anything is fitted, and what to do about it."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

# Levels that nobody wonders about; and shares of the rows from which on levels look like names of rows, or of groups.
FEW_LEVELS = 12
MOST_LEVELS_OF_GROUPS = 50
NAMES_OF_ROWS, NAMES_OF_GROUPS = 0.5, 0.2
DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([ T].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}([ T].*)?")


def find_alike(levels: Iterable[str]) -> list[tuple[str, ...]]:
    """Levels that differ by case or blanks only.

    >>> find_alike(["yes ", "Yes", "no"])
    [('yes ', 'Yes')]
    """
    found: dict[str, list[str]] = defaultdict(list)
    for level in levels:
        found["".join(level.split()).casefold()].append(level)
    return [tuple(same) for same in found.values() if len(same) > 1]


def doubt_levels(name: str, levels: Sequence[str], rows: int) -> str | None:
    """Why a column of text is hardly meant to have a coefficient for each of its levels; None, if it may be."""
    if len(levels) <= FEW_LEVELS:
        return None
    if sum(bool(DATE.fullmatch(level)) for level in levels) > len(levels) / 2:
        return (
            f"column {name!r} holds dates, which would be {len(levels)} levels with a coefficient each: make it a "
            "number, such as days since a day that all sites know"
        )
    if len(levels) > NAMES_OF_ROWS * rows:
        return (
            f"column {name!r} has {len(levels)} levels in {rows} rows, as names of rows have: leave it out, or write "
            f"(1 | {name}) if it names groups"
        )
    return None


def doubt_columns(levels: Mapping[str, Sequence[str]], expanded: Iterable[str], rows: int) -> list[str]:
    """What is said before a fit that goes on.

    Args:
        levels: of the columns that have some, at all sites together.
        expanded: the columns that have a coefficient for each level.
        rows: of all sites together.
    """
    found = [
        f"column {name!r}: {', '.join(map(repr, same))} differ by case or blanks only, and count as "
        f"{len(same)} levels: make them alike in the tables"
        for name, known in levels.items()
        for same in find_alike(known)
    ]
    for name in sorted(set(expanded) & set(levels)):
        number = len(levels[name])
        if number == 1:
            found.append(f"column {name!r} has one level only, {levels[name][0]!r}: it tells no row from another")
        elif unlikely := doubt_levels(name, levels[name], rows):
            found.append(unlikely)
        elif number > MOST_LEVELS_OF_GROUPS and number > NAMES_OF_GROUPS * rows:
            found.append(
                f"column {name!r} has {number} levels, with {rows / number:.1f} rows each: if it names groups, "
                f"(1 | {name}) learns them together"
            )
    return found
