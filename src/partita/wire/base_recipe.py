"""What every kind of recipe says, and what is made of it at the server and at every site.

Schedule, damping and how hyperparameters are learnt are the server's own affair. What sites have to know of them is
here too: whether they send their share of the hyperparameters' gradient, whether a round waits for all, and whether
every site is asked only once, which decides what solver is chosen where none is named.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from partita._version import __version__
from partita.designs.design import Reading
from partita.errors import ConfigError, PolicyRefusal
from partita.expectations import choose
from partita.foundation.descriptions import describe
from partita.foundation.settings_files import SettingsFile, Table
from partita.models import AbstractModel, prior_of
from partita.solvers import Solver
from partita.solvers.choice import choose_solver
from partita.wire.agreed import Agreed
from partita.wire.job import Job
from partita.wire.naming import SiteNames
from partita.wire.questions import Question

# Sections and keys of a federation's file that sites are told as they stand there. Of [hyper] they only read whether it
# is there; the person of a site is shown all of it.
SECTIONS, KEYS = ("columns", "model", "regression", "program", "summary", "solver", "hyper"), ("seed",)


@dataclass(frozen=True)
class BaseRecipe(ABC):
    """What is computed from which columns; `text` is how it travels."""

    text: str
    solver: Solver | None
    seed: int
    learns_hyper: bool
    waits: bool
    once: bool

    @property
    @abstractmethod
    def name(self) -> str:
        """What a policy calls its model."""

    @property
    @abstractmethod
    def reads(self) -> tuple[str, ...]:
        """All columns that are read of each row, by the federation's names."""

    @property
    @abstractmethod
    def questions(self) -> tuple[str, ...]:
        """What a server has to ask beside tasks."""

    @abstractmethod
    def begin(self, agreed: Agreed | None) -> AbstractModel | None:
        """The model, as far as it follows from the recipe and from what sites have agreed on; None, if nothing does.

        What is said to be agreed on comes from a server: if it is not of this recipe, it is refused.
        """

    @abstractmethod
    def check_question(self, question: Question) -> None:
        """Check that a question is about no more than the recipe says."""

    @cached_property
    def settled(self) -> AbstractModel | None:
        """The model, where it is known before sites have been asked anything."""
        model = self.begin(None)
        return None if model is None or model.needs_rows or model.needs_groups else model

    def job_of(self, model: AbstractModel, reading: Reading | None = None) -> Job:
        """What sites need to know before their first task."""
        expectation = choose(model, prior_of(model, model.hyper), None)
        solver = choose_solver(expectation, self.solver, once=self.once)
        return Job(model, solver, expectation, self.seed, self.learns_hyper, self.waits, SiteNames(), reading)

    def digest_of(self, model: AbstractModel) -> str:
        """Tells whether two sides compute the same: a digest of the model and the solver that this code builds."""
        return hashlib.sha256(json.dumps(describe(self.job_of(model)), sort_keys=True).encode()).hexdigest()

    @property
    def greeting(self) -> dict[str, str]:
        """What messages carry, so that a site can build the model and find out whether it is the same one."""
        known = {} if self.settled is None else {"digest": self.digest_of(self.settled)}
        return {"recipe": self.text, "version": __version__, **known}

    def tell_agreed(self, job: Job) -> dict[str, Any]:
        """What messages carry from then on when sites have agreed on something, and a job is made of it."""
        agreed = Agreed.of(job.model, job.reading)
        return {} if agreed is None else {"agreed": agreed.encode(), "digest": self.digest_of(job.model)}


def write_text(file: SettingsFile, tables: Table, waits: bool, once: bool) -> str:
    """What travels of the sections of a file, which may have more."""
    shared = {name: tables[name] for name in (*SECTIONS, *KEYS) if name in tables}
    file.check_sections(shared, SECTIONS, KEYS)
    try:
        return json.dumps({**shared, "waits": waits, "once": once}, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError):
        raise ConfigError(f"{file.path}: dates and numbers that are not finite cannot be used") from None


def refuse_beyond(what: str) -> PolicyRefusal:
    """The refusal of what goes beyond the recipe that was approved."""
    return PolicyRefusal("approval", f"the server asks beyond the approved recipe: {what}")
