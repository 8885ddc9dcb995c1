"""How the server's cost grows with sites, parameters and updates.

python -m benchmarks.scaling
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import partita as pt
from partita.families import MeanField
from partita.server.ledger import Ledger
from partita.server.shared_ledger import SharedLedger
from partita.server.storage import Journal
from partita.wire.tasks import Update

REPEATS = 200


def resident() -> float:
    """Megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def median_ms(work: Callable[[int], None]) -> float:
    times = []
    for number in range(REPEATS):
        began = time.perf_counter()
        work(number)
        times.append(time.perf_counter() - began)
    return 1e3 * float(np.median(times))


def by_sites(parameters: int = 50) -> None:
    """Private factors and one shared: an update of one site among many, and the memory of all."""
    change = MeanField(np.full(parameters, 0.01), np.full(parameters, 0.01))
    for kind in (Ledger, SharedLedger):
        for sites in (100, 1_000, 10_000, 100_000):
            before = resident()
            ledger = kind(MeanField.from_moments(np.zeros(parameters), 1.0), sites)
            # Everybody has said something, as after a first round.
            for first in range(0, sites, 1_000):
                some = range(first, min(first + 1_000, sites))
                ledger.fold([Update(site, ledger.version, change, 0.0) for site in some if ledger.dispatch([site], {})])
            memory = resident() - before

            def one(number: int, ledger: Ledger = ledger, sites: int = sites) -> None:
                (task,) = ledger.dispatch([number * 7919 % sites], {})
                ledger.fold([Update(task.site, task.version, change, 0.0)])

            print(f"{kind.__name__}, {sites:,} sites: {median_ms(one):.3f} ms an update, {memory:.0f} MB", flush=True)
            del ledger


def by_parameters(sites: int = 10) -> None:
    """An update that is written, committed and folded."""
    for parameters in (1_000, 10_000, 100_000, 1_000_000):
        prior = MeanField.from_moments(np.zeros(parameters, np.float32), np.float32(1.0))
        change = MeanField(np.full(parameters, 0.01, np.float32), np.full(parameters, 0.01, np.float32))
        ledger = Ledger(prior, sites)
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as place, Journal(place, {}, prior, resume=False) as journal:

            def one(
                number: int, ledger: Ledger = ledger, journal: Journal = journal, change: MeanField = change
            ) -> None:
                (task,) = ledger.dispatch([number % sites], {})
                update = Update(task.site, task.version, change, 0.0)
                ledger.check([update])
                journal.append([update])
                ledger.fold([update])

            print(f"{parameters:,} parameters: {median_ms(one):.2f} ms an update, with fsync", flush=True)


def by_updates() -> None:
    """How long it takes to carry on after a crash."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(200, 49))
    y = (X[:, 0] > 0).astype(float)
    shards = [(X[i::10], y[i::10]) for i in range(10)]
    model = pt.models.LogisticRegression(features=49, posterior="mean-field")
    for rounds in (30, 100, 300):
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
            settings = {"schedule": pt.schedules.Synchronous(rounds=rounds), "run_dir": place}
            pt.fit(model, shards, **settings)
            began = time.perf_counter()
            pt.fit(model, shards, resume=True, **settings)
            seconds = time.perf_counter() - began
        print(f"{10 * rounds:,} updates of 50 parameters: resumed in {seconds:.2f} s", flush=True)


if __name__ == "__main__":
    by_sites()
    by_parameters()
    by_updates()
