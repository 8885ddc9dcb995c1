"""What the sites of a federation have agreed on, from what they answered before a run; it travels beside tasks."""

import json
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from partita.designs.design import Reading
from partita.designs.saving import pack_reading, unpack_reading
from partita.errors import InputError, MalformedMessage
from partita.foundation.fields import anything, fields, flag, items, maybe, number, whole
from partita.foundation.foreign import parse_object
from partita.foundation.text import clean
from partita.models import AbstractModel, NumPyroModel
from partita.models.layout import pack_layout, unpack_layout
from partita.models.program_rows import PreparedProgram

# The most bytes of it, and the most rows of a group.
MOST, MOST_ROWS = 2**24, 20_000_000
# What machines may differ by when they draw from the same prior.
ROUNDING = 1e-6
PROGRAM = fields(
    {"layout": anything, "location": items(number()), "scale": items(number(above=0)), "is_gaussian": flag}
)
AGREED = fields({"reading": anything, "program": maybe(PROGRAM), "group_rows": maybe(whole(1, MOST_ROWS))})


@dataclass(frozen=True)
class Agreed:
    """How tables are read, where a formula reads them; and of a program what it is made of, the Gaussian in the place
    of its prior, and to how many rows groups are padded."""

    reading: Reading | None = None
    program: PreparedProgram | None = None
    group_rows: int | None = None

    @classmethod
    def of(cls, model: AbstractModel, reading: Reading | None = None) -> Self | None:
        """What sites have to be told of a model and of how it reads tables; None, if that is nothing."""
        if not isinstance(model, NumPyroModel):
            return None if reading is None else cls(reading)
        return cls(reading, _prepared(model), model.group_rows)

    def settle(self, model: AbstractModel) -> AbstractModel:
        """The model that was agreed on, from one that was laid out here; an error, if it is made of something else."""
        if not isinstance(model, NumPyroModel):
            if self.program is not None or self.group_rows is not None:
                raise _unlike()
            return model
        own, given = _prepared(model), self.program
        if given is None or own.layout != given.layout or own.is_gaussian != given.is_gaussian:
            raise _unlike()
        for one, other in ((own.location, given.location), (own.scale, given.scale)):
            if one.shape != other.shape or not np.allclose(one, other, rtol=ROUNDING, atol=ROUNDING):
                raise _unlike()
        check_plate(model)
        if (self.group_rows is None) != (not model.local):
            raise _unlike()
        # Numbers as the server has them: those of this machine may differ in their last digits.
        return replace(model.with_layout(given), group_rows=self.group_rows)

    def encode(self) -> bytes:
        return json.dumps(self.pack(), sort_keys=True, allow_nan=False).encode()

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """The inverse of `encode`; whoever sent it is not trusted."""
        if len(payload) > MOST:
            raise MalformedMessage(f"agreed: has {len(payload):,} bytes, more than {MOST:,}")
        try:
            return cls.unpack(parse_object(payload))
        except Exception as error:
            # Designs go through formulaic too, whose errors are of many kinds.
            raise MalformedMessage(f"agreed: cannot be read: {clean(error)}") from error

    def pack(self) -> dict[str, Any]:
        """As plain values."""
        program = self.program
        return {
            "reading": None if self.reading is None else pack_reading(self.reading),
            "group_rows": self.group_rows,
            "program": None
            if program is None
            else {
                "layout": pack_layout(program.layout),
                "location": np.asarray(program.location).tolist(),
                "scale": np.asarray(program.scale).tolist(),
                "is_gaussian": program.is_gaussian,
            },
        }

    @classmethod
    def unpack(cls, row: Any) -> Self:
        """The inverse of `pack`, checked."""
        AGREED(row, "agreed")
        program = row["program"]
        return cls(
            None if row["reading"] is None else unpack_reading(row["reading"]),
            None
            if program is None
            else PreparedProgram(
                unpack_layout(program["layout"]),
                np.array(program["location"], float),
                np.array(program["scale"], float),
                program["is_gaussian"],
            ),
            row["group_rows"],
        )


def check_plate(model: NumPyroModel) -> None:
    """Check that a program with groups is written for one of them: sites number their own, and know no others."""
    if model.layout is not None and any(latent.length != 1 for latent in model.layout.local):
        raise InputError(
            'model: in a federation the plate of groups is written for one group, as numpyro.plate("ward", 1): no site '
            "knows the groups of others"
        )


def _prepared(model: NumPyroModel) -> PreparedProgram:
    assert model.layout is not None
    return PreparedProgram(model.layout, np.asarray(model.location), np.asarray(model.scale), model.is_gaussian)


def _unlike() -> MalformedMessage:
    return MalformedMessage(
        "agreed: this site builds another program than the one that was agreed on: compare the versions of Python, "
        "Partita and NumPyro, and the program's own, on both sides"
    )
