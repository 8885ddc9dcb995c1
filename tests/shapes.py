"""What checks shapes that are written in types, at every call: `make shapes` hands it to jaxtyping's import hook."""

from collections.abc import Callable
from typing import Any

from beartype import beartype


def check(function: Callable) -> Callable:
    """Check arguments and results that have shapes in their types; all else is mypy's business."""
    names = getattr(function, "__annotations__", {})
    shaped = {name: hint for name, hint in names.items() if "jaxtyping." in repr(hint)}
    if not shaped:
        return function
    function.__annotations__ = {name: shaped.get(name, Any) for name in names}
    return beartype(function)
