"""Who works next. A schedule is a policy over who is idle; the loop and the engines are the same for all.

`plan` is a generator: it yields the sites to ask next, looks at the live board, and ends when there is no more
to ask. An empty list means: wait for somebody to come back.
"""

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from partita.foundation.checks import check_count, check_not_negative, check_share
from partita.foundation.fields import anything, fields, one_of
from partita.server.flights import Flights

# In so many rounds, or as many turns of every site, nothing may move any more before a run has settled.
ROUNDS_SETTLED, TURNS_SETTLED = 3, 2


class Board:
    """What a schedule sees of a run, kept up to date by the loop."""

    def __init__(self, sites: int, seed: int = 0, flights: Flights | None = None):
        self.sites = sites
        self.seed = seed
        self.version = 0
        self.flights = Flights() if flights is None else flights
        # Sites without a task, in the order in which they became idle.
        self.idle: dict[int, None] = dict.fromkeys(range(sites))
        # Sites that cannot be asked, and why; and those among them that may not be, before an operator says so.
        self.away: dict[int, str] = {}
        self.barred: set[int] = set()
        # Sites whose last task came to nothing: nobody waits for what they have to say.
        self.failing: set[int] = set()
        # How many folds there were; how far the latest ones would have moved the posterior, had all been taken; and how
        # far the latest fold of each site has moved it, and when.
        self.folds = 0
        self.moved = _remember(sites)
        self.last_change: dict[int, float] = {}
        self.last_visit: dict[int, int] = {}

    def sent(self, sites: Iterable[int]) -> None:
        """Sites have been handed tasks."""
        for site in sites:
            del self.idle[site]

    def returned(self, sites: Iterable[int], version: int, change: float, left: float = math.inf) -> None:
        """A fold: how far it has moved the posterior, and how far all that was proposed would have."""
        self.version = version
        self.folds += 1
        self.moved.append(max(change, left))
        self.failing.difference_update(sites)
        for site in sites:
            self.idle[site] = None
            self.last_change[site], self.last_visit[site] = change, version

    def joined(self) -> None:
        """One more site, which nothing has been heard of: whatever had settled is open again."""
        self.idle[self.sites] = None
        self.sites += 1
        self.moved = _remember(self.sites)

    @property
    def everybody(self) -> Iterator[int]:
        """All sites in order, with those that join meanwhile."""
        site = 0
        while site < self.sites:
            yield site
            site += 1

    def dropped(self, site: int) -> None:
        """The task that a site had comes to nothing."""
        self.failing.add(site)
        if site not in self.away:
            self.idle[site] = None

    def left(self, site: int, reason: str, barred: bool = False) -> None:
        """A site cannot be asked any more; or, if barred, may not be."""
        if barred or site not in self.barred:
            self.away[site] = reason
        if barred:
            self.barred.add(site)
        self.failing.add(site)
        self.idle.pop(site, None)

    def came_back(self, site: int) -> None:
        if site not in self.barred and self.away.pop(site, None) is not None:
            self.idle[site] = None

    def readmitted(self, site: int) -> None:
        """An operator says that a site may be asked again."""
        self.barred.discard(site)
        self.came_back(site)

    @property
    def nobody(self) -> bool:
        """Whether there is no site left to ask."""
        return len(self.away) == self.sites

    def turns(self, sites: Iterable[int]) -> Iterator[list[int]]:
        """One site after the other, without those that are away; nobody, while all are."""
        for site in sites:
            while self.nobody:
                yield []
            if site not in self.away:
                yield [site]

    def passes(
        self, number: int, order: Callable[[], Iterable[int]], is_settled: Callable[["Board"], bool]
    ) -> Iterator[list[int]]:
        """So many times round, in turns, unless it has settled; a time round that nobody answered does not count."""
        while number > 0:
            folds = self.folds
            for sites in self.turns(order()):
                if is_settled(self):
                    return
                yield sites
            number -= self.folds > folds

    def random(self) -> np.random.Generator:
        return np.random.default_rng((self.seed, 0x5C4ED))


def _remember(sites: int) -> deque[float]:
    """How far the latest folds of so many sites have moved the posterior."""
    return deque(maxlen=max(ROUNDS_SETTLED, TURNS_SETTLED * sites))


@dataclass(frozen=True)
class Schedule:
    """Who works next, again and again.

    With `settled`, a run ends before its budget is used up when all that sites propose, damped or not, would have moved
    the posterior by at most so many nats (KL): in each of three rounds, or in two turns of every site together.
    """

    settled: float = field(default=0.0, kw_only=True)

    @property
    def waits(self) -> bool:
        """Whether updates are folded when all that were asked have answered, rather than one by one."""
        return True

    @property
    def parallel(self) -> bool:
        """Whether several sites work from the same posterior."""
        return False

    @property
    def holds(self) -> int:
        """For how many folds sites are told of the same earlier posterior; one: they are not told."""
        return 1

    @property
    def settles(self) -> bool:
        """Whether the run ends when nothing that is proposed would move the posterior any more."""
        return self.settled > 0

    @property
    def once(self) -> bool:
        """Whether nobody is asked twice, so that a site's one answer has to be the solution of its local problem."""
        return False

    @abstractmethod
    def plan(self, board: Board) -> Iterator[list[int]]:
        """The sites to ask next, again and again."""

    def is_settled(self, board: Board) -> bool:
        """Whether there is no more to ask, although there might have been."""
        return self.settles and len(board.moved) == board.moved.maxlen and sum(board.moved) <= self.settled

    def check_settled(self) -> None:
        check_not_negative("schedule: ", settled=self.settled)

    @abstractmethod
    def total(self, sites: int) -> int:
        """How many updates there will be, for progress bars."""


@dataclass(frozen=True)
class Sequential(Schedule):
    """One site after the other, `passes` times round; the first time all at once, if `together`.

    A model with a start of its own, such as a mixture, wants the latter: else the first site alone says where
    components are before the others are asked. Automatic damping takes that round whole, as all others here.
    """

    passes: int = 10
    together: bool = False

    def __post_init__(self) -> None:
        check_count("schedule: ", passes=self.passes)
        self.check_settled()

    def plan(self, board: Board) -> Iterator[list[int]]:
        if self.together:
            while board.folds == 0:
                yield [site for site in range(board.sites) if site not in board.away]
        yield from board.passes(self.passes - self.together, lambda: board.everybody, self.is_settled)

    def total(self, sites: int) -> int:
        return self.passes * sites


@dataclass(frozen=True)
class OnePass(Schedule):
    """Each site once, in order: streaming variational Bayes, and variational continual learning.

    A site solves its local problem, where `fit` is left to choose the solver; one that is given does what it says.
    """

    @property
    def once(self) -> bool:
        return True

    def plan(self, board: Board) -> Iterator[list[int]]:
        yield from board.turns(board.everybody)

    def total(self, sites: int) -> int:
        return sites


@dataclass(frozen=True)
class Rehearsal(Schedule):
    """Tasks once, in order, and after each of them the memories of all so far again (Sections 2.1, 5 and 7.1).

    The first `tasks` sites are what comes; a site after them is the memory of the task in the same place: rows that
    were held out of it, so that none counts twice. A memory is a site that is refined again, so that what a later task
    has made of the posterior is put right where rows of an earlier one object; tasks are seen once, as in `OnePass`.
    """

    tasks: int = 1
    passes: int = 1

    def __post_init__(self) -> None:
        check_count("schedule: ", tasks=self.tasks, passes=self.passes)
        self.check_settled()

    def plan(self, board: Board) -> Iterator[list[int]]:
        for task in range(min(self.tasks, board.sites)):
            yield from board.turns([task])
            for _ in range(self.passes):
                yield from board.turns(self._memories(task, board.sites))

    def _memories(self, task: int, sites: int) -> range:
        """The memories of all tasks up to this one."""
        return range(self.tasks, min(sites, self.tasks + task + 1))

    def total(self, sites: int) -> int:
        tasks = range(min(self.tasks, sites))
        return len(tasks) + self.passes * sum(len(self._memories(task, sites)) for task in tasks)


@dataclass(frozen=True)
class RandomOrder(Schedule):
    """One site after the other, in a new random order each pass."""

    passes: int = 10

    def __post_init__(self) -> None:
        check_count("schedule: ", passes=self.passes)
        self.check_settled()

    def plan(self, board: Board) -> Iterator[list[int]]:
        generator = board.random()
        yield from board.passes(self.passes, lambda: map(int, generator.permutation(board.sites)), self.is_settled)

    def total(self, sites: int) -> int:
        return self.passes * sites


@dataclass(frozen=True)
class Priority(Schedule):
    """First each site once; then always the one whose factor changed most, weighed by how long ago that was."""

    updates: int = 100

    def __post_init__(self) -> None:
        check_count("schedule: ", updates=self.updates)
        self.check_settled()

    def plan(self, board: Board) -> Iterator[list[int]]:
        for sites in board.turns(board.everybody):
            if board.version == self.updates:
                return
            yield sites
        while board.version < self.updates and not self.is_settled(board):
            yield [] if board.nobody else [self._most_urgent(board)]

    @staticmethod
    def _most_urgent(board: Board) -> int:
        # A site that was held back may have changed nothing: it waits at most a hundred times longer than the first.
        least = max(0.01 * max(board.last_change.values(), default=0.0), np.finfo(float).tiny)

        def urgency(site: int) -> float:
            if site not in board.last_visit:
                return np.inf
            return max(board.last_change[site], least) * (board.version - board.last_visit[site])

        return max((site for site in range(board.sites) if site not in board.away), key=urgency)

    def total(self, sites: int) -> int:
        return self.updates


@dataclass(frozen=True)
class Synchronous(Schedule):
    """All sites at once, from the same posterior; or a random share of them each round.

    With `hold`, the outer loop of a double one: for so many rounds sites are told of the same earlier posterior too.
    """

    rounds: int = 50
    participation: float = 1.0
    hold: int = 1

    def __post_init__(self) -> None:
        check_count("schedule: ", rounds=self.rounds, hold=self.hold)
        check_share("schedule: ", participation=self.participation)
        self.check_settled()

    @property
    def parallel(self) -> bool:
        return True

    @property
    def holds(self) -> int:
        return self.hold

    def _number(self, sites: int) -> int:
        return max(1, round(self.participation * sites))

    def plan(self, board: Board) -> Iterator[list[int]]:
        generator = board.random()
        rest = self.rounds
        while rest > 0 and not self.is_settled(board):
            folds, number = board.folds, self._number(board.sites)
            everybody = number == board.sites
            order = range(board.sites) if everybody else map(int, generator.permutation(board.sites))
            while board.nobody:
                yield []
            yield sorted(islice((site for site in order if site not in board.away), number))
            # A round that nobody answered does not count.
            rest -= board.folds > folds

    def is_settled(self, board: Board) -> bool:
        latest = list(islice(reversed(board.moved), ROUNDS_SETTLED))
        return self.settles and len(latest) == ROUNDS_SETTLED and max(latest) <= self.settled

    def total(self, sites: int) -> int:
        return self.rounds * self._number(sites)


@dataclass(frozen=True)
class Asynchronous(Schedule):
    """Whoever comes back is folded at once and sent off again.

    With `max_staleness`, nobody is sent off who could make a slower site's update older than that: the bound
    holds by waiting, so that no site's work is ever thrown away.
    """

    updates: int = 500
    max_staleness: int | None = None

    def __post_init__(self) -> None:
        check_count("schedule: ", updates=self.updates)
        self.check_settled()
        if self.max_staleness is not None:
            check_count("schedule: ", max_staleness=self.max_staleness)

    @property
    def waits(self) -> bool:
        return False

    @property
    def parallel(self) -> bool:
        return True

    def plan(self, board: Board) -> Iterator[list[int]]:
        while board.version < self.updates and not self.is_settled(board):
            rest = self.updates - board.version - len(board.flights)
            yield list(islice(board.idle, min(self._room(board), rest)))

    def _room(self, board: Board) -> int:
        """How many more may be sent off."""
        if self.max_staleness is None:
            return board.sites
        oldest = board.version if board.flights.oldest is None else board.flights.oldest
        # All outstanding tasks but the oldest may be folded before it, as may those sent off now.
        return max(0, self.max_staleness - (board.version - oldest) - (len(board.flights) - 1))

    def total(self, sites: int) -> int:
        return self.updates


REGISTRY: dict[str, type[Schedule]] = {
    "sequential": Sequential,
    "one-pass": OnePass,
    "rehearsal": Rehearsal,
    "random-order": RandomOrder,
    "priority": Priority,
    "synchronous": Synchronous,
    "asynchronous": Asynchronous,
}


def to_settings(schedule: Any) -> dict[str, Any] | None:
    """A schedule of this module as plain values, to store; None of anything else."""
    names = [name for name, kind in REGISTRY.items() if type(schedule) is kind]
    return {"schedule": names[0], **asdict(schedule)} if names else None


def from_settings(settings: dict[str, Any] | None) -> Schedule | None:
    """The inverse of `to_settings`."""
    if settings is None:
        return None
    fields({"schedule": one_of(REGISTRY)}, others=anything)(settings, "schedule")
    return REGISTRY[settings["schedule"]](**{name: value for name, value in settings.items() if name != "schedule"})
