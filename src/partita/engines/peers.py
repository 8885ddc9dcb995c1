"""What a federation's server knows of each site, and of what it has asked them."""

import time
from dataclasses import dataclass
from typing import Any, Protocol

from partita.foundation.text import MOST_REASON, clean
from partita.wire.questions import Question
from partita.wire.tasks import Task

# Seconds until a site that could not answer is asked again how it is: at first, and at most.
FIRST_WAIT, LONGEST_WAIT = 5.0, 300.0


@dataclass
class Peer:
    """What is known here of one site; its number, once it is part of the run."""

    name: str
    site: int | None = None
    node: int | None = None
    # Whether it has said that it can work, and what it said.
    ready: bool = False
    rows: int | None = None
    problem: str = "has not been here yet"
    # Whether the run was told that it is away.
    missed: bool = False
    last_seen: float | None = None
    not_before: float = 0.0
    wait: float = FIRST_WAIT
    tasks: int = 0
    updates: int = 0
    bytes_down: int = 0
    bytes_up: int = 0

    @property
    def can_work(self) -> bool:
        return self.ready and self.node is not None

    def lost(self, problem: str) -> None:
        """It cannot be asked for a while."""
        self.ready = False
        self.problem = clean(problem, MOST_REASON)
        self.not_before = time.monotonic() + self.wait
        self.wait = min(2 * self.wait, LONGEST_WAIT)

    def welcome(self, rows: float) -> None:
        """It has said that it can work, with so many rows."""
        self.ready, self.problem, self.rows, self.wait = True, "", int(min(rows, 2**53)), FIRST_WAIT


@dataclass
class Asked:
    """A message that has not been answered yet: a task, or a question."""

    peer: Peer
    content: Task | Question
    since: float
    # The connection at which it was asked; a site that comes with another key has another one.
    node: int | None = None

    @property
    def kind(self) -> str:
        return "refine" if isinstance(self.content, Task) else self.content.name

    @property
    def version(self) -> int | None:
        """How many updates the posterior of a task had taken."""
        return self.content.version if isinstance(self.content, Task) else None

    @property
    def words(self) -> str:
        """What was asked, in words."""
        return f"the question {self.kind!r}" if self.version is None else f"task {self.version}"


class Notary(Protocol):
    """Checks that answers are signed by those who sent them, and keeps what was signed."""

    def check(self, site: str, kind: str, version: int | None, payload: bytes, signature: Any) -> str:
        """What is wrong with a site's signature of an answer, which may be anything; nothing, if it fits."""
        ...

    def keep(self) -> None:
        """Wait until the signatures that were checked since the last time are on disk."""
        ...
