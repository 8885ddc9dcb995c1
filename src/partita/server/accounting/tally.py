"""What a run has cost so far: messages, bytes and seconds."""

from collections.abc import Sequence
from dataclasses import dataclass

from partita.server.flights import Flights
from partita.wire.tasks import Task, Update


@dataclass(frozen=True)
class SiteWork:
    """What one site's part of a fold took: computation, and one message each way."""

    site: int
    seconds: float
    steps: int
    staleness: int
    bytes_down: int
    bytes_up: int


@dataclass
class Tally:
    """What has been counted so far."""

    seconds: float = 0.0
    clock: float = 0.0
    messages: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    folds: int = 0

    @property
    def bytes(self) -> int:
        return self.bytes_down + self.bytes_up

    def sent(self, tasks: Sequence[Task]) -> None:
        """Count tasks that have been handed out."""
        self.messages += len(tasks)
        self.bytes_down += sum(task.nbytes for task in tasks)

    def received(self, updates: Sequence[Update], version: int, flights: Flights) -> tuple[SiteWork, ...]:
        """Count updates that are about to be folded into a posterior of this version; gives what each of them took."""
        work = tuple(
            SiteWork(
                site=update.site,
                seconds=update.seconds,
                steps=update.steps,
                staleness=version - update.version,
                bytes_down=flights[update.site].task.nbytes,
                bytes_up=update.nbytes,
            )
            for update in updates
        )
        self.folds += 1
        self.messages += len(updates)
        self.bytes_up += sum(one.bytes_up for one in work)
        self.seconds += sum(update.seconds for update in updates)
        self.clock = max([self.clock, *(update.finished_at for update in updates)])
        return work
