"""Plain values: what JSON knows, and rows of them."""

import json
from typing import Any

import jax
import numpy as np

Row = dict[str, Any]


def to_json(row: Row) -> str:
    """Plain JSON: numbers that are not finite become null."""
    return json.dumps({key: plain(value) for key, value in row.items()}, allow_nan=False)


def plain(value: Any) -> Any:
    """Only what JSON knows."""
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        value = np.asarray(value).tolist()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
