"""Servers that die on purpose: each life is a child that is forked before anything is computed, and may be killed."""

import os
import random
import shutil
import signal
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any


def die_at(place: str | None, hits: int) -> Callable[[str], None]:
    """A function to be called at named places; it kills this process at one of them, the n-th time that it is there."""
    left = [hits]

    def reach(where: str) -> None:
        left[0] -= where == place
        if where == place and left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return reach


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


def kill_servers(
    serve: Callable[..., str],
    places: Sequence[str],
    most_hits: int,
    kills: int,
    inspect: Callable[[Path, bool, random.Random], None],
) -> tuple[Counter[str], int]:
    """Kill servers at random places and resume them, until there were so many kills.

    All have to end as one that is never killed. `serve` is given a folder, a folder for compiled programs, the place
    to die at, how often it is reached before, and a seed; `inspect` is given the folder after every life, and whether
    the server was killed.

    Returns:
        How many died at which place, and how many runs there were.
    """
    chance, died, runs = random.Random(0), Counter[str](), 0
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        expected = live(serve, root / "whole", root / "cache", None, 0, 0)
        assert expected is not None
        while died.total() < kills:
            folder, found = root / f"run-{runs}", None
            while found is None:
                place = chance.choice(places) if died.total() < kills else None
                hits, seed = chance.randint(1, most_hits), chance.randrange(2**32)
                found = live(serve, folder, root / "cache", place, hits, seed)
                died.update([str(place)] if found is None else [])
                inspect(folder, found is None, chance)
            assert found == expected, f"run {runs} ended elsewhere"
            runs += 1
            shutil.rmtree(folder)
    return died, runs


def describe_kills(died: Counter[str], runs: int) -> str:
    where = ", ".join(f"{number} at {place}" for place, number in died.items())
    return f"{died.total()} kills in {runs} runs ({where}): all ended as the run that was never killed"


def read_journal(folder: Path, columns: str, most: int) -> list[tuple[Any, ...]]:
    """The site, the version and these columns of every update in the journal of a run, each of which is there once.

    A copy is read, because to open a journal would mend it.
    """
    copy = folder.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for path in folder.glob("journal.sqlite*"):
        shutil.copy(path, copy)
    with closing(sqlite3.connect(copy / "journal.sqlite")) as database:
        rows = database.execute(f"SELECT site, version, {columns} FROM arrivals ORDER BY number").fetchall()
    assert len({row[:2] for row in rows}) == len(rows) <= most
    return rows
