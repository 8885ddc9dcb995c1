"""Between engine and loop: what comes from sites is checked, written down, and handed on once."""

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from partita.engines import Engine
from partita.errors import MalformedUpdate, NotOutstanding, RunMismatch, StaleUpdate, Stalled, UpdateRefused
from partita.ledger import Ledger, Task, Update
from partita.limits import Limits
from partita.messages import Arrival, Notice, NoticeKind
from partita.storage import Journal, reached


class Inbox:
    """What comes from sites: each update once, checked, and on disk before anybody hears of it.

    On resume what the journal holds comes first. Meanwhile tasks are kept back; those that it does not answer go to the
    engine afterwards. The disk works while the ledger folds: `settle` waits for it, before the fold is told of.
    """

    def __init__(self, engine: Engine, ledger: Ledger, limits: Limits, learnt: Sequence[str], journal: Journal | None):
        self._engine, self._ledger, self._limits, self._journal = engine, ledger, limits, journal
        # The hyperparameters that sites send gradients of.
        self._learnt = set(learnt)
        self._recorded: Iterator[Arrival] = iter(()) if journal is None else journal.recorded()
        self._next: Arrival | None = next(self._recorded, None)
        self._held: dict[int, tuple[Task, float]] = {}
        # Who was away when the journal ends: after a resume, everybody is asked again.
        self._gone: dict[int, None] = {}
        self._writer = ThreadPoolExecutor(1)
        self._written: Future[None] | None = None
        self.replaying = False
        self.refused: list[UpdateRefused] = []

    def submit(self, tasks: Sequence[Task], at: float) -> None:
        if self._next is None:
            self._engine.submit(tasks, at)
        else:
            self._held.update({task.site: (task, at) for task in tasks})

    def collect(self, arrived: Mapping[int, Update]) -> list[Arrival]:
        """Wait for something new, given what has arrived and is not folded yet."""
        self.settle()
        if self._next is not None:
            return [self._replayed()]
        self.replaying = False
        taken: list[Arrival] = [Notice(site, "back", "the run was resumed") for site in self._gone]
        self._gone.clear()
        waiting = set(arrived)
        while not taken:
            arrivals = self._engine.collect()
            if not arrivals:
                raise Stalled("nobody is working, and nobody can be asked")
            for arrival in arrivals:
                if isinstance(arrival, Update) and arrival.site in waiting:
                    self.refused.append(NotOutstanding(arrival.site, "its update came before, and waits"))
                elif (good := self._checked(arrival)) is not None:
                    taken.append(good)
                    if isinstance(good, Update):
                        waiting.add(good.site)
        if self._journal is not None:
            self._written = self._writer.submit(self._journal.append, taken)
        reached("before fold")
        return taken

    def settle(self) -> None:
        """Wait until everything is on disk that was handed on; an error, if it cannot be."""
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def witness(self, fold: int) -> None:
        """Write down which posterior a fold has led to; on resume, see that it is the same."""
        if self._journal is not None:
            self._journal.add_posterior(fold, self._ledger.posterior)

    def close(self) -> None:
        self._writer.shutdown()

    def _replayed(self) -> Arrival:
        arrival, self._next = self._next, next(self._recorded, None)
        assert arrival is not None
        self.replaying = True
        if isinstance(arrival, Notice):
            self._gone.pop(arrival.site, None)
            if arrival.kind == "away":
                self._gone[arrival.site] = None
        if isinstance(arrival, Update) or arrival.ends_task:
            held = self._held.pop(arrival.site, None)
            if held is None and isinstance(arrival, Update):
                raise RunMismatch(f"site {arrival.site}: the journal holds an update that this run did not ask for")
        if self._next is None:
            for task, at in self._held.values():
                self._engine.submit([task], at)
            self._held.clear()
        return arrival

    def _checked(self, arrival: Arrival) -> Arrival | None:
        """What is taken: an update that is good, or what follows from one that is not; nothing, if nobody asked."""
        if not isinstance(arrival, Update):
            return arrival
        try:
            self._ledger.check([arrival])
            self._check_hyper(arrival)
            self._limits.check_age(arrival, self._ledger.version)
        except UpdateRefused as error:
            if isinstance(error, NotOutstanding):
                self.refused.append(self._with_receipt(arrival, error))
                return None
            self.refused.append(error)
            kind: NoticeKind = "dropped" if isinstance(error, StaleUpdate) else "quarantined"
            return Notice(arrival.site, kind, str(error))
        return arrival

    def _check_hyper(self, update: Update) -> None:
        for name in self._learnt:
            if not math.isfinite(update.hyper_gradient.get(name, math.nan)):
                raise MalformedUpdate(update.site, f"hyper: the gradient of {name} is missing, or not finite")

    def _with_receipt(self, update: Update, error: NotOutstanding) -> NotOutstanding:
        """A retry hears what became of the first."""
        number = None if self._journal is None else self._journal.receipt(update.site, update.version)
        return error if number is None else NotOutstanding(update.site, f"it was taken before, as number {number}")

    def check_exhausted(self) -> None:
        self.settle()
        if self._next is not None:
            raise RunMismatch(
                "the journal holds more updates than the schedule asks for: raise its rounds, passes or updates"
            )
