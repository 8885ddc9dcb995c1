"""Kill a server at named places around write, commit and fold, resume it, kill it again, and compare what comes out.

A parent that has imported everything and computed nothing forks a child for each life of the server; the child kills
itself with SIGKILL when it reaches a place for the n-th time. `partita study failpoints [KILLS]` runs it.
"""

import os
import random
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import partita as pt
from partita.foundation.runtime import cache_compilation
from partita.server import storage
from partita.studies.options import Kills, Say

PLACES = ("before write", "before commit", "after commit", "before fold", "after fold")
UPDATES = 60


def serve(folder: Path, cache: Path, place: str | None, hits: int) -> str:
    """Run a server, or go on with one, until it reaches a place for the n-th time and dies; return the fingerprint."""
    left = [hits]

    def crash(reached: str) -> None:
        left[0] -= reached == place
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    storage.failpoint = None if place is None else crash
    cache_compilation(cache)
    X, y = pt.datasets.load("breast-cancer")
    shards = pt.datasets.split((pt.datasets.standardised(X)[:, :5], y), sites=4)
    acknowledged = (folder.parent / f"{folder.name}.acknowledged").open("a")

    def note(event: pt.telemetry.Event) -> None:
        if not event.replayed:
            acknowledged.write(f"{event.version}\n")
            acknowledged.flush()

    return pt.fit(
        pt.models.LogisticRegression(features=5),
        shards,
        schedule=pt.schedules.Asynchronous(updates=UPDATES),
        engine=pt.engines.InProcess(speeds=[1, 2, 3, 5]),
        run_dir=folder,
        resume=True,
        callbacks=[note],
    ).fingerprint


def live(life: Callable[..., str], *arguments: object) -> str | None:
    """The fingerprint that a child's life ends with; None, if it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            os.write(writing, life(*arguments).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        text = stream.read().decode()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    assert text, "a server failed"
    return text


def kill_at_failpoints(say: Say, kills: Kills = 200) -> None:
    chance = random.Random(0)
    done = runs = 0
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        expected = live(serve, place / "whole", place / "cache", None, 0)
        while done < kills:
            folder, found = place / f"run-{runs}", None
            while found is None:
                point, hits = chance.choice(PLACES), chance.randint(1, UPDATES // 3)
                found = live(serve, folder, place / "cache", point if done < kills else None, hits)
                done += found is None
                check_journal(folder)
            assert found == expected, f"run {runs} ended elsewhere"
            runs += 1
    say(f"{done} kills in {runs} runs: all ended as the run that was never killed")


def check_journal(folder: Path) -> None:
    """Whatever was acknowledged by now is on disk, and everything is there once."""
    if not (folder / "journal.sqlite").exists():
        return
    # A copy is looked at, because to look at a journal would mend it.
    seen = folder.with_name("seen")
    shutil.rmtree(seen, ignore_errors=True)
    shutil.copytree(folder, seen)
    with closing(sqlite3.connect(seen / "journal.sqlite")) as database:
        taken = database.execute("SELECT site, version FROM arrivals").fetchall()
    assert len(set(taken)) == len(taken) <= UPDATES
    acknowledged = [int(word) for word in (folder.parent / f"{folder.name}.acknowledged").read_text().split()]
    assert max(acknowledged, default=0) <= len(taken), "something acknowledged was lost"
    assert len(acknowledged) == len(set(acknowledged)), "something was acknowledged twice"
