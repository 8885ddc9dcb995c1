"""Kill a server around large updates, which lie beside the database: torn writes, short writes, tails that were lost.

As in `failpoints` each life of the server is a child that kills itself. Here every write of a payload takes only a part
of what it is given, as the system may; the last one of a life may be torn, part of it on disk and the rest not. After a
death, what was not yet acknowledged is treated as a power failure might: it stays, is cut short, or comes back as
garbage. `partita study torn-payloads [KILLS]` runs it.
"""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np

import partita as pt
from partita.foundation.compilation import cache_compilations
from partita.server import storage
from partita.studies.faults.killing import describe_kills, die_at, kill_servers, read_journal
from partita.studies.options import Kills, Say

TORN = "torn write"
PLACES = (TORN, "before payload write", "before payload sync", "after payload sync", "before commit", "after commit")
# With so many features an update has 40 kB, which is more than goes into the database.
FEATURES, SITES, UPDATES = 2500, 3, 18


def serve(folder: Path, cache: Path, place: str | None, hits: int, seed: int) -> str:
    """Run a server, or go on with one, with short writes, until it reaches a place for the n-th time and dies."""
    reach, chance, write = die_at(place, hits), random.Random(seed), os.pwrite

    def write_less(handle: int, data: Any, offset: int) -> int:
        # So little is the mark in the lock file.
        if len(data) <= 20:
            return write(handle, data, offset)
        written = write(handle, data[: chance.randint(1, len(data))], offset)
        reach(TORN)
        return written

    storage.failpoint = reach
    os.pwrite = write_less
    cache_compilations(cache)
    generator = np.random.default_rng(0)
    X = generator.normal(size=(60, FEATURES))
    y = X[:, 0] + generator.normal(size=60)
    return pt.fit(
        pt.models.LinearRegression(features=FEATURES, noise=1.0, intercept=False, posterior="mean-field"),
        [(X[site::SITES], y[site::SITES]) for site in range(SITES)],
        schedule=pt.schedules.Asynchronous(updates=UPDATES),
        engine=pt.engines.InProcess(speeds=[1, 2, 3]),
        run_dir=folder,
        resume=True,
    ).fingerprint


def lose_tail(folder: Path, was_killed: bool, chance: random.Random) -> None:
    """Leave anything of what was not acknowledged; what was is on disk."""
    payloads = folder / "payloads"
    if not was_killed or not payloads.exists() or not (folder / "journal.sqlite").exists():
        return
    end = last_acknowledged(folder)
    tail = payloads.stat().st_size - end
    assert tail >= 0, "something acknowledged was lost"
    kind = chance.choice(("stays", "is cut", "is garbage"))
    with payloads.open("r+b") as stream:
        if kind == "is cut":
            stream.truncate(end + chance.randint(0, tail))
        elif kind == "is garbage":
            stream.seek(end)
            stream.write(chance.randbytes(tail + chance.randint(0, 5000)))


def last_acknowledged(folder: Path, most: int = UPDATES) -> int:
    """Where the last payload ends that a row speaks of."""
    rows = read_journal(folder, "place, size", most)
    assert all(place is not None for _, _, place, _ in rows), "an update was not beside the database"
    return max((place + size for _, _, place, size in rows), default=0)


def tear_payloads(say: Say, kills: Kills = 200) -> None:
    say(describe_kills(*kill_servers(serve, PLACES, UPDATES // 3, kills, lose_tail)))
