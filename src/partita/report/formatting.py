"""Numbers as people read them, on a page and on a terminal."""

import math
from typing import Any

import numpy as np

# Numbers below this are written out; larger ones have an exponent.
LARGE = 1e9
# Columns in nats, where differences of one or two matter, however large the numbers are.
NATS = ("free energy", "log evidence", "behind")


def format_value(value: Any, name: str = "") -> str:
    """A value of a table as text.

    Args:
        value: a number, a text or None.
        name: of its column, which says what unit it has.

    >>> format_value(0.01234), format_value(123456.7), format_value(2_500_000, "bytes"), format_value(None)
    ('0.0123', '123,457', '2.5 MB', '–')
    """
    if value is None:
        return "–"
    if name == "bytes" and value >= 1e9:
        return f"{value / 1e9:.1f} GB"
    if name == "bytes":
        return f"{value / 1e6:.1f} MB" if value >= 1e6 else f"{value / 1e3:.0f} kB"
    if isinstance(value, float):
        if np.isnan(value):
            return "–"
        if not np.isfinite(value):
            return "∞" if value > 0 else "–∞"
        if name in NATS:
            return f"{value:,.2f}" if abs(value) < LARGE else f"{value:.6g}"
        return f"{value:,.0f}" if 1000 <= abs(value) < LARGE else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def format_ratio(ratio: float | None) -> Any:
    """A ratio that is nearly one as text, with as many digits as tell it from one; others as they are.

    >>> format_ratio(0.99961), format_ratio(1.00001174), format_ratio(1.0)
    ('0.99961', '1.000012', 1.0)
    """
    if ratio is None or ratio == 1 or abs(ratio - 1) >= 0.01:
        return ratio
    return f"{ratio:.{min(1 - math.floor(math.log10(abs(ratio - 1))), 16)}f}"
