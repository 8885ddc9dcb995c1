"""How a formula reads tables: what all sites agree on, and what each of them is told before it reads its own."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from partita.designs.columns import Column, make_example
from partita.designs.language import Parsed
from partita.designs.responses import RESPONSES, Response
from partita.errors import InputError, reason

# A dense posterior cannot have more coefficients.
MOST_COLUMNS = 10_000


@dataclass(frozen=True)
class Design:
    """What all sites agree on before they fit: columns, their levels and units, and how the formula reads them.

    Sites have told which levels their columns have, how many rows and groups there are, and means of columns and of
    squares and products around them.
    """

    formula: str
    family: str
    group: str | None
    columns: Mapping[str, Column]
    spec: Any = field(repr=False)
    parsed: Parsed = field(repr=False)
    names: tuple[str, ...]
    intercept: bool
    # The middle and the unit of each column, and of the target.
    centre: np.ndarray = field(repr=False)
    unit: np.ndarray = field(repr=False)
    target_centre: float = 0.0
    target_unit: float = 1.0
    # The mean of the targets, where a fit starts from it (`Response.keeps_mean`): that of counts.
    mean_count: float | None = None
    # Deviations of coefficients and of noise under the prior, in these units.
    prior_scale: float = 2.5
    noise_scale: float = 1.0
    # What looks wrong in the tables, in words.
    advice: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def unscaled(cls, formula: str, family: str, parsed: Parsed, columns: Mapping[str, Column]) -> "Design":
        """The design before sites have told means and deviations of columns: all units are one."""
        spec = specify(parsed, columns)
        names = tuple(name for name in spec.column_names if name != "Intercept")
        return cls(
            formula,
            family,
            parsed.group,
            columns,
            spec,
            parsed,
            names,
            "Intercept" in spec.column_names,
            centre=np.zeros(len(names)),
            unit=np.ones(len(names)),
            mean_count=0.0 if RESPONSES[family].keeps_mean else None,
        )

    def inputs(self, X: np.ndarray) -> np.ndarray:
        scaled: np.ndarray = (X - self.centre) / self.unit
        return scaled

    def targets(self, y: np.ndarray) -> np.ndarray:
        return (y - self.target_centre) / self.target_unit

    @property
    def response(self) -> Response:
        """How targets are distributed."""
        return RESPONSES[self.family]

    @property
    def target(self) -> str:
        return target_name(self.parsed)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The two levels of a target that is text, of which the second is what is predicted."""
        return target_levels(self.parsed, self.columns)


@dataclass(frozen=True)
class Reading:
    """How each site turns its table into rows: nothing in it is data.

    Args:
        design: how the formula reads columns.
        weights: the column that says how many equal observations a row stands for.
        held_out: the share of a site's rows that is not fitted; which ones, follows from the seed and the site's name.
        seed: of what is held out.
        first_groups: by site, the number of its first group, so that groups of all sites are counted through.
    """

    design: Design
    weights: str | None = None
    held_out: float = 0.0
    seed: int = 0
    first_groups: tuple[int, ...] = ()


@dataclass(frozen=True)
class Counts:
    """How much data one site has: all that is kept of them in a file."""

    rows: int
    groups: int | None
    missing: int


def target_levels(parsed: Parsed, columns: Mapping[str, Column]) -> tuple[str, ...] | None:
    """The levels of a target that is a column of text."""
    name = target_name(parsed)
    return columns[name].levels if name in columns else None


def target_name(parsed: Parsed) -> str:
    return str(parsed.left).strip().strip("`")


def specify(parsed: Parsed, columns: Mapping[str, Column]) -> Any:
    """How formulaic turns rows into columns of numbers: from levels alone."""
    from formulaic.errors import DataMismatchWarning, FormulaicError

    sizes = [math.prod(len(columns[name].levels or "1") for name in names) for names in parsed.expanded]
    if sum(sizes) > MOST_COLUMNS:
        raise InputError(f"formula: has up to {sum(sizes)} coefficients, more than {MOST_COLUMNS}: use fewer levels")
    try:
        with warnings.catch_warnings():
            # C(arm, levels=[...]) without some level would make rows of no numbers.
            warnings.simplefilter("error", DataMismatchWarning)
            return parsed.right.get_model_matrix(make_example(columns), na_action="ignore").model_spec
    except DataMismatchWarning:
        raise InputError("formula: levels=[...] of C() leaves out levels that sites have: name all of them") from None
    except (FormulaicError, NameError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"formula: cannot be evaluated: {reason(error)}") from None


def random_of_site(seed: int, site: str) -> np.random.Generator:
    """Randomness of a site: the same, whoever the other sites are and whatever their order is."""
    return np.random.default_rng([seed, *site.encode()])
