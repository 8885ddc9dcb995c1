"""What sites need to know before their first task."""

from dataclasses import dataclass, field

from partita.designs.design import Reading
from partita.expectations import Expectation
from partita.models import AbstractModel
from partita.solvers import Solver
from partita.wire.naming import SiteNames


@dataclass(frozen=True)
class Job:
    """What sites need to know before their first task.

    `reading` is how they turn tables into rows, where a formula does; `columns`, in which order the columns of frames
    are taken, where those have names.
    """

    model: AbstractModel
    solver: Solver
    expectation: Expectation
    seed: int
    learns_hyper: bool
    waits: bool
    names: SiteNames = field(default_factory=SiteNames)
    reading: Reading | None = None
    columns: tuple[str, ...] | None = None
