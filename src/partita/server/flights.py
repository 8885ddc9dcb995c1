"""Outstanding tasks: one record for each task that was handed out and whose update has not been folded yet.

Ledger, schedules, accounting, rules and inbox all look here; none of them keeps a list of its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from partita.families import Family
from partita.models import Hyper
from partita.wire.tasks import Task, Update


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


class Flights:
    """All outstanding tasks of a run, by site, and which of them have been answered.

    >>> flights = Flights()
    >>> len(flights), 3 in flights
    (0, False)
    """

    def __init__(self) -> None:
        self._flights: dict[int, Flight] = {}
        # Updates that came and wait to be folded, in the order in which they came.
        self._arrived: dict[int, Update] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, site: int) -> bool:
        return site in self._flights

    def __getitem__(self, site: int) -> Flight:
        return self._flights[site]

    def __iter__(self) -> Iterator[Flight]:
        return iter(self._flights.values())

    @property
    def versions(self) -> dict[int, int]:
        """For every site that has a task, the version of the posterior that the task was made from."""
        return {site: flight.task.version for site, flight in self._flights.items()}

    @property
    def oldest(self) -> int | None:
        """The version of the oldest task; None, if there is no task."""
        return min((flight.task.version for flight in self), default=None)

    def depart(self, tasks: Iterable[Task]) -> None:
        """Tasks have been handed out."""
        self._flights.update({task.site: Flight(task) for task in tasks})

    def is_expected(self, update: Update) -> bool:
        """Whether an update answers a task that is outstanding."""
        flight = self._flights.get(update.site)
        return flight is not None and flight.task.version == update.version

    def arrive(self, update: Update) -> None:
        """An update has come; it waits to be folded."""
        self._arrived[update.site] = update

    def has_arrived(self, site: int) -> bool:
        return site in self._arrived

    @property
    def all_arrived(self) -> bool:
        return len(self._arrived) == len(self._flights)

    def next_arrived(self, most: int | None = None) -> list[Update]:
        """The updates to fold next, by site: all that wait, or at most so many of those that came first."""
        chosen = list(self._arrived.values())[:most]
        for update in chosen:
            del self._arrived[update.site]
        return sorted(chosen, key=lambda update: update.site)

    @property
    def any_arrived(self) -> bool:
        return bool(self._arrived)

    def land(self, sites: Sequence[int]) -> None:
        """Updates have been folded: their tasks are done."""
        for site in sites:
            del self._flights[site]

    def cancel(self, site: int) -> bool:
        """Nothing is expected of a site any more, and what came of it is dropped; says whether it had a task."""
        self._arrived.pop(site, None)
        return self._flights.pop(site, None) is not None
