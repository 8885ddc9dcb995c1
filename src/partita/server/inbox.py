"""Between engine and loop: what comes from sites is checked, written down, and handed on once."""

import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from partita.errors import MalformedUpdate, NotOutstanding, RunMismatch, StaleUpdate, Stalled, UpdateRefused
from partita.server.ledger import Ledger
from partita.server.limits import Limits
from partita.server.storage import Journal, reached
from partita.solvers import Outcome
from partita.wire.engine import Engine
from partita.wire.messages import Arrival, Notice, NoticeKind
from partita.wire.naming import SiteNames
from partita.wire.tasks import Task, Update

# Sizes that nobody can have meant: their sums and products are no numbers any more.
LARGEST = 1e290
# How many tasks in a row may come to nothing, for each site of a run.
FRUITLESS = 500


class Inbox:
    """What comes from sites: each update once, checked, and on disk before anybody hears of it.

    On resume what the journal holds comes first. Meanwhile tasks are kept back; those that it does not answer go to the
    engine afterwards. The disk works while the ledger folds: `settle` waits for it, before the fold is told of.
    """

    def __init__(
        self,
        engine: Engine,
        ledger: Ledger,
        limits: Limits,
        learnt: Sequence[str],
        hyper: Collection[str],
        journal: Journal | None,
        names: SiteNames,
    ):
        self._engine, self._ledger, self._limits, self._journal = engine, ledger, limits, journal
        self._names = names
        # The hyperparameters that sites have to send gradients of, and those that they may.
        self._learnt, self._hyper = set(learnt), set(hyper) if learnt else set()
        self._recorded: Iterator[Arrival] = iter(()) if journal is None else journal.recorded()
        self._next: Arrival | None = next(self._recorded, None)
        self._held: dict[int, tuple[Task, float]] = {}
        # Who was away when the journal ends: after a resume, everybody is asked again.
        self._gone: dict[int, None] = {}
        self._writer = ThreadPoolExecutor(1)
        self._written: Future[None] | None = None
        self.replaying = False
        self.refused: list[UpdateRefused] = []
        # What came together is handed on one by one, as it will be on resume.
        self._taken: deque[Arrival] = deque()
        # What the run has decided while it was replayed, and the journal may hold further on.
        self._decided: list[Notice] = []
        # How many tasks in a row have come to nothing.
        self._fruitless = 0

    def submit(self, tasks: Sequence[Task], at: float) -> None:
        if self._next is None:
            self._engine.submit(tasks, at)
        else:
            self._held.update({task.site: (task, at) for task in tasks})

    def collect(self, arrived: Mapping[int, Update]) -> Arrival:
        """Wait for something new, given what has arrived and is not folded yet."""
        while not self._taken:
            self.settle()
            if self._next is not None:
                self._replay()
            else:
                self._receive(arrived)
        return self._taken.popleft()

    def _receive(self, arrived: Mapping[int, Update]) -> None:
        self.replaying = False
        taken: list[Arrival] = [*self._decided, *(Notice(site, "back", "the run was resumed") for site in self._gone)]
        decided = len(self._decided)
        self._decided, self._gone = [], {}
        waiting, ended = set(arrived), set()
        while not taken:
            arrivals = self._engine.collect()
            if not arrivals:
                raise Stalled("nobody is working, and nobody can be asked")
            for arrival in arrivals:
                if isinstance(arrival, Update) and arrival.site in waiting:
                    self.refused.append(NotOutstanding(arrival.site, "its update came before, and waits"))
                elif isinstance(arrival, Update) and arrival.site in ended:
                    self.refused.append(NotOutstanding(arrival.site, "its task had been withdrawn"))
                elif (good := self._checked(arrival)) is not None:
                    taken.append(good)
                    if isinstance(good, Update):
                        waiting.add(good.site)
                    elif good.ends_task:
                        ended.add(good.site)
                    self._count(good)
        if self._journal is not None:
            self._written = self._writer.submit(self._journal.append, taken)
        reached("before fold")
        self._taken.extend(taken[decided:])

    def _count(self, arrival: Arrival) -> None:
        """Sites that say they can work, and then do not, must not keep a run going for ever."""
        if isinstance(arrival, Update):
            self._fruitless = 0
            return
        self._fruitless += arrival.kind in ("away", "dropped")
        if self._fruitless > FRUITLESS * self._ledger.sites:
            raise Stalled(
                f"{self._fruitless} tasks in a row came to nothing, the last one of {self._names.of(arrival.site)} "
                f"({arrival.reason or arrival.kind}); the run can be resumed"
            )

    def decide(self, notice: Notice) -> None:
        """The run itself has something to say of a site: it is in the journal, after what led to it."""
        if self._next is not None:
            self._decided.append(notice)
        elif self._journal is not None:
            self.settle()
            self._written = self._writer.submit(self._journal.append, [notice])

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
            self._answered(arrival)
        if self._next is None:
            for task, at in self._held.values():
                self._engine.submit([task], at)
            self._held.clear()

    def _answered(self, arrival: Arrival) -> None:
        """What was recorded answers a task that is held back."""
        if isinstance(arrival, Notice):
            self._gone.pop(arrival.site, None)
            if arrival.kind == "away":
                self._gone[arrival.site] = None
        if isinstance(arrival, Update) or arrival.ends_task:
            held = self._held.pop(arrival.site, None)
            if held is None and isinstance(arrival, Update):
                raise RunMismatch(
                    f"{self._names.of(arrival.site)}: the journal holds an update that this run did not ask for"
                )

    def _checked(self, arrival: Arrival) -> Arrival | None:
        """What is taken: an update that is good, or what follows from one that is not; nothing, if nobody asked."""
        if not isinstance(arrival, Update):
            return arrival
        try:
            self._ledger.check([arrival])
            _check_numbers(arrival)
            self._check_hyper(arrival)
            self._limits.check_age(arrival, self._ledger.version)
        except UpdateRefused as error:
            if isinstance(error, NotOutstanding):
                self.refused.append(self._with_receipt(arrival, error))
                return None
            self.refused.append(error)
            kind: NoticeKind = "dropped" if isinstance(error, StaleUpdate) else "quarantined"
            return Notice(arrival.site, kind, error.problem)
        return arrival

    def _check_hyper(self, update: Update) -> None:
        for name in self._learnt:
            if not abs(update.hyper_gradient.get(name, math.nan)) <= LARGEST:
                raise MalformedUpdate(update.site, f"hyper: the gradient of {name} is missing, or not finite")
        if not set(update.hyper_gradient) <= self._hyper:
            raise MalformedUpdate(update.site, "hyper: has gradients of hyperparameters that are not asked for")

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


def _is_same(notice: Notice, arrival: Arrival) -> bool:
    """Whether they say the same, in whatever words."""
    return isinstance(arrival, Notice) and (notice.site, notice.kind) == (arrival.site, arrival.kind)


def _check_numbers(update: Update) -> None:
    """Each number that an update carries is one, and none that nobody can have meant."""
    failed = Outcome(update.outcome) is Outcome.NOT_FINITE
    for name in ("expected_log_prob", "expected_log_factor", "expected_log_change", "seconds", "finished_at"):
        value = getattr(update, name)
        if failed and name.startswith("expected"):
            continue  # the site says so itself, and its report is not counted
        if not abs(value) <= LARGEST:
            raise MalformedUpdate(update.site, f"{name}: expected a finite number, got {value}")
    if update.seconds < 0:
        raise MalformedUpdate(update.site, f"seconds: expected no negative number, got {update.seconds}")
