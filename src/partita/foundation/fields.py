"""What plain values from files have to be, told field by field: a check takes a value and its place, and complains.

>>> check = fields({"site": text(), "rows": whole()})
>>> check({"site": "north", "rows": 3}, "state")
>>> check({"site": "north", "rows": -1}, "state")
Traceback (most recent call last):
ValueError: state.rows: expected a whole number of at least 0, got -1
"""

import itertools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from partita.foundation.text import clean

Check = Callable[[Any, str], None]
# The largest whole number, so that they fit into 64 bits; and the most characters of a text.
LARGEST, LONGEST = 2**63 - 1, 100_000


def anything(value: Any, place: str) -> None:
    """Whatever it is."""


def flag(value: Any, place: str) -> None:
    if not isinstance(value, bool):
        raise _unlike(place, "true or false", value)


def whole(least: int = 0, most: int = LARGEST) -> Check:
    def check(value: Any, place: str) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise _unlike(place, f"a whole number of at least {least}", value)

    return check


def number(least: float = -math.inf, above: float = -math.inf, most: float = math.inf) -> Check:
    """A finite one, of at least so much, or of more than so much."""
    words = f" of at least {least:g}" * (least > -math.inf) + f" above {above:g}" * (above > -math.inf)

    def check(value: Any, place: str) -> None:
        known = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
        if not known or not least <= value <= most or (above > -math.inf and value <= above):
            raise _unlike(place, f"a number{words}", value)

    return check


def text(most: int = LONGEST) -> Check:
    def check(value: Any, place: str) -> None:
        if not isinstance(value, str) or len(value) > most:
            raise _unlike(place, f"text of at most {most} characters", value)

    return check


def scalar(value: Any, place: str) -> None:
    """Text, a number, true or false."""
    if not isinstance(value, str | int | float | bool):
        raise _unlike(place, "text or a number", value)


def check_classes(value: Any, place: str) -> None:
    """At least two labels of one kind, each once, in their order."""
    items(scalar)(value, place)
    kinds = {str if isinstance(label, str) else float for label in value}
    if len(kinds) > 1 or len(value) < 2 or any(one >= other for one, other in itertools.pairwise(value)):
        raise ValueError(f"{place}: expected at least two labels of one kind, in order")


def one_of(known: Collection[str]) -> Check:
    def check(value: Any, place: str) -> None:
        if not isinstance(value, str) or value not in known:
            raise _unlike(place, f"one of {', '.join(known)}", value)

    return check


def maybe(inner: Check) -> Check:
    """Nothing, or that."""

    def check(value: Any, place: str) -> None:
        if value is not None:
            inner(value, place)

    return check


def items(inner: Check, size: int | None = None) -> Check:
    """A list of such values; of so many, if that is known."""
    words = "a list" if size is None else f"a list of {size}"

    def check(value: Any, place: str) -> None:
        if not isinstance(value, list) or (size is not None and len(value) != size):
            raise _unlike(place, words, value)
        for number, item in enumerate(value):
            inner(item, f"{place}[{number}]")

    return check


def entries(inner: Check) -> Check:
    """Such values by name."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise _unlike(place, "values by name", value)
        for name, item in value.items():
            inner(item, f"{place}.{clean(name)}")

    return check


def fields(needed: Mapping[str, Check], known: Mapping[str, Check] | None = None, others: Check | None = None) -> Check:
    """An object with these fields, perhaps those, and no others unless they are such."""
    rules = {**needed, **(known or {})}

    def check(value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise _unlike(place, "values by name", value)
        for name in needed:
            if name not in value:
                raise ValueError(f"{place}.{name}: is missing")
        for name, item in value.items():
            rule = rules.get(name, others)
            if rule is None:
                raise ValueError(f"{place}.{clean(name)}: is not known")
            rule(item, f"{place}.{clean(name)}")

    return check


def _unlike(place: str, expected: str, value: Any) -> ValueError:
    shown = f"a list of {len(value)}" if isinstance(value, list) else clean(repr(value), 60)
    return ValueError(f"{place}: expected {expected}, got {shown}")
