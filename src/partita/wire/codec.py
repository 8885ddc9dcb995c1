"""Questions and answers as bounded bytes, and back: every field is read as what it is declared to be, or refused."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

from partita.designs.columns import Column
from partita.designs.saving import pack_reading, unpack_reading
from partita.designs.tallies import KINDS, ColumnOutline, Cut
from partita.errors import MalformedMessage
from partita.families import Family
from partita.foundation import fields as checks
from partita.foundation.foreign import parse_object
from partita.foundation.text import clean
from partita.wire import questions as known
from partita.wire.messages import HEADER, name_leaves, pack, read_density, unpack
from partita.wire.questions import ANSWERS, QUESTIONS, Answer, Question

Arrays = dict[str, np.ndarray]
Message = TypeVar("Message", Question, Answer)
# The most bytes of plain values, and of arrays that are no densities.
MOST_PLAIN, MOST_NUMBERS = 2**24, 2**26


@dataclass(frozen=True)
class Plain:
    """A field of plain values: what they have to be, and what is made of them."""

    check: checks.Check
    make: Callable[[Any], Any] = lambda value: value
    plain: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True)
class Numbers:
    """A field of finite numbers, with so many dimensions."""

    dimensions: int
    dtype: Any = np.float64


@dataclass(frozen=True)
class NamedNumbers:
    """A field of arrays by name."""


@dataclass(frozen=True)
class Density:
    """A field that is a density, like the prior of the model that both sides know."""

    needed: bool = True


Part = Plain | Numbers | NamedNumbers | Density

COUNT, FLAG, TEXT, NAMES = (
    Plain(checks.whole()),
    Plain(checks.flag),
    Plain(checks.text()),
    Plain(checks.items(checks.text()), tuple, list),
)
MAYBE_TEXT = Plain(checks.maybe(checks.text()))
# Without a reading, None.
READING = Plain(
    checks.anything,
    lambda row: None if row is None else unpack_reading(row),
    lambda reading: None if reading is None else pack_reading(reading),
)
COLUMNS = Plain(
    checks.items(checks.items(checks.anything, 2)),
    lambda rows: tuple(_make_column(*row) for row in rows),
    lambda columns: [[column.name, None if column.levels is None else list(column.levels)] for column in columns],
)
OUTLINES = Plain(
    checks.items(
        checks.fields(
            {"name": checks.text(), "kind": checks.one_of(KINDS)},
            {"knots": checks.items(checks.number()), "levels": checks.items(checks.text())},
        )
    ),
    lambda rows: tuple(
        ColumnOutline(row["name"], row["kind"], tuple(map(float, row["knots"])), tuple(row["levels"])) for row in rows
    ),
    lambda columns: [
        {"name": one.name, "kind": one.kind, "knots": list(one.knots), "levels": list(one.levels)} for one in columns
    ],
)
CUTS = Plain(
    checks.items(
        checks.fields(
            {
                "name": checks.text(),
                "levels": checks.maybe(checks.items(checks.text())),
                "edges": checks.items(checks.number()),
                "whole": checks.flag,
            }
        )
    ),
    lambda rows: tuple(
        Cut(
            row["name"],
            None if row["levels"] is None else tuple(row["levels"]),
            tuple(map(float, row["edges"])),
            row["whole"],
        )
        for row in rows
    ),
    lambda cuts: [
        {
            "name": one.name,
            "levels": None if one.levels is None else list(one.levels),
            "edges": list(one.edges),
            "whole": one.whole,
        }
        for one in cuts
    ],
)
PAIRS = Plain(
    checks.items(checks.items(checks.text(), 2)),
    lambda pairs: tuple((first, second) for first, second in pairs),
    lambda pairs: [list(pair) for pair in pairs],
)
FEWEST = Plain(checks.whole(1))
# Arrays by name, one object for each column or pair: too many for a message to have them as its own.
TALLIES = Plain(
    checks.items(checks.entries(checks.items(checks.anything))),
    lambda rows: tuple({name: _make_numbers(name, array) for name, array in row.items()} for row in rows),
    lambda tallies: [{name: array.tolist() for name, array in tally.items()} for tally in tallies],
)
# How every field travels. Numbers alone are eight bytes, and are not listed.
PARTS: dict[type, dict[str, Part]] = {
    known.ColumnNamesAnswer: {
        "names": Plain(
            checks.maybe(checks.items(checks.text())),
            lambda names: None if names is None else tuple(names),
            lambda names: None if names is None else list(names),
        )
    },
    known.LayoutAnswer: {
        "layout": Plain(checks.entries(checks.anything)),
        "location": Numbers(1),
        "scale": Numbers(1),
        "is_gaussian": FLAG,
    },
    known.GroupsAnswer: {"codes": Numbers(1, np.int64), "largest": COUNT},
    known.DigestAnswer: {"digest": TEXT},
    known.Evaluate: {
        "posterior": Density(),
        "hyper": Plain(
            checks.entries(checks.number()), plain=lambda hyper: {name: float(value) for name, value in hyper.items()}
        ),
        "factor": Density(needed=False),
    },
    known.Levels: {"names": NAMES, "categorical": NAMES, "group": MAYBE_TEXT, "weights": MAYBE_TEXT},
    known.LevelsAnswer: {"columns": COLUMNS, "rows": COUNT, "alike_groups": COUNT},
    known.Rows: {"reading": READING},
    known.RowsAnswer: {
        "rows": COUNT,
        "groups": Plain(checks.maybe(checks.whole())),
        "missing": COUNT,
        "largest_group": COUNT,
        "digest": TEXT,
        "two_valued": Plain(checks.items(checks.flag), tuple, list),
    },
    known.Moments: {"reading": READING},
    known.MomentsAnswer: {
        "count": Plain(checks.number(0)),
        **dict.fromkeys(("mean", "total", "size", "target_mean", "target_total", "target_size"), Numbers(1)),
    },
    known.Products: {"used": Numbers(1, np.int64), "centre": Numbers(1), "unit": Numbers(1), "reading": READING},
    known.ProductsAnswer: {"products": Numbers(2)},
    known.Predict: {
        "reading": READING,
        "seed": COUNT,
        "coefficients": Numbers(2),
        "others": NamedNumbers(),
    },
    known.PredictAnswer: {"rows": COUNT, "sums": NamedNumbers()},
    known.Outline: {"names": NAMES, "categorical": NAMES, "fewest": FEWEST},
    known.OutlineAnswer: {"columns": OUTLINES, "rows": COUNT},
    known.Tabulate: {"columns": CUTS, "by": MAYBE_TEXT, "crosses": PAIRS, "fewest": FEWEST},
    known.TabulateAnswer: {
        "rows": COUNT,
        "parts": Numbers(1, np.int64),
        "sizes": Numbers(1, np.int64),
        "tallies": TALLIES,
    },
}
# Answers that are one number.
SCALARS: dict[type, str] = {known.AboutAnswer: "rows", known.EvaluateAnswer: "value"}


def encode_question(question: Question) -> bytes:
    """A question as bytes, without its name."""
    return b"" if not fields(question) else _encode(question.name, question)  # type: ignore[arg-type]


def decode_question(name: str, payload: bytes, like: Family | None = None) -> Question:
    """The inverse, for densities of the shapes of `like`, where the model is known."""
    if name not in QUESTIONS:
        raise MalformedMessage(f"question {clean(name)!r}: is not known here: compare Partita versions on both sides")
    kind = QUESTIONS[name]
    if kind not in PARTS:
        return kind()
    return _decode(name, kind, payload, like)


def encode_answer(question: type[Question], answer: Answer) -> bytes:
    """An answer to a question of this kind as bytes."""
    if (scalar := SCALARS.get(type(answer))) is not None:
        return np.float64(getattr(answer, scalar)).tobytes()
    return _encode(question.name, answer)


def decode_answer(question: type[Question], payload: bytes, like: Family | None = None) -> Answer:
    """The inverse."""
    kind = ANSWERS[question]
    if kind not in SCALARS:
        return _decode(question.name, kind, payload, like)
    if len(payload) != 8:
        raise MalformedMessage(f"{question.name}: expected a number in eight bytes, got {len(payload)} bytes")
    return kind(**{SCALARS[kind]: float(np.frombuffer(payload, "<f8")[0])})


def check_fields(answer: Answer) -> None:
    """Check that every field of an answer is what it is declared to be, however it came here; a ValueError, if not."""
    if (scalar := SCALARS.get(type(answer))) is not None:
        value = getattr(answer, scalar)
        if isinstance(value, bool) or not isinstance(value, int | float | np.floating | np.integer):
            raise ValueError(f"{scalar}: expected a number, got {type(value).__name__}")
        return
    for key, part in PARTS[type(answer)].items():
        value = getattr(answer, key)
        match part:
            case Plain():
                _check_plain(key, part, value)
            case Numbers():
                _check_kind(key, value, part.dimensions, part.dtype)
            case NamedNumbers():
                for name, array in value.items():
                    _check_kind(name, array, np.ndim(array), np.float64)


def _check_plain(key: str, part: Plain, value: Any) -> None:
    """Check that plain values can be sent, and be read again."""
    try:
        plain = part.plain(value)
        part.check(plain, key)
        part.make(plain)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{key}: {error}") from None


def _check_kind(key: str, array: Any, dimensions: int, dtype: Any) -> None:
    """As `_check_numbers`, for numbers of any width."""
    if not isinstance(array, np.ndarray) or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ValueError(f"{key}: expected an array of {np.dtype(dtype)}, got {getattr(array, 'dtype', type(array))}")
    _check_numbers(key, array.astype(dtype, copy=False), dimensions, dtype)


def largest_message(kind: type[Question] | type[Answer], like: Family | None) -> int:
    """How many bytes a question or an answer of this kind may have."""
    if kind in SCALARS:
        return 8
    parts = PARTS.get(kind, {}).values()
    densities = sum(isinstance(part, Density) for part in parts) * (0 if like is None else like.nbytes)
    numbers = MOST_NUMBERS * any(isinstance(part, Numbers | NamedNumbers) for part in parts)
    plain = MOST_PLAIN * any(isinstance(part, Plain) for part in parts)
    return 8 + HEADER + densities + numbers + plain


def _encode(name: str, message: Question | Answer) -> bytes:
    plain: dict[str, Any] = {}
    arrays: Arrays = {}
    for key, part in PARTS[type(message)].items():
        value = getattr(message, key)
        match part:
            case Plain():
                plain[key] = part.plain(value)
            case Numbers():
                arrays[key] = np.asarray(value, part.dtype)
            case NamedNumbers():
                arrays |= {f"{key}.{inner}": np.asarray(array, np.float64) for inner, array in value.items()}
            case Density() if value is not None:
                arrays |= name_leaves(key, value)
    text = json.dumps(plain, sort_keys=True, allow_nan=False).encode()
    if len(text) > MOST_PLAIN:
        raise MalformedMessage(f"{name}: has {len(text):,} bytes of names and levels, more than {MOST_PLAIN:,}")
    return pack(name, {}, {**arrays, "plain": np.frombuffer(text, np.uint8)})


def _decode(name: str, kind: type[Message], payload: bytes, like: Family | None) -> Message:
    _, arrays = unpack(name, payload, largest_message(kind, like))
    try:
        plain = parse_object(arrays.pop("plain").tobytes())
        return kind(**{key: _read_part(key, part, plain, arrays, like) for key, part in PARTS[kind].items()})
    except MalformedMessage:
        raise
    except Exception as error:
        # Designs go through formulaic too, whose errors are of many kinds.
        raise MalformedMessage(f"{name}: cannot be read: {clean(error)}") from error


def _read_part(key: str, part: Part, plain: Mapping[str, Any], arrays: Arrays, like: Family | None) -> Any:
    match part:
        case Plain():
            part.check(plain[key], key)
            return part.make(plain[key])
        case Numbers():
            return _check_numbers(key, arrays[key], part.dimensions, part.dtype)
        case NamedNumbers():
            own = {name.removeprefix(f"{key}."): array for name, array in arrays.items() if name.startswith(f"{key}.")}
            return {name: _check_numbers(name, array, array.ndim, np.float64) for name, array in own.items()}
        case Density():
            if not part.needed and f"{key}.0" not in arrays:
                return None
            if like is None:
                raise ValueError(f"{key}: a density is of a model, and no model is known here yet")
            return read_density(key, arrays, like)


def _check_numbers(key: str, array: np.ndarray, dimensions: int, dtype: Any) -> np.ndarray:
    if array.dtype != dtype or array.ndim != dimensions or not np.all(np.isfinite(array)):
        raise ValueError(
            f"{key}: expected finite numbers, {np.dtype(dtype)} in {dimensions} dimensions, "
            f"got {array.dtype} of shape {array.shape}"
        )
    return array


def _make_column(name: Any, levels: Any) -> Column:
    checks.text()(name, "column")
    checks.maybe(checks.items(checks.text()))(levels, "levels")
    return Column(name, None if levels is None else tuple(levels))


def _make_numbers(name: str, items: list[Any]) -> np.ndarray:
    """Numbers in a list, or in lists of one length."""
    array = np.asarray(items, float)
    if array.ndim > 2 or not np.all(np.isfinite(array)):
        raise ValueError(f"{clean(name)}: expected finite numbers in one or two dimensions")
    return array
