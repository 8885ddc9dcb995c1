"""How a formula reads tables, as plain values for files and wires; and back, without running anything."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from partita.designs.columns import Column
from partita.designs.design import MOST_COLUMNS, Counts, Design, Reading, target_levels
from partita.designs.language import Parsed, parse_terms
from partita.designs.responses import RESPONSES
from partita.errors import CorruptStorage, reason
from partita.foundation.fields import anything, fields, flag, items, maybe, number, one_of, text, whole
from partita.foundation.plain import Row, plain

NUMBERS = ("target_centre", "target_unit", "prior_scale", "noise_scale")
# The most terms of a stored formula, which has been written out already: at least one for each column.
MOST_STORED = 2 * MOST_COLUMNS


def _pair(value: Any, place: str) -> None:
    """The name of a column, and its levels if it is text."""
    items(anything, 2)(value, place)
    text()(value[0], place)
    maybe(items(text()))(value[1], place)
    if value[1] is not None and len(set(value[1])) != len(value[1]):
        raise ValueError(f"{place}: a level is there twice")


def _site(value: Any, place: str) -> None:
    """Its name; rows, groups if there are any, and rows that miss something."""
    items(anything, 4)(value, place)
    for check, item in zip((text(), whole(), maybe(whole()), whole()), value, strict=True):
        check(item, place)


def _response(value: Any, place: str) -> None:
    """The name of a response that is registered by now."""
    one_of(tuple(RESPONSES))(value, place)


def _terms(value: Any, place: str) -> None:
    items(items(items(text(), 2)))(value, place)
    if sum(map(len, value)) + len(value) > MOST_STORED:
        raise ValueError(f"{place}: has more than {MOST_STORED} terms and factors")


PARTS = {
    # Only words: what is evaluated are the terms.
    "formula": anything,
    "family": _response,
    "group": maybe(text()),
    "columns": items(_pair),
    "left": _terms,
    "right": _terms,
    "names": items(text()),
    "intercept": flag,
    "centre": items(number()),
    "unit": items(number(above=0)),
    "mean_count": maybe(number(0)),
    "target_centre": number(),
    **dict.fromkeys(("target_unit", "prior_scale", "noise_scale"), number(above=0)),
}
DESIGN = fields(PARTS)
READING = fields(
    {
        "design": DESIGN,
        "weights": maybe(text()),
        "held_out": number(0, most=1),
        "seed": whole(0, 2**32 - 1),
        "first_groups": items(whole()),
    }
)
STORED = fields({**dict.fromkeys(PARTS, anything), "sites": items(_site), "digest": text()})


def pack_design(design: Design) -> Row:
    """A design as plain values."""
    words: Row = {
        "formula": design.formula,
        "family": design.family,
        "group": design.group,
        "columns": [[column.name, column.levels] for column in design.columns.values()],
        "left": pack_terms(design.parsed.left),
        "right": pack_terms(design.parsed.right),
        "names": design.names,
        "intercept": design.intercept,
        "centre": design.centre,
        "unit": design.unit,
        "mean_count": design.mean_count,
        **{name: getattr(design, name) for name in NUMBERS},
    }
    packed: Row = plain(words)
    return packed


def unpack_design(row: Any) -> Design:
    """What `pack_design` gave, checked: whoever sent it is not trusted."""
    DESIGN(row, "design")
    columns = {name: Column(name, _levels(levels)) for name, levels in row["columns"]}
    parsed = parse_terms(_unpack_terms(row["left"]), _unpack_terms(row["right"]), row["group"])
    _check_columns(parsed, columns, row)
    design = Design.unscaled(str(row["formula"]), row["family"], parsed, columns)
    centre, unit = (np.array(row[name], float) for name in ("centre", "unit"))
    if list(design.names) != row["names"] or {centre.shape, unit.shape} != {design.unit.shape}:
        raise ValueError("columns or units are not those of the formula")
    settings: dict[str, Any] = {name: float(row[name]) for name in NUMBERS}
    return replace(design, centre=centre, unit=unit, mean_count=row["mean_count"], **settings)


def pack_stored(design: Design, counts: Mapping[str, Counts], digest: str) -> Row:
    """What a result of a regression carries; of the data, nothing but how many rows there were."""
    sites = [[name, one.rows, one.groups, one.missing] for name, one in counts.items()]
    return {**pack_design(design), "sites": plain(sites), "digest": digest}


def unpack_stored(path: Any, row: Any) -> tuple[Design, dict[str, Counts], str]:
    """What `pack_stored` gave, checked: files are not trusted."""
    try:
        STORED(row, "design")
        design = unpack_design({name: row[name] for name in PARTS})
        return design, {name: Counts(*rest) for name, *rest in row["sites"]}, row["digest"]
    except Exception as error:
        # It goes through formulaic too.
        raise CorruptStorage(f"{path}: does not say how tables are read: {reason(error)}") from None


def pack_reading(reading: Reading) -> Row:
    """How sites read their tables, as plain values."""
    return {
        "design": pack_design(reading.design),
        "weights": reading.weights,
        "held_out": reading.held_out,
        "seed": reading.seed,
        "first_groups": list(reading.first_groups),
    }


def unpack_reading(row: Any) -> Reading:
    """What `pack_reading` gave, checked."""
    READING(row, "reading")
    return Reading(
        unpack_design(row["design"]), row["weights"], float(row["held_out"]), row["seed"], tuple(row["first_groups"])
    )


def pack_terms(side: Any) -> list[list[list[str]]]:
    return [[[factor.expr, factor.eval_method.value] for factor in term.factors] for term in side]


def _unpack_terms(terms: Any) -> Any:
    """One by one: to expand a formula again, as a*b*c*... is, can take any time."""
    from formulaic import SimpleFormula
    from formulaic.parser.types import Factor, Term

    made = [Term([Factor(expr, eval_method=how) for expr, how in term]) for term in terms]
    return SimpleFormula(made, _ordering="none")


def _check_columns(parsed: Parsed, columns: Mapping[str, Column], row: Row) -> None:
    """Check that columns are the formula's, and that counts have a mean and classes two levels."""
    if set(parsed.names) != set(columns) or len(columns) != len(row["columns"]):
        raise ValueError("other columns than the formula's")
    levels, response = target_levels(parsed, columns), RESPONSES[row["family"]]
    if levels is not None and len(levels) != response.classes:
        raise ValueError("the target's levels are not those of two classes")
    if (row["mean_count"] is not None) != response.keeps_mean:
        raise ValueError("counts, and nothing else, have a mean")


def _levels(levels: list[str] | None) -> tuple[str, ...] | None:
    return None if levels is None else tuple(levels)
