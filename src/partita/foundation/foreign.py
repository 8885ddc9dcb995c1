"""JSON and TOML that anybody may have written: read with bounds, or refused with a ValueError that says why.

Nothing that is read here is nested deeply, has numbers that no float is, or says two things under one key; so what is
done with it afterwards ends, and cannot be told one thing while it shows another.
"""

import json
import re
import tomllib
from typing import Any

# Levels of lists and objects; digits of a whole number, so that it is a float too.
DEEPEST, MOST_DIGITS = 60, 300
# Values in one text, and characters of it.
MOST_VALUES, MOST_CHARACTERS = 5_000_000, 200_000_000
# Parts of a dotted key. Reading one takes the square of them.
MOST_PARTS = 20
_LARGEST = 10**MOST_DIGITS
_DOTTED = re.compile(
    rf"""(?<![\w\\-])(?:(?:"(?:\\.|[^"\\\n])*+"|'[^'\n]*+'|[\w-]++)[ \t]*+\.[ \t]*+){{{MOST_PARTS}}}"""
)


def parse_json(text: str | bytes) -> Any:
    """What a JSON text says, in plain values."""
    if isinstance(text, bytes):
        text = text.decode()
    _check_size(text, text.count(",") + text.count("[") + text.count("{"))
    try:
        found = _DECODER.decode(text)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    _check_depth(found)
    return found


def parse_object(text: str | bytes) -> dict[str, Any]:
    """The same of a text that has to be an object."""
    found = parse_json(text)
    if not isinstance(found, dict):
        raise ValueError("is no JSON object")
    return found


def parse_toml(text: str) -> dict[str, Any]:
    """What a TOML text says, in plain values, dates and times."""
    _check_size(text, text.count(",") + text.count("="))
    if _DOTTED.search(text):
        raise ValueError(f"has a key of {MOST_PARTS} parts or more")
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except (ValueError, OverflowError):
        raise ValueError(f"has a number of more than {MOST_DIGITS} digits") from None
    _check_depth(found)
    return found


def _check_size(text: str, values: int) -> None:
    if len(text) > MOST_CHARACTERS or values > MOST_VALUES:
        raise ValueError(f"is too long: more than {MOST_CHARACTERS} characters or {MOST_VALUES} values")


def _check_depth(found: Any) -> None:
    """Level by level; whole numbers are looked at on the way, because TOML's own reader takes any."""
    level: list[Any] = [[found]]
    for _ in range(DEEPEST):
        inside = [item for one in level for item in (one.values() if isinstance(one, dict) else one)]
        if any(type(item) is int and abs(item) > _LARGEST for item in inside):
            raise ValueError(f"has a number of more than {MOST_DIGITS} digits")
        level = [item for item in inside if isinstance(item, dict | list)]
        if not level:
            return
    raise ValueError("is nested too deeply")


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"has a number of {len(digits)} digits, at most {MOST_DIGITS} are read")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if abs(number) == float("inf"):
        raise ValueError(f"has a number beyond all floats: {digits[:40]}")
    return number


def _no_constant(name: str) -> Any:
    raise ValueError(f"has {name}, which is no JSON")


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("says two things under one key")
    return found


_DECODER = json.JSONDecoder(
    object_pairs_hook=_refuse_repeated, parse_int=_whole, parse_float=_finite, parse_constant=_no_constant
)
