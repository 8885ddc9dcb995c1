"""Between engine and loop: what comes from sites is checked, written down, and handed on once."""

from collections import deque
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import get_args

import numpy as np

from partita.errors import EngineError, NotOutstanding, RunMismatch, StaleUpdate, Stalled, UpdateRefused
from partita.families import Family
from partita.server.ledger import Ledger
from partita.server.rules.chain import Chain
from partita.server.storage import Journal, reached
from partita.wire.engine import Engine
from partita.wire.messages import Arrival, Notice, NoticeKind
from partita.wire.naming import SiteNames
from partita.wire.tasks import Task, Update

# For each site of a run: how many tasks in a row may come to nothing, and how many messages may bring no update.
FRUITLESS, IDLE = 500, 2000


class Inbox:
    """What comes from sites: each update once, checked, and on disk before anybody hears of it.

    On resume what the journal holds comes first. Meanwhile tasks are held back; those that it does not answer go to the
    engine afterwards. The disk works while the ledger folds: `acknowledge` waits for it, before the fold is told of.
    """

    def __init__(self, engine: Engine, ledger: Ledger, rules: Chain, journal: Journal | None, names: SiteNames):
        self._engine, self._ledger, self._rules, self._journal = engine, ledger, rules, journal
        self._flights, self._names = ledger.flights, names
        self._recorded: Iterator[Arrival] = iter(()) if journal is None else journal.recorded()
        self._next: Arrival | None = next(self._recorded, None)
        # Sites that were away when the journal ends: after a resume, everybody is asked again.
        self._gone: dict[int, None] = {}
        self._writer = ThreadPoolExecutor(1)
        self._written: Future[None] | None = None
        # What will be written down of the posterior that a fold has led to, computed while the fold is accounted for.
        self._hasher = ThreadPoolExecutor(1)
        self._digest: Future[bytes] | None = None
        self.replaying = False
        self.refused: list[UpdateRefused] = []
        # What came together is handed on one by one, as it will be on resume.
        self._taken: deque[Arrival] = deque()
        # What the run has decided while it was replayed, and the journal may hold further on.
        self._decided: list[Notice] = []
        # How many tasks in a row have come to nothing.
        self._fruitless = 0
        # How many messages in a row were no update that could be taken.
        self._idle = 0

    def submit(self, tasks: Sequence[Task], clock: float) -> None:
        """Give tasks to the engine; while a journal is replayed, which may answer them, hold them back."""
        replaying = self._next is not None
        for task in tasks:
            flight = self._flights[task.site]
            flight.clock, flight.held = clock, replaying
        if not replaying:
            self._engine.submit(tasks, clock)

    def collect(self, waiting: Container[int]) -> Arrival:
        """Wait for something new, given whose updates have come and wait to be folded."""
        while not self._taken:
            self.flush()
            if self._next is not None:
                self._replay()
            else:
                self._receive(waiting)
        return self._taken.popleft()

    def _receive(self, waiting: Container[int]) -> None:
        self.replaying = False
        taken: list[Arrival] = [*self._decided, *(Notice(site, "back", "the run was resumed") for site in self._gone)]
        decided = len(self._decided)
        self._decided, self._gone = [], {}
        answered: set[int] = set()
        withdrawn: set[int] = set()
        while not taken:
            arrivals = self._engine.collect()
            if not arrivals:
                raise Stalled("nobody is working, and nobody can be asked")
            for arrival in arrivals:
                if isinstance(arrival, Update) and not isinstance(arrival.site, int | np.integer):
                    raise EngineError(f"the engine gave an update of site {arrival.site!r}: sites are numbers")
                if isinstance(arrival, Update) and arrival.site in waiting:
                    answered.add(arrival.site)
                good = self._check(arrival, answered, withdrawn)
                self._count(arrival, good)
                if good is not None:
                    taken.append(good)
        if self._journal is not None:
            self._written = self._writer.submit(self._journal.append, taken)
            reached("before fold")
        self._taken.extend(taken[decided:])

    def _check(self, arrival: Arrival, answered: set[int], withdrawn: set[int]) -> Arrival | None:
        """What is taken of something that came: itself, what follows from an update that is refused, or nothing.

        `answered` and `withdrawn` are the sites whose updates came, or whose tasks ended, before this or with it.
        """
        if isinstance(arrival, Update):
            if not 0 <= arrival.site < self._ledger.sites:
                words = f"there is no such site: there are 0 to {self._ledger.sites - 1}"
                self.refused.append(NotOutstanding(arrival.site, words))
                return None
            if arrival.site in answered:
                self.refused.append(NotOutstanding(arrival.site, "its update came before, and waits"))
                return None
            if arrival.site in withdrawn:
                self.refused.append(NotOutstanding(arrival.site, "its task had been withdrawn"))
                return None
            good = self._admit(arrival)
        else:
            self._check_notice(arrival)
            good = arrival
        if isinstance(good, Update):
            answered.add(good.site)
        elif good is not None and good.ends_task:
            withdrawn.add(good.site)
        return good

    def _check_notice(self, notice: Notice) -> None:
        """An engine tells of sites of this run, in words that a journal knows; or it is broken."""
        if not isinstance(notice, Notice):
            raise EngineError(f"the engine gave {type(notice).__name__} where updates and notices were expected")
        # A site that joins is the next one; no other joins before that is taken in.
        known = range(self._ledger.sites) if notice.kind != "joined" else [self._ledger.sites]
        if notice.kind not in get_args(NoticeKind) or notice.site not in known:
            raise EngineError(
                f"the engine gave a notice of kind {notice.kind!r} for site {notice.site}: a run with "
                f"{self._ledger.sites} sites knows {', '.join(get_args(NoticeKind))}"
            )

    def _admit(self, update: Update) -> Arrival | None:
        """An update that the ledger and all rules admit; a notice, if it is refused; nothing, if nobody asked."""
        try:
            self._ledger.check([update])
            self._rules.admit(update, self._ledger.version)
        except NotOutstanding as error:
            self.refused.append(self._with_receipt(update, error))
            return None
        except UpdateRefused as error:
            self.refused.append(error)
            kind: NoticeKind = "dropped" if isinstance(error, StaleUpdate) else "quarantined"
            return Notice(update.site, kind, error.problem)
        return update

    def _count(self, arrival: Arrival, good: Arrival | None) -> None:
        """Sites that say they can work, and then do not, must not keep a run going for ever; nor must idle talk."""
        if isinstance(good, Update):
            self._fruitless = self._idle = 0
            return
        self._idle += 1
        if good is not None and good.kind in ("away", "dropped"):
            self._fruitless += 1
            if self._fruitless > FRUITLESS * self._ledger.sites:
                raise Stalled(
                    f"{self._fruitless} tasks in a row came to nothing, the last one of {self._names.of(good.site)} "
                    f"({good.reason or good.kind}); the run can be resumed"
                )
        if self._idle > IDLE * self._ledger.sites:
            last = "an update that is refused" if good is None else f"that it is {good.kind}"
            raise Stalled(
                f"{self._idle} messages in a row brought no update that can be taken, the last one of "
                f"{self._names.of(arrival.site)}: {last}; the run can be resumed"
            )

    def prepare(self, posterior: Family) -> None:
        """In a fold, when its posterior will not change any more: begin with what is written down of it."""
        if self._journal is not None:
            self._digest = self._hasher.submit(self._journal.digest_of, posterior)

    def acknowledge(self, fold: int, decided: Sequence[Notice]) -> tuple[str, ...]:
        """After a fold: write down what the run has decided of sites, and which posterior it has led to.

        On resume, see that it is the same. Gives the updates that were refused since the last fold, in words.
        """
        if self._next is not None:
            self._decided += decided
        elif self._journal is not None and decided:
            self.flush()
            self._written = self._writer.submit(self._journal.append, decided)
        self.flush()
        if self._journal is not None:
            assert self._digest is not None, "a fold says when its posterior is known"
            self._journal.add_posterior(fold, self._digest.result())
            reached("after fold")
        refused, self.refused = self.refused, []
        for error in refused:
            error.call(self._names.of)
        return tuple(map(str, refused))

    def flush(self) -> None:
        """Wait until everything is on disk that was handed on; an error, if it cannot be."""
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def close(self) -> None:
        self._writer.shutdown()
        self._hasher.shutdown()

    def _replay(self) -> None:
        arrival, self._next = self._next, next(self._recorded, None)
        assert arrival is not None
        self.replaying = True
        known = [notice for notice in self._decided if _is_same(notice, arrival)]
        if known:
            # It has taken effect where it was decided.
            self._decided.remove(known[0])
        else:
            self._taken.append(arrival)
            self._answer(arrival)
        if self._next is None:
            for flight in self._flights.values():
                if flight.held:
                    flight.held = False
                    self._engine.submit([flight.task], flight.clock)

    def _answer(self, arrival: Arrival) -> None:
        """Something that was recorded answers a task that is held back."""
        if isinstance(arrival, Notice):
            self._gone.pop(arrival.site, None)
            if arrival.kind == "away":
                self._gone[arrival.site] = None
            if not arrival.ends_task:
                return
        if arrival.site in self._flights and self._flights[arrival.site].held:
            self._flights[arrival.site].held = False
        elif isinstance(arrival, Update):
            raise RunMismatch(
                f"{self._names.of(arrival.site)}: the journal holds an update that this run did not ask for"
            )

    def _with_receipt(self, update: Update, error: NotOutstanding) -> NotOutstanding:
        """A retry hears what became of the first."""
        number = None if self._journal is None else self._journal.receipt(update.site, update.version)
        return error if number is None else NotOutstanding(update.site, f"it was taken before, as number {number}")

    def finish(self) -> list[Notice]:
        """At the end of a run: notices that came behind its last update, which still have to take effect.

        An error, if the journal holds updates that the schedule has not asked for.
        """
        self.flush()
        while self._next is not None:
            if isinstance(self._next, Update):
                raise RunMismatch(
                    "the journal holds more updates than the schedule asks for: raise its rounds, passes or updates"
                )
            self._replay()
        if self._journal is not None and self._decided:
            # The run was killed between its last fold and what it had decided then.
            self._journal.append(self._decided)
        rest, self._taken = [arrival for arrival in self._taken if isinstance(arrival, Notice)], deque()
        return rest


def _is_same(notice: Notice, arrival: Arrival) -> bool:
    """Whether they say the same, in whatever words."""
    return isinstance(arrival, Notice) and (notice.site, notice.kind) == (arrival.site, arrival.kind)
