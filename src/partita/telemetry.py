"""Events of a run, and those who listen: history, metrics, progress bars, JSON lines."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

import jax
import numpy as np

from partita.accounting import SiteWork
from partita.checks import check_count
from partita.families import Family
from partita.models import Hyper

Row = dict[str, Any]


@dataclass(frozen=True)
class Event:
    """One fold: who contributed, how much of it was taken, and what it cost so far."""

    fold: int
    version: int
    round: float
    sites: tuple[int, ...]
    wanted: float
    accepted: float
    taken_back: bool
    staleness: int
    free_energy: float | None
    change: float
    problems: tuple[str, ...]
    seconds: float
    clock: float
    messages: int
    bytes_down: int
    bytes_up: int
    # What each site's part of this fold took.
    work: tuple[SiteWork, ...]
    hyper: Hyper
    posterior: Family
    total: int
    replayed: bool = False
    # Updates that were refused since the last fold, in words.
    refused: tuple[str, ...] = ()
    metrics: Row = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return self.bytes_down + self.bytes_up

    def row(self) -> Row:
        """A flat row of plain values; a fixed number of them, whatever the number of sites."""
        return {
            "fold": self.fold,
            "version": self.version,
            "round": self.round,
            "site": self.sites[0] if len(self.sites) == 1 else None,
            "sites": len(self.sites),
            "wanted": self.wanted,
            "accepted": self.accepted,
            "damped": self.accepted < self.wanted,
            "taken_back": self.taken_back,
            "staleness": self.staleness,
            "free_energy": self.free_energy,
            "change": self.change,
            "problems": len(self.problems),
            "problem": self.problems[0] if self.problems else None,
            "refused": len(self.refused),
            "seconds": self.seconds,
            "clock": self.clock,
            "messages": self.messages,
            "bytes": self.bytes,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            **{f"hyper.{name}": value for name, value in self.hyper.items()},
            **self.metrics,
        }


class Callback(Protocol):
    """Called with every event; what it returns is added to the event's metrics."""

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
    """A Rich progress bar; with `console=None`, on standard error."""

    def __init__(self, label: str = "fitting", console: Any = None):
        self.label, self._console = label, console

    def __enter__(self) -> "Progress":
        from rich import progress
        from rich.console import Console

        columns: Sequence[Any] = (
            progress.TextColumn("{task.description:<28}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[note]}"),
            progress.TimeElapsedColumn(),
        )
        self._bar = progress.Progress(*columns, console=self._console or Console(stderr=True))
        self._bar.start()
        self._task = self._bar.add_task(self.label, total=None, note="")
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, event: Event) -> None:
        energy = "" if event.free_energy is None else f"free energy {event.free_energy:.2f}"
        self.show(event.version, event.total, energy)

    def show(self, done: int, total: int | None, note: str, label: str | None = None) -> None:
        """How far it is, in whatever words."""
        self._bar.update(self._task, description=label or self.label, total=total, completed=done, note=note)


def to_json(row: Row) -> str:
    """Plain JSON: numbers that are not finite become null."""
    return json.dumps({key: plain(value) for key, value in row.items()}, allow_nan=False)


def plain(value: Any) -> Any:
    """Only what JSON knows."""
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        value = np.asarray(value).tolist()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
