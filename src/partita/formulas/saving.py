"""How a regression reads tables, in plain words that a file can hold; and back, without running anything."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from partita.errors import CorruptStorage, InputError
from partita.formulas.design import FAMILIES, Counts, Design, specified
from partita.formulas.language import Parsed, parse_terms
from partita.formulas.tables import Column
from partita.telemetry import Row, plain

NUMBERS = ("target_centre", "target_unit", "prior_scale", "noise_scale")


def pack_design(design: Design, counts: Mapping[str, Counts], digest: str) -> Row:
    """What a result of this regression carries; of the data, nothing but how many rows there were."""
    words = {
        "formula": design.formula,
        "family": design.family,
        "group": design.group,
        "columns": [[column.name, column.levels] for column in design.columns.values()],
        "left": _pack_terms(design.parsed.left),
        "right": _pack_terms(design.parsed.right),
        "names": design.names,
        "intercept": design.intercept,
        "centre": design.centre,
        "unit": design.unit,
        "mean_count": design.mean_count,
        "sites": [[name, one.rows, one.groups, one.missing] for name, one in counts.items()],
        "digest": digest,
        **{name: getattr(design, name) for name in NUMBERS},
    }
    return plain(words)


def unpack_design(path: Any, row: Any) -> tuple[Design, dict[str, Counts], str]:
    """What `pack_design` gave, checked: files are not trusted."""
    try:
        return _unpack(row)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, InputError) as error:
        raise CorruptStorage(f"{path}: does not say how tables are read: {error}") from None


def _unpack(row: Row) -> tuple[Design, dict[str, Counts], str]:
    columns = {name: Column(name, _levels(levels)) for name, levels in row["columns"]}
    parsed = parse_terms(_unpack_terms(row["left"]), _unpack_terms(row["right"]), _text_or_none(row["group"]))
    _check_columns(parsed, columns)
    spec = specified(parsed, columns)
    names = tuple(name for name in spec.column_names if name != "Intercept")
    centre, unit = (_numbers(row[name], len(names)) for name in ("centre", "unit"))
    settings: dict[str, Any] = {name: float(_numbers([row[name]], 1)[0]) for name in NUMBERS}
    positive = np.all(unit > 0) and all(settings[name] > 0 for name in ("target_unit", "prior_scale", "noise_scale"))
    if list(names) != row["names"] or row["family"] not in FAMILIES or not positive:
        raise ValueError("columns, family or units are not those of a regression")
    design = Design(
        str(row["formula"]),
        row["family"],
        parsed.group,
        columns,
        spec,
        parsed,
        names,
        "Intercept" in spec.column_names,
        centre,
        unit,
        mean_count=None if row["mean_count"] is None else float(row["mean_count"]),
        **settings,
    )
    return design, {str(name): _counts(*rest) for name, *rest in row["sites"]}, str(row["digest"])


def _pack_terms(side: Any) -> list[list[list[str]]]:
    return [[[factor.expr, factor.eval_method.value] for factor in term.factors] for term in side]


def _unpack_terms(terms: Any) -> Any:
    """One by one: to expand a formula again, as a*b*c*... is, can take any time."""
    from formulaic import SimpleFormula
    from formulaic.parser.types import Factor, Term

    made = [Term([Factor(str(expr), eval_method=str(how)) for expr, how in term]) for term in terms]
    return SimpleFormula(made, _ordering="none")


def _check_columns(parsed: Parsed, columns: Mapping[str, Column]) -> None:
    if set(parsed.names) != set(columns):
        raise ValueError("other columns than the formula's")


def _levels(levels: Any) -> tuple[str, ...] | None:
    return None if levels is None else tuple(map(str, levels))


def _text_or_none(text: Any) -> str | None:
    return None if text is None else str(text)


def _numbers(values: Any, size: int) -> np.ndarray:
    numbers = np.asarray(values, float)
    if numbers.shape != (size,) or not np.all(np.isfinite(numbers)):
        raise ValueError(f"expected {size} finite numbers")
    return numbers


def _counts(rows: Any, groups: Any, missing: Any) -> Counts:
    return Counts(int(rows), None if groups is None else int(groups), int(missing))
