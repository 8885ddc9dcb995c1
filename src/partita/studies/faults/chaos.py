"""An engine on which everything goes wrong that may: messages are lost, late, doubled, and sites come and go."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from partita.engines import InProcess
from partita.errors import Stalled
from partita.models import prior_of
from partita.server.completion import complete_updates
from partita.site.worker import Worker
from partita.wire.job import Job
from partita.wire.messages import Arrival, Notice, decode_task, decode_update, encode_task, encode_update
from partita.wire.tasks import Task, Update


@dataclass
class Chaos(InProcess):
    """An engine in one process, through the same bytes as on a wire, with chances from 0 to 1 of each fault.

    Args:
        loss: an update does not arrive, and its task is sent again.
        duplicate: something arrives that came before.
        crash: a site loses all that it has in memory.
        leave: a site goes away instead of answering; it comes back later, unless it is in `never_back`.
        corrupt: by site, what becomes of its updates before they are sent.
    """

    seed: int = 0
    loss: float = 0.0
    duplicate: float = 0.0
    crash: float = 0.0
    leave: float = 0.0
    never_back: frozenset[int] = frozenset()
    notices: list[Arrival] = field(default_factory=list)
    corrupt: dict[int, Any] = field(default_factory=dict)

    def open(self, job: Job, shards: Sequence[Any]) -> None:
        super().open(job, shards)
        self._like = prior_of(job.model, job.model.hyper)
        self._chance = random.Random(self.seed)
        self._tasks: list[Task] = []
        self._before: list[Update] = []
        self._away: list[int] = []

    def submit(self, tasks: Sequence[Task], at: float) -> None:
        self._tasks += tasks

    def _happens(self, chance: float) -> bool:
        return self._chance.random() < chance

    def collect(self) -> list[Arrival]:
        while True:
            if self.notices:
                return [self.notices.pop(0)]
            if self._before and self._happens(self.duplicate):
                return [self._chance.choice(self._before)]
            if self._away and (not self._tasks or self._happens(0.3)):
                return [Notice(self._away.pop(0), "back")]
            if not self._tasks:
                raise Stalled("nobody is working, and nobody can be asked")
            task = self._tasks.pop(self._chance.randrange(len(self._tasks)))
            if self._happens(self.leave):
                if task.site not in self.never_back:
                    self._away.append(task.site)
                return [Notice(task.site, "away", "does not answer")]
            if self._happens(self.crash):
                self._worker = Worker(self._worker.job, self._worker.shards)
            (update,) = self._worker.refine([decode_task(encode_task(task), self._like)])
            if task.site in self.corrupt:
                return [*complete_updates([task], [self.corrupt[task.site](update)])]
            if self._happens(self.loss):
                self._tasks.append(task)
                continue
            answer = decode_update(task.site, task.version, encode_update(update), self._like)
            (update,) = complete_updates([task], [answer])
            self._before = [*self._before, update][-20:]
            return [replace(update, finished_at=0.0)]
