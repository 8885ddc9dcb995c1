"""Events of a run, and those who listen: history, metrics, progress bars, JSON lines."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

from partita.errors import InputError
from partita.families import Family
from partita.foundation.checks import check_count
from partita.foundation.plain import Row, to_json
from partita.foundation.text import clean
from partita.server.events import Event

# Seconds until the first line about progress where there is no bar, and from one to the next.
FIRST_LINE, BETWEEN_LINES = 2.0, 5.0
MOST_OF_LINE = 1000


class Callback(Protocol):
    """Called with every event; what it returns is added to the event's metrics.

    One that is a context manager, too, is entered while `fit` runs.
    """

    def __call__(self, event: Event) -> Row | None: ...


@dataclass
class Every:
    """Compute metrics of the posterior every so many folds: `Every(lambda q: {...}, folds=5)`."""

    function: Callable[[Family], Row]
    folds: int = 1

    def __call__(self, event: Event) -> Row | None:
        return self.function(event.posterior) if event.fold % self.folds == 0 else None

    def __post_init__(self) -> None:
        check_count("Every: ", folds=self.folds)


@dataclass
class JsonLines:
    """One JSON object per event."""

    stream: TextIO
    extra: Row = field(default_factory=dict)

    def __enter__(self) -> "JsonLines":
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.flush()

    def __call__(self, event: Event) -> None:
        self.stream.write(to_json({"event": "fold", **self.extra, **event.row()}) + "\n")
        self.stream.flush()


class Progress:
    """How far a run is: a Rich bar on a terminal or in a notebook, elsewhere a line of plain text now and then.

    `fit(..., callbacks=[Progress()])` is enough: `fit` enters callbacks that are context managers. Whatever else takes
    its time calls `show`. On standard error, with `console=None`; with `quiet`, nowhere. A `patient` one says nothing
    of what is done within two seconds, and after that what there is to say, even if it has not been told of anything.
    """

    def __init__(self, label: str = "fitting", console: Any = None, quiet: bool = False, patient: bool = False):
        self.label, self._console, self._quiet, self._patient = label, console, quiet, patient
        # What makes the run's free energies those of the data, in their own units.
        self.offset = 0.0
        self._bar: Any = None
        self._entered = 0
        # A patient one begins to speak in a thread of its own.
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None

    def __enter__(self) -> "Progress":
        self._entered += 1
        if self._entered == 1 and not self._quiet:
            from rich.console import Console

            self._console = self._console or Console(stderr=True)
            # The last words, those that were printed last, and when there may be others.
            self._words, self._printed, self._next = "", "", time.monotonic() + FIRST_LINE
            if self._patient:
                self._timer = threading.Timer(FIRST_LINE, self._begin)
                self._timer.daemon = True
                self._timer.start()
            elif self._console.is_terminal or self._console.is_jupyter:
                self._start_bar()
        return self

    def _begin(self) -> None:
        """Two seconds have passed: a bar, or a first line."""
        with self._lock:
            if not self._entered:
                return
            if self._console.is_terminal or self._console.is_jupyter:
                self._start_bar()
            elif not self._printed:
                self._next = time.monotonic() + BETWEEN_LINES
                self._printed = self._words or f"{self.label}: at work"
                self.say(self._printed)

    def _start_bar(self) -> None:
        from rich import progress

        columns: Sequence[Any] = (
            progress.TextColumn("{task.description:<28}", markup=False),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[note]}", markup=False),
            progress.TimeElapsedColumn(),
        )
        # What goes to a file or a pipe must not end up above the bar.
        self._bar = progress.Progress(*columns, console=self._console, redirect_stdout=sys.stdout.isatty())
        self._bar.start()
        self._task = self._bar.add_task(clean(self.label), total=None, note="")

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._entered -= 1
            if self._entered or self._quiet:
                return
            if self._timer is not None:
                self._timer.cancel()
            if self._bar is not None:
                self._bar.stop()
                self._bar = None
            elif self._printed and self._words and self._words != self._printed:
                self.say(self._words)

    def __call__(self, event: Event) -> None:
        # In the first round it is of the prior, which is as far from the data as it is wide.
        energy = ""
        if event.free_energy is not None and event.round > 1:
            energy = f"free energy {event.free_energy + self.offset:.2f}"
        rounds = event.total * event.round / event.version
        words, total = f"{event.step} {int(event.round)} of {rounds:.0f}", event.total
        if event.settled:
            words, total = f"settled in {event.step} {int(event.round)}, of at most {rounds:.0f}", event.version
        self.show(event.version, total, energy, words=words)

    def show(self, done: int, total: int | None, note: str, label: str | None = None, words: str | None = None) -> None:
        """How far it is; where there is no bar to be filled, in words."""
        if self._quiet:
            return
        label = clean(label or self.label)
        with self._lock:
            if self._bar is not None:
                self._bar.update(self._task, description=label, total=total, completed=done, note=clean(note))
                return
            far = words or ("" if total is None else f"{done} of {total}")
            self._words = f"{label}: " + ", ".join(part for part in (far, note) if part)
            if time.monotonic() >= self._next and self._words != self._printed:
                self._next, self._printed = time.monotonic() + BETWEEN_LINES, self._words
                self.say(self._words)

    def say(self, words: str) -> None:
        """A line that stays."""
        if not self._quiet:
            words = clean(words, MOST_OF_LINE)
            self._console.print(words, markup=False, emoji=False, highlight=False, soft_wrap=True)


def tell(event: Event, callbacks: Sequence[Callback]) -> Row:
    """Call everybody who listens; the event's row of history, with what they have measured."""
    check_callbacks(callbacks)
    for callback in callbacks:
        measured = callback(event) or {}
        if not isinstance(measured, Mapping):
            raise InputError(f"callbacks: expected a dictionary of measured values or None, got {measured!r}")
        taken = (event.row().keys() - event.metrics.keys()) & measured.keys() if measured else ()
        if taken:
            raise InputError(
                f"callbacks: {min(taken)!r} is a column of the history itself: give what is measured another name"
            )
        event.metrics.update(measured)
    return event.row()


def check_callbacks(callbacks: Any) -> None:
    """Check that callbacks are a list of functions; a function alone is no list."""
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str | bytes) or not all(map(callable, callbacks)):
        raise InputError(f"callbacks: expected a list of functions of an event, such as [print], got {callbacks!r}")


@contextmanager
def listening(callbacks: Sequence[Callback]) -> Iterator[None]:
    """A context in which callbacks that are context managers are entered."""
    check_callbacks(callbacks)
    with ExitStack() as entered:
        for callback in callbacks:
            if isinstance(callback, AbstractContextManager):
                entered.enter_context(callback)
        yield


@contextmanager
def with_progress(label: str, callbacks: Sequence[Callback], quiet: bool) -> Iterator[Sequence[Callback]]:
    """These callbacks, and patient progress: unless somebody is told of it already, or nobody wants to be."""
    check_callbacks(callbacks)
    if quiet or any(isinstance(one, Progress | JsonLines) for one in callbacks):
        with ExitStack() as entered:
            for one in callbacks:
                if isinstance(one, Progress):
                    entered.enter_context(one)
            yield callbacks
    else:
        with Progress(label, patient=True) as progress:
            yield [*callbacks, progress]


@contextmanager
def in_units(callbacks: Sequence[Callback], offset: float) -> Iterator[None]:
    """Progress shows free energies in the units of the data, as the log evidence is told in the end."""
    shown = [one for one in callbacks if isinstance(one, Progress)]
    for one in shown:
        one.offset = offset
    try:
        yield
    finally:
        for one in shown:
            one.offset = 0.0


def notice(words: str, quiet: bool = False) -> None:
    """A line on standard error for people to read."""
    with Progress(quiet=quiet, patient=True) as progress:
        progress.say(words)
