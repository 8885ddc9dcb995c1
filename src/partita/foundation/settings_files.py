"""Settings files: TOML in sections, read into frozen dataclasses; complaints name the file, the line and the key."""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from partita.errors import ConfigError, InputError
from partita.foundation.files import MOST_SETTINGS, read_file
from partita.foundation.foreign import parse_toml
from partita.foundation.text import clean

Table = dict[str, Any]
Kind = TypeVar("Kind")
# Characters of a key that is looked for in the file, or guessed at.
MOST_NAME = 200
# What msgspec calls the kinds of values, in the words of whoever writes a file.
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text in quotes",
    "array": "a list",
    "object": "a section",
}


def read_settings_file(path: Path) -> tuple["SettingsFile", Table]:
    """What a TOML file says, and the file itself, which turns its tables into settings."""
    try:
        text = read_file(path, MOST_SETTINGS).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise ConfigError(f"{path}: {reason}") from None
    try:
        return SettingsFile(path, text), parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


class SettingsFile:
    """Turns the tables of a file into settings. Without a text, what is complained of has no line."""

    def __init__(self, path: Path, text: str = ""):
        self.path, self._lines = path, text.splitlines()

    def check_sections(self, tables: Table, sections: Sequence[str], keys: Sequence[str] = ()) -> None:
        """Check that there are only these sections and keys, and that sections are sections."""
        self.check_keys("", tables, (*sections, *keys))
        for name in sections:
            if not isinstance(tables.get(name, {}), dict):
                raise self.error("", name, f"expected a section [{name}]")

    def check_keys(self, section: str, table: Table, known: Iterable[str]) -> None:
        """Check that a section has only keys that somebody knows."""
        known = list(known)
        for key in table:
            if key not in known:
                hint = _meant(key, known) or f": known are {', '.join(known)}"
                raise self.error(section, key, f"is not a known key{hint}")

    def build(self, section: str, kind: type[Kind], table: Table) -> Kind:
        """A dataclass from a section: msgspec reads its annotations, the class itself checks ranges."""
        hints, fields = get_type_hints(kind), dataclasses.fields(kind)  # type: ignore[arg-type]
        values = self.convert(section, table, {field.name: hints[field.name] for field in fields})
        try:
            return kind(**values)
        except InputError as error:
            raise ConfigError(f"{self.path}: [{section}] {error}") from None

    def build_named(self, section: str, registry: Mapping[str, type[Kind]], table: Table, default: str) -> Kind:
        """A dataclass that the section chooses by its key `name`."""
        name = self.read_name(section, registry, table, default)
        return self.build(section, registry[name], without_name(table))

    def read_name(self, section: str, registry: Iterable[str], table: Table, default: str | None = None) -> str:
        """Which of a registry the key `name` of a section means."""
        name, known = table.get("name", default), list(registry)
        if not isinstance(name, str) or name not in known:
            given = "is missing" if name is None else f"{name!r} is not known"
            raise self.error(section, "name", f"{given}: use one of {', '.join(known)}{_meant(name, known)}")
        return name

    def convert(self, section: str, table: Table, annotations: Mapping[str, Any]) -> Table:
        """The values of a section, checked by their annotations; a list becomes a tuple where that is wanted."""
        self.check_keys(section, table, annotations)
        return {key: self._convert(section, key, value, annotations[key]) for key, value in table.items()}

    def _convert(self, section: str, key: str, value: Any, annotation: Any) -> Any:
        try:
            converted = msgspec.convert(value, _without_named_tuples(annotation))
        except (ValueError, OverflowError) as error:
            # A `ValidationError`; or what text that is no Unicode, and numbers that no float is, make of msgspec.
            if str(error).startswith("Invalid enum value"):
                # The class that is made of it says which words it knows.
                return value
            raise self.error(section, key, f"{_in_words(str(error))}, got {clean(repr(value))}") from None
        # Otherwise as it is written: 1 stays 1 where it could be 1.0, because runs are told apart by their settings.
        return tuple(value) if isinstance(converted, tuple) else value

    def error(self, section: str, key: str, problem: str) -> ConfigError:
        """An error about a key, with the line that it is in."""
        name = f"[{section}] {clean(key)}" if section else clean(key)
        line = self._line(section, key)
        return ConfigError(f"{self.path}{f':{line}' if line else ''}: {name} {problem}")

    def _line(self, section: str, key: str) -> int | None:
        current = ""
        if len(key) > MOST_NAME:
            return None
        for number, line in enumerate(self._lines, 1):
            if header := re.match(r"\s*\[([^\[\]]+)\]", line):
                current = header[1].strip()
                if not section and current == key:
                    return number
            elif current == section and re.match(rf"\s*{re.escape(key)}\s*=", line):
                return number
        return None


def _without_named_tuples(annotation: Any) -> Any:
    """A union without its named tuples, such as Optax's: msgspec would read a list as one, but only code makes them."""
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    return reduce(or_, (kind for kind in get_args(annotation) if not _is_named_tuple(kind)))


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def without_name(table: Table) -> Table:
    """What a section says beside its `name`."""
    return {key: value for key, value in table.items() if key != "name"}


def _meant(name: Any, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(str(name)[:MOST_NAME], known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _in_words(problem: str) -> str:
    """What msgspec expected, without what came and where inside.

    >>> _in_words("Expected `int | null`, got `str`")
    'expected a whole number'
    """
    found = re.match(r"Expected `([^`]+)`([^,]*?)(, got|\s-\sat|$)", problem)
    if found is None:
        return f"cannot be used ({problem})"
    kinds = [_WORDS.get(kind, kind) for kind in found[1].split(" | ") if kind != "null"]
    return f"expected {' or '.join(kinds)}{found[2]}"
