"""All sites in this process, on a simulated clock."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from partita.errors import InputError
from partita.families import Family
from partita.models import Hyper
from partita.server.completion import complete_updates
from partita.site.worker import Worker, digest_shard, load_shards
from partita.wire.job import Job
from partita.wire.messages import Arrival
from partita.wire.tasks import Task


@dataclass
class InProcess:
    """A deterministic discrete-event simulation: site m takes 1 / speeds[m] units of time for a task.

    Without speeds, all sites are equally fast. Only the asynchronous schedule notices; the point is that staleness
    can be studied, and repeated exactly.
    """

    speeds: Sequence[float] | None = None

    def open(self, job: Job, shards: Sequence[Any]) -> None:
        if self.speeds is not None:
            if len(self.speeds) != len(shards):
                raise InputError(f"speeds: expected {len(shards)}, one per site, got {len(self.speeds)}")
            if not all(np.isfinite(speed) and speed > 0 for speed in self.speeds):
                raise InputError("speeds: must be positive numbers")
        self._worker = Worker(job, dict(enumerate(load_shards(job.model, shards))))
        self._queue: list[tuple[float, int, Task]] = []
        self._number = 0

    def digests(self) -> list[str]:
        return [digest_shard(shard) for shard in self._worker.shards.values()]

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

    def evaluate(self, posterior: Family, hyper: Hyper, factors: Sequence[Family] | None = None) -> dict[int, float]:
        return self._worker.evaluate(posterior, hyper, None if factors is None else dict(enumerate(factors)))

    def close(self) -> None:
        del self._worker, self._queue
