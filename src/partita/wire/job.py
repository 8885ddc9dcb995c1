"""What sites need to know before their first task."""

from dataclasses import dataclass, field

from partita.expectations import Expectation
from partita.models import AbstractModel
from partita.solvers import Solver
from partita.wire.naming import SiteNames


@dataclass(frozen=True)
class Job:
    """What sites need to know before their first task."""

    model: AbstractModel
    solver: Solver
    expectation: Expectation
    seed: int
    learns_hyper: bool
    waits: bool
    names: SiteNames = field(default_factory=SiteNames)
