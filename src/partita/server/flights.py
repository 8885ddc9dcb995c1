"""Outstanding tasks: one record for each task that was handed out and whose update has not been folded yet.

Ledger, schedules, accounting, rules and inbox all look here; none of them keeps a list of its own.
"""

from dataclasses import dataclass
from typing import Any

from partita.families import Family
from partita.models import Hyper
from partita.wire.tasks import Task


@dataclass(frozen=True)
class Place:
    """Where a task begins: a density with its mean, the hyperparameters, and how far the posterior had come by then.

    `length` is the sum of √KL over all folds before, `travelled` the sum of KL. `astray` says that the density is a
    start of the model's or the user's own, and not a posterior.
    """

    density: Family
    mean: Any
    length: float
    travelled: float
    hyper: Hyper
    astray: bool = False


@dataclass
class Flight:
    """One outstanding task, and all that the server remembers of it.

    `held` means that the engine has not been given the task, because a journal is being replayed that may answer it;
    `clock` is the run's time when the task was handed out.
    """

    task: Task
    place: Place | None = None
    clock: float = 0.0
    held: bool = False

    @property
    def begin(self) -> Place:
        """The place, which the loop has filled in when it handed the task out."""
        assert self.place is not None, "the loop hands out tasks together with their places"
        return self.place


class Flights(dict[int, Flight]):
    """All outstanding tasks of a run, by site."""

    @property
    def versions(self) -> dict[int, int]:
        """For every site that has a task, the version of the posterior that the task was made from."""
        return {site: flight.task.version for site, flight in self.items()}

    @property
    def oldest(self) -> int | None:
        """The version of the oldest task; None, if there is no task."""
        return min((flight.task.version for flight in self.values()), default=None)
