"""Checks of plain settings, and of what is installed: what was expected, what came."""

import math
from collections.abc import Collection
from importlib import import_module
from numbers import Integral, Real
from typing import Any

from partita.errors import InputError, MissingExtra


def is_whole(value: Any, least: int = 1) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_number(value: Any) -> bool:
    """A finite one; whole numbers beyond all floats are none."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def check_count(place: str = "", **values: Any) -> None:
    """Whole numbers of at least 1."""
    for name, value in values.items():
        if not is_whole(value):
            raise InputError(f"{place}{name}: expected a whole number of at least 1, got {value!r}")


def check_positive(place: str = "", **values: Any) -> None:
    for name, value in values.items():
        if not (is_number(value) and value > 0):
            raise InputError(f"{place}{name}: expected a positive number, got {value!r}")


def check_not_negative(place: str = "", **values: Any) -> None:
    for name, value in values.items():
        if not (is_number(value) and value >= 0):
            raise InputError(f"{place}{name}: expected a number of at least 0, got {value!r}")


def check_seed(place: str = "", **values: Any) -> None:
    """Whole numbers that begin something random."""
    for name, value in values.items():
        if not is_whole(value, 0) or value >= 2**32:
            raise InputError(f"{place}{name}: expected a whole number from 0 to 2**32 - 1, got {value!r}")


def check_one_of(place: str, known: Collection[str], **values: Any) -> None:
    """Names that are known; anything else than a name, such as a list, is refused in the same words."""
    for name, value in values.items():
        if not isinstance(value, str) or value not in known:
            raise InputError(f"{place}{name}: expected one of {', '.join(known)}, got {value!r}")


def check_share(place: str = "", **values: Any) -> None:
    """Numbers in (0, 1]."""
    for name, value in values.items():
        if not (is_number(value) and 0 < value <= 1):
            raise InputError(f"{place}{name}: expected a number in (0, 1], got {value!r}")


def check_level(level: Any) -> None:
    """The probability of an interval."""
    if not (is_number(level) and 0 < level < 1):
        raise InputError(f"level: expected a number between 0 and 1, got {level}")


def import_extra(module: str, package: str, extra: str) -> Any:
    """A module of a package that an extra installs, or an error that says how to get it."""
    try:
        return import_module(module)
    except ImportError:
        how = f"pip install '.[{extra}]' in Partita's repository"
        raise MissingExtra(f"{package} is not installed: it comes with the extra {extra}: {how}") from None
