"""What the server itself costs: folds with fsync, many sites, and what Ray adds to a round.

python -m benchmarks.server [FOLDS]
"""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np

import partita as pt
from benchmarks.scaling import resident
from partita.models import prior_of
from partita.server.ledger import Ledger
from partita.wire.job import Job
from partita.wire.messages import Arrival, Compression, decode_task, decode_update, encode_task, encode_update
from partita.wire.tasks import Task, Update

FOLDS, MANY = 10_000, 10_000


class Instant(pt.engines.InProcess):
    """Sites that have their answer ready: what is left is the server."""

    def open(self, job: Job, shards: Sequence[Any]) -> None:
        super().open(job, shards)
        prior = prior_of(job.model, job.model.hyper)
        generator = np.random.default_rng(0)
        self._change = jax.tree.map(lambda a: np.asarray(0.01 * generator.normal(size=np.shape(a)), a.dtype), prior)
        self._tasks: list[Task] = []

    def submit(self, tasks: Sequence[Task], at: float) -> None:
        self._tasks += tasks

    def collect(self) -> list[Arrival]:
        number = len(self._tasks) if self._worker.job.waits else 1
        tasks, self._tasks = self._tasks[:number], self._tasks[number:]
        return [Update(task.site, task.version, self._change, 0.0) for task in tasks]


def folds_with_fsync(folds: int) -> None:
    """The whole loop with a network of 784-200-10: an update is checked, written, committed and folded."""
    model = pt.models.Network([784, 200, 10])
    weights = prior_of(model, model.hyper).nbytes // 8
    shards = [(np.zeros((1, 784), np.float32), np.zeros(1, int))] * 10
    for schedule in (pt.schedules.Synchronous(rounds=folds // 10), pt.schedules.Asynchronous(updates=folds)):
        times, memory = [], []

        def look(event: pt.telemetry.Event, times: list = times, memory: list = memory) -> None:
            times.append((time.perf_counter(), event.version))
            if event.version % (folds // 10) == 0:
                memory.append(resident())

        with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
            pt.fit(model, shards, schedule=schedule, damping=1e-3, engine=Instant(), run_dir=place, callbacks=[look])
            size = sum(file.stat().st_size for file in Path(place).iterdir()) / 1e9
        (began, first), (ended, last) = times[len(times) // 10], times[-1]
        print(
            f"{type(schedule).__name__}, updates of {weights:,} weights with fsync: "
            f"{(last - first) / (ended - began):.0f} per second over {folds:,}; {size:.1f} GB on disk"
        )
        print("megabytes of memory, ten times: " + ", ".join(f"{value:.0f}" for value in memory))
    prior = prior_of(model, model.hyper)
    (task,) = Ledger(prior, 1).dispatch([0], {}, message_only=True)
    for compression in get_args(Compression):
        down, up = len(encode_task(task, compression)), len(encode_update(Update(0, 0, prior, 0.0), compression))
        print(f"bytes on the wire, {compression}: {down:,} down, {up:,} up; 8 per weight are {8 * weights:,}")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
        payload = bytes(prior.nbytes)
        began = time.perf_counter()
        with (Path(place) / "bare").open("wb", buffering=0) as stream:
            for _ in range(100):
                stream.write(payload)
                os.fsync(stream.fileno())
        bare = (time.perf_counter() - began) / 100
    print(f"the disk alone, as many bytes with fsync: {1 / bare:.0f} per second")


def many_sites() -> None:
    ledger = Ledger(pt.families.MeanField.from_moments(np.zeros(50), 1.0), MANY)
    change = pt.families.MeanField(np.full(50, 0.01), np.full(50, 0.01))
    number, dispatch, fold = 2000, 0.0, 0.0
    for i in range(number):
        began = time.perf_counter()
        (task,) = ledger.dispatch([i * 7 % MANY], {})
        dispatched = time.perf_counter()
        ledger.fold([Update(task.site, task.version, change, 0.0)])
        dispatch, fold = dispatch + dispatched - began, fold + time.perf_counter() - dispatched
    each = 1e3 / number
    print(f"{MANY:,} sites, 50 parameters: {each * dispatch:.3f} ms to dispatch, {each * fold:.3f} ms to fold")


@dataclass
class Wired(pt.engines.InProcess):
    """In this process, with messages as they are on a wire."""

    compression: Compression = "none"

    def open(self, job: Job, shards: Sequence[Any]) -> None:
        super().open(job, shards)
        self._like = prior_of(job.model, job.model.hyper)
        work = self._worker.refine

        def refine(tasks: Sequence[Task]) -> list[Update]:
            sent = [decode_task(encode_task(task, self.compression), self._like) for task in tasks]
            back = [(update, encode_update(update, self.compression)) for update in work(sent)]
            return [decode_update(update.site, update.version, payload, self._like) for update, payload in back]

        self._worker.refine = refine


def compression_costs(seeds: int = 3) -> None:
    """Digits over ten sites with one or two classes each."""
    train, test = pt.datasets.train_test(pt.datasets.load("digits"), 0.2, seed=0)
    train, test = ((np.asarray(X / 16, np.float32), y) for X, y in (train, test))
    model = pt.models.Network([64, 50, 10])
    for compression in get_args(Compression):
        found = []
        for seed in range(seeds):
            shards = pt.datasets.split(train, sites=10, how="by-label", seed=seed)
            schedule = pt.schedules.Synchronous(rounds=60)
            result = pt.fit(model, shards, schedule=schedule, engine=Wired(compression=compression), seed=seed)
            scores = model.score(pt.predictive.expected_response(model, result.posterior, test[0]), test[1])
            found.append((100 * scores["error"], scores["nll"]))
        error, nll = np.mean(found, axis=0)
        spread = np.ptp(found, axis=0) / 2
        print(f"compression {compression}: error {error:.2f} ± {spread[0]:.2f} %, NLL {nll:.4f} ± {spread[1]:.4f}")


def ray_overhead(rounds: int = 10) -> None:
    """Seconds a round after the first two, which compile."""
    X, y = pt.datasets.load("mnist")
    shards = pt.datasets.split((X[:60_000], y[:60_000]), sites=10)
    model = pt.models.Network([784, 200, 10])

    def seconds(engine: pt.engines.Engine) -> float:
        times: list[float] = []
        schedule = pt.schedules.Synchronous(rounds=rounds + 2)
        pt.fit(model, shards, schedule=schedule, engine=engine, callbacks=[lambda _: times.append(time.perf_counter())])
        return float(np.median(np.diff(times)[1:]))

    here, there = seconds(pt.engines.InProcess()), seconds(pt.engines.Ray())
    print(f"a round of 10 sites: {here:.2f} s in-process, {there:.2f} s on Ray, {there / here:.2f} ×")


if __name__ == "__main__":
    folds_with_fsync(int(sys.argv[1]) if len(sys.argv) > 1 else FOLDS)
    many_sites()
    compression_costs()
    ray_overhead()
