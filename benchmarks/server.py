"""What the server itself costs: folds with fsync, many sites, and what Ray adds to a round.

python -m benchmarks.server
"""

import os
import resource
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

import partita as pt
from partita.ledger import Ledger, Update
from partita.messages import encoded_task, encoded_update
from partita.models import prior_of
from partita.storage import Journal

FOLDS, MANY = 400, 10_000


def folds_with_fsync() -> None:
    """A network of 784-200-10: an update is written, committed, and folded."""
    model = pt.models.Network([784, 200, 10])
    prior = prior_of(model, model.hyper)
    generator = np.random.default_rng(0)
    noise = jax.tree.map(lambda a: np.asarray(0.01 * generator.normal(size=np.shape(a)), a.dtype), prior)
    ledger = Ledger(prior, 10)
    weights = prior.nbytes // 8
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place, Journal(place, {}, prior, resume=False) as journal:
        began = time.perf_counter()
        memory = 0
        for number in range(FOLDS):
            site = number % 10
            (task,) = ledger.dispatch([site], {})
            update = Update(site, task.version, noise, 0.0)
            ledger.check([update])
            journal.append([update])
            ledger.fold([update])
            if number == FOLDS // 4:
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds = (time.perf_counter() - began) / FOLDS
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
    print(f"fold with fsync, {weights:,} weights: {1 / seconds:.0f} per second; memory grew by {grown:.1f} MB")
    down, up = len(encoded_task(task)), len(encoded_update(update))
    print(f"bytes on the wire: {down:,} down, {up:,} up; 8 bytes per weight are {8 * weights:,}")
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
    began, number = time.perf_counter(), 2000
    for i in range(number):
        (task,) = ledger.dispatch([i % MANY], {})
        ledger.fold([Update(task.site, task.version, change, 0.0)])
    print(f"{MANY:,} sites, 50 parameters: {1e3 * (time.perf_counter() - began) / number:.2f} ms to dispatch and fold")


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
    folds_with_fsync()
    many_sites()
    ray_overhead()
