"""Kill a server at named places around write, commit and fold, resume it, kill it again, and compare what comes out.

A parent that has imported everything and computed nothing forks a child for each life of the server; the child kills
itself with SIGKILL when it reaches a place for the n-th time. `partita study failpoints [KILLS]` runs it.
"""

import random
from pathlib import Path

import partita as pt
from partita.foundation.compilation import cache_compilations
from partita.server import storage
from partita.server.events import Event
from partita.studies.faults.killing import describe_kills, die_at, kill_servers, read_journal
from partita.studies.options import Kills, Say

PLACES = ("before write", "before commit", "after commit", "before fold", "after fold")
UPDATES = 60


def serve(folder: Path, cache: Path, place: str | None, hits: int, seed: int) -> str:
    """Run a server, or go on with one, until it reaches a place for the n-th time and dies; return the fingerprint."""
    storage.failpoint = die_at(place, hits)
    cache_compilations(cache)
    X, y = pt.datasets.load("breast-cancer")
    shards = pt.datasets.split((pt.datasets.standardised(X)[:, :5], y), sites=4)
    acknowledged = (folder.parent / f"{folder.name}.acknowledged").open("a")

    def note(event: Event) -> None:
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


def check_journal(folder: Path, was_killed: bool, chance: random.Random) -> None:
    """Check that whatever was acknowledged by now is on disk, and everything is there once."""
    if not (folder / "journal.sqlite").exists():
        return
    taken = read_journal(folder, "number", UPDATES)
    acknowledged = [int(word) for word in (folder.parent / f"{folder.name}.acknowledged").read_text().split()]
    assert max(acknowledged, default=0) <= len(taken), "something acknowledged was lost"
    assert len(acknowledged) == len(set(acknowledged)), "something was acknowledged twice"


def kill_at_failpoints(say: Say, kills: Kills = 200) -> None:
    say(describe_kills(*kill_servers(serve, PLACES, UPDATES // 3, kills, check_journal)))
