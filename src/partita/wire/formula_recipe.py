"""A recipe that is a formula: sites agree on levels and units first, and read their tables by it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

from partita.designs.design import Reading
from partita.designs.language import Parsed, parse
from partita.designs.regressions import rebuild_model
from partita.designs.responses import find_response
from partita.designs.saving import pack_terms
from partita.errors import InputError
from partita.foundation.checks import check_positive, import_extra, is_number
from partita.foundation.settings_files import SettingsFile, Table
from partita.models import AbstractModel
from partita.wire import questions as q
from partita.wire.agreed import Agreed
from partita.wire.base_recipe import BaseRecipe, refuse_beyond, write_text
from partita.wire.recipe import read_seed, read_solver


@dataclass(frozen=True)
class Formula:
    """The section [regression] of a federation's file: what `pt.regress` takes beside tables and settings."""

    formula: str
    family: str = "gaussian"
    prior_scale: float = 2.5
    noise_scale: float = 1.0
    held_out: float = 0.0
    weights: str | None = None

    def __post_init__(self) -> None:
        find_response(self.family)
        check_positive("", prior_scale=self.prior_scale, noise_scale=self.noise_scale)
        if not (is_number(self.held_out) and 0 <= self.held_out < 1):
            raise InputError(f"held_out: expected a share of at least 0 and below 1, got {self.held_out}")
        # Said now rather than when all sites have come.
        if self.weights in parse(self.formula).names:
            raise InputError(
                f"weights: {self.weights!r} is a column of the formula: take another for how often rows count"
            )


@dataclass(frozen=True)
class FormulaRecipe(BaseRecipe):
    """A regression by a formula."""

    wanted: Formula

    @classmethod
    def read(cls, file: SettingsFile, tables: Table, waits: bool = True, once: bool = False) -> Self:
        """Read a recipe from sections of a federation's file; and from what its schedule does."""
        for section in ("columns", "model", "program", "hyper"):
            if section in tables:
                raise file.error("", section, "does not go with [regression], which has what it needs: leave it out")
        for module, package in (("formulaic", "formulaic"), ("pandas", "pandas"), ("numpyro", "NumPyro")):
            import_extra(module, package, "formulas")
        if "formula" not in tables["regression"]:
            raise file.error("regression", "formula", 'is missing: such as formula = "ill ~ age + C(clinic)"')
        return cls(
            text=write_text(file, tables, waits, once),
            wanted=file.build("regression", Formula, tables["regression"]),
            solver=read_solver(file, tables),
            seed=read_seed(file, tables),
            learns_hyper=False,
            waits=waits,
            once=once,
        )

    @property
    def family(self) -> str:
        return find_response(self.wanted.family).name

    @property
    def name(self) -> str:
        return f"{self.family} regression"

    @cached_property
    def parsed(self) -> Parsed:
        return parse(self.wanted.formula)

    @property
    def reads(self) -> tuple[str, ...]:
        also = (self.parsed.group, self.wanted.weights)
        return tuple(dict.fromkeys((*self.parsed.names, *(name for name in also if name is not None))))

    @property
    def questions(self) -> tuple[str, ...]:
        kinds = (q.About, q.Levels, q.Rows, q.Moments, q.Products, q.Evaluate)
        return tuple(kind.name for kind in kinds)

    def begin(self, agreed: Agreed | None) -> AbstractModel | None:
        if agreed is None:
            return None
        reading, wanted = agreed.reading, self.wanted
        if reading is None:
            raise refuse_beyond("tables are not read by its formula")
        self.check_reading(reading)
        given = reading.design.prior_scale, reading.design.noise_scale, reading.held_out
        if given != (wanted.prior_scale, wanted.noise_scale, wanted.held_out):
            raise refuse_beyond("under another prior, or with other rows held out")
        return rebuild_model(reading.design)

    def check_question(self, question: q.Question) -> None:
        parsed = self.parsed
        match question:
            case q.Levels():
                asked = question.names, question.categorical, question.group, question.weights
                if asked != (parsed.names, parsed.categorical, parsed.group, self.wanted.weights):
                    raise refuse_beyond("levels of other columns than the formula has")
            case q.Rows(reading=reading) | q.Moments(reading=reading) | q.Products(reading=reading):
                if reading is None:
                    raise refuse_beyond("rows that the formula does not read")
                self.check_reading(reading)

    def check_reading(self, reading: Reading) -> None:
        """Check that tables are read by the recipe's formula. Levels, middles and units are what sites agree on."""
        design, parsed, wanted = reading.design, self.parsed, self.wanted
        given = design.formula, design.family, design.group, reading.weights
        if given != (wanted.formula, self.family, parsed.group, wanted.weights):
            raise refuse_beyond("another formula, family, group or weights")
        # What is evaluated are terms: they have to be those that the formula says, not those that the server says.
        for own, other in ((parsed.left, design.parsed.left), (parsed.right, design.parsed.right)):
            if pack_terms(own) != pack_terms(other):
                raise refuse_beyond("other terms than the formula has")
        if reading.held_out not in (0, wanted.held_out) or (reading.held_out > 0 and reading.seed != self.seed):
            raise refuse_beyond("other rows held out")
