"""Settings in plain words, to tell one run from another, and to say where two of them differ."""

import dataclasses
import functools
import hashlib
import inspect
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from partita.foundation.text import clean

# Places where two descriptions differ that are told, and characters of each value.
MOST_TOLD, MOST_SHOWN = 5, 60


def describe(value: Any, seen: frozenset[int] = frozenset()) -> Any:
    """A plain description of settings, to tell one run from another: arrays by digest, functions by what they do.

    Two functions are told apart by their code, constants, defaults, closures and the globals that they use; not by
    what the functions that they call do, if those are not Python's own.
    """
    if id(value) in seen:
        return "…"
    if isinstance(value, str | int | float | bool | None):
        return value
    inside = seen | {id(value)}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        return f"{array.dtype}{list(array.shape)}:{hashlib.sha256(array.tobytes()).hexdigest()[:16]}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: describe(getattr(value, field.name), inside) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, dict):
        return {str(key): describe(item, inside) for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, tuple | list):
        return [describe(item, inside) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(str(describe(item, inside)) for item in value)
    if isinstance(value, types.CodeType):
        constants = [describe(constant, inside) for constant in value.co_consts]
        return [hashlib.sha256(value.co_code).hexdigest()[:16], constants, list(value.co_names)]
    if isinstance(value, functools.partial):
        return ["partial", *(describe(part, inside) for part in (value.func, value.args, value.keywords))]
    return _describe_callable(value, inside) if callable(value) else type(value).__name__


def _describe_callable(value: Any, seen: frozenset[int]) -> Any:
    value = inspect.unwrap(value)
    if not isinstance(value, types.FunctionType):
        return getattr(value, "__qualname__", type(value).__name__)
    used = {name: value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__}
    plain = {name: item for name, item in used.items() if not isinstance(item, types.ModuleType | type)}
    closure = [cell.cell_contents for cell in value.__closure__ or ()]
    parts = (value.__code__, closure, value.__defaults__, value.__kwdefaults__, plain)
    return [value.__qualname__, *(describe(part, seen) for part in parts)]


def differences(stored: Any, current: Any) -> str:
    """Where two descriptions differ, in words; what is long is cut.

    >>> differences({"solver": {"steps": 30}, "seed": 0}, {"solver": {"steps": 20}, "seed": 0})
    'solver.steps (30 there, 20 here)'
    """
    found = []
    for place, one, other in _unlike(stored, current, ""):
        found.append(f"{clean(place)} ({_short(one)} there, {_short(other)} here)")
        if len(found) > MOST_TOLD:
            return ", ".join([*found[:MOST_TOLD], "…"])
    return ", ".join(found)


def _unlike(stored: Any, current: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(stored, dict) and isinstance(current, dict):
        for key in [*stored, *(key for key in current if key not in stored)]:
            yield from _unlike(stored.get(key), current.get(key), f"{place}.{key}" if place else str(key))
    elif isinstance(stored, list) and isinstance(current, list) and len(stored) == len(current):
        for number, (one, other) in enumerate(zip(stored, current, strict=True)):
            yield from _unlike(one, other, f"{place}[{number}]")
    elif stored != current:
        yield place, stored, current


def _short(value: Any) -> str:
    return "nothing" if value is None else clean(value, MOST_SHOWN)
