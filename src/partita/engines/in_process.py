"""All sites in this process, on a simulated clock."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from partita.errors import EngineError, InputError
from partita.models import AbstractModel
from partita.server.completion import complete_updates
from partita.shards import agree_on_sizes
from partita.site.answering import answer_questions
from partita.site.holder import Holder
from partita.site.worker import Worker
from partita.wire.engine import address
from partita.wire.job import Job
from partita.wire.messages import Arrival
from partita.wire.naming import SiteNames
from partita.wire.questions import Answer, Question
from partita.wire.tasks import Task


@dataclass
class InProcess:
    """A deterministic discrete-event simulation: site m takes 1 / speeds[m] units of time for a task.

    Without speeds, all sites are equally fast. Only the asynchronous schedule notices; the point is that staleness
    can be studied, and repeated exactly.
    """

    speeds: Sequence[float] | None = None
    # The sites' side of the wall: this side hands data over and takes answers and updates back.
    _holder: Holder | None = field(default=None, init=False, repr=False, compare=False)
    _worker: Worker = field(init=False, repr=False, compare=False)

    def connect(
        self, shards: Sequence[Any], names: SiteNames | None = None, model: AbstractModel | None = None
    ) -> None:
        self._holder = Holder(dict(enumerate(shards)), names, model)

    def open(self, job: Job, shards: Sequence[Any]) -> None:
        if self.speeds is not None:
            if len(self.speeds) != len(shards):
                raise InputError(f"speeds: expected {len(shards)}, one per site, got {len(self.speeds)}")
            if not all(np.isfinite(speed) and speed > 0 for speed in self.speeds):
                raise InputError("speeds: must be positive numbers")
        if self._holder is None:
            self.connect(shards, job.names)
        assert self._holder is not None
        connected = len(self._holder.sources)
        counts = self._holder.load(job, dict(enumerate(shards[connected:], connected)))
        self._holder.prepare(agree_on_sizes(counts))
        self._worker = self._holder.worker
        self._queue: list[tuple[float, int, Task]] = []
        self._number = 0

    def ask(self, question: Question | Mapping[int, Question]) -> dict[int, Answer]:
        if self._holder is None:
            raise EngineError("InProcess: connect it to sites before they are asked")
        return answer_questions(self._holder, address(question, len(self._holder.sources)))

    def submit(self, tasks: Sequence[Task], at: float) -> None:
        for task in tasks:
            duration = 1.0 if self.speeds is None else 1 / self.speeds[task.site]
            heapq.heappush(self._queue, (at + duration, self._number, task))
            self._number += 1

    def collect(self) -> list[Arrival]:
        """The next to finish; all that are outstanding, where the schedule waits for all anyway.

        So what is computed in one call does not depend on how far a resumed run had come.
        """
        number = len(self._queue) if self._worker.job.waits else 1
        entries = [heapq.heappop(self._queue) for _ in range(number)]
        tasks = [task for _, _, task in entries]
        updates = complete_updates(tasks, self._worker.refine(tasks))
        return [replace(update, finished_at=at) for update, (at, _, _) in zip(updates, entries, strict=True)]

    def join(self, site: int, name: str) -> None:
        raise EngineError(f"site {name}: sites that come during a run are of federations: see docs/federations.md")

    def close(self) -> None:
        self._holder = None
        self.__dict__.pop("_worker", None)
        self._queue = []
