"""Journals as files that somebody gave us: what their tables are, and how they are read while others write.

Whatever such a file holds, reading it ends: tables are those of a journal and no views, numbers rise from row to row,
texts are no longer than the file, and no query takes more steps than a file of its size could need.
"""

import functools
import math
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, get_args

from partita.errors import CorruptStorage, RunMismatch, StorageError
from partita.foundation import fields
from partita.foundation.files import MOST_JOURNAL, check_size
from partita.foundation.foreign import parse_object
from partita.foundation.plain import Row
from partita.wire.messages import Notice, NoticeKind

JOURNAL_FORMAT = 3
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE arrivals (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, site INTEGER NOT NULL, version INTEGER NOT NULL,
    payload BLOB NOT NULL, place INTEGER, size INTEGER, digest BLOB NOT NULL
) STRICT;
CREATE INDEX by_site ON arrivals (site, version);
CREATE TABLE history (fold INTEGER PRIMARY KEY, row TEXT NOT NULL) STRICT;
CREATE TABLE posteriors (fold INTEGER PRIMARY KEY, digest BLOB NOT NULL) STRICT;
"""
# What large updates are in, beside the database.
PAYLOADS = "payloads"
# The key of `meta` under which the last fold of a run stands that has come to its end.
FINISHED = "finished"
# Characters of a row of history, and of what is read of history at once; bytes of any value.
MOST_ROW, MOST_AT_ONCE, MOST_VALUE = 1_000_000, 50_000_000, 64_000_000
# Steps of SQLite's machine between looks at how many there were, and how many any file may need.
STEPS, FREE_STEPS = 10_000, 10_000_000
# What reports rely on in a row of history; callbacks add what they like.
HISTORY = fields.fields(
    {
        "fold": fields.whole(),
        "version": fields.whole(1),
        "round": fields.number(0),
        "sites": fields.whole(),
        "accepted": fields.number(),
        "staleness": fields.number(0),
        "site": fields.maybe(fields.whole()),
    },
    {name: fields.maybe(fields.number()) for name in ("total", "free_energy", "messages", "bytes", "seconds")},
    fields.anything,
)


def read_history(run_dir: str | os.PathLike[str], after: int = 0, most: int | None = None) -> list[Row]:
    """The history of a run, finished or not; only what came after a fold, and if asked about so many rows of it.

    Of rows that are very long there may be fewer than asked for, but not none.
    """
    query = "SELECT fold, row FROM history WHERE fold > ? ORDER BY fold LIMIT ?"
    found, total = [], 0
    for fold, text in _selected(run_dir, "history", (int, str), query, after, -1 if most is None else most):
        found.append(_history_row(run_dir, fold, text))
        total += len(text)
        if most is not None and total > MOST_AT_ONCE:
            break
    return found


def read_updates(run_dir: str | os.PathLike[str], after: int = 0) -> list[tuple[int, int, int]]:
    """Number, site and task's version of every update after a number: who answered what."""
    query = "SELECT number, site, version FROM arrivals WHERE number > ? AND kind = 'update' ORDER BY number"
    return list(_selected(run_dir, "arrivals", (int, int, int), query, after))


def read_update_payloads(run_dir: str | os.PathLike[str], most: int) -> Iterator[tuple[int, int, int, bytes]]:
    """Number, site, task's version and bytes of every update; bytes of at most so many, or none.

    Args:
        run_dir: of the run.
        most: bytes that an update may have.
    """
    path = Path(run_dir) / PAYLOADS
    query = "SELECT number, site, version, payload, coalesce(place, -1), coalesce(size, 0) FROM arrivals "
    query += "WHERE kind = 'update' ORDER BY number"
    kinds = (int, int, int, bytes, int, int)
    for number, site, version, payload, place, size in _selected(run_dir, "arrivals", kinds, query):
        if place >= 0:
            payload = _read_part(path, place, size) if 0 <= size <= most else b""
        yield number, site, version, payload


def _read_part(path: Path, place: int, size: int) -> bytes:
    """A part of the file that large updates are in."""
    with explain_errors(path):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return os.pread(handle, size, place)
        finally:
            os.close(handle)


def read_notices(run_dir: str | os.PathLike[str]) -> list[Notice]:
    """What a run was told of its sites beside updates, or has decided of them, without strikes."""
    return [notice for notice in _read_all_notices(run_dir) if notice.kind != "struck"]


def read_strikes(run_dir: str | os.PathLike[str]) -> dict[int, list[str]]:
    """Why each site was struck, strike by strike, since it was readmitted last; what quarantined it is the last one."""
    found: dict[int, list[str]] = {}
    for notice in _read_all_notices(run_dir):
        if notice.kind in ("struck", "quarantined"):
            found.setdefault(notice.site, []).append(notice.reason)
        elif notice.kind == "readmitted":
            found.pop(notice.site, None)
    return found


def read_unknown_kinds(run_dir: str | os.PathLike[str]) -> list[str]:
    """Kinds of notices in a journal that this version does not know, and does not show."""
    return sorted({kind for _, kind, _ in _read_kinds(run_dir) if kind not in get_args(NoticeKind)})


def read_finished(run_dir: str | os.PathLike[str]) -> int | None:
    """The fold with which a run has come to its end; zero, if it was resumed and has not; None, if it never has."""
    query = "SELECT 0, value FROM meta WHERE key = ? AND value GLOB '[0-9]*'"
    found = [value for _, value in _selected(run_dir, "meta", (int, str), query, FINISHED)]
    return int(found[0]) if found and found[0].isdecimal() and len(found[0]) < 19 else None


def _read_all_notices(run_dir: str | os.PathLike[str]) -> list[Notice]:
    return [
        Notice(site, kind, payload.decode(errors="replace"))  # type: ignore[arg-type]
        for site, kind, payload in _read_kinds(run_dir)
        if kind in get_args(NoticeKind)
    ]


def _read_kinds(run_dir: str | os.PathLike[str]) -> Iterator[tuple[int, str, bytes]]:
    query = "SELECT number, site, kind, payload FROM arrivals WHERE kind != 'update' ORDER BY number"
    for number, site, kind, payload in _selected(run_dir, "arrivals", (int, int, str, bytes), query):
        if site < 0:
            raise CorruptStorage(f"{_path(run_dir)}: update {number}: there is no site {site}")
        yield site, kind, payload


def _path(run_dir: str | os.PathLike[str]) -> Path:
    return Path(run_dir) / "journal.sqlite"


def _history_row(run_dir: str | os.PathLike[str], fold: int, text: str) -> Row:
    """A row whose numbers are numbers."""
    try:
        row = parse_object(text)
        HISTORY(row, "row")
        if row["fold"] != fold:
            raise ValueError(f"row.fold: expected {fold}, got {row['fold']}")
    except ValueError as error:
        raise CorruptStorage(f"{_path(run_dir)}: history: fold {fold} is not what a run writes ({error})") from None
    return row


def _selected(
    run_dir: str | os.PathLike[str], table: str, kinds: tuple[type, ...], query: str, *values: int | str
) -> Iterator[tuple[Any, ...]]:
    """What a query finds, whoever is writing meanwhile; its first column rises."""
    path = _path(run_dir)
    if not path.exists():
        raise StorageError(f"{path}: no such run")
    with explain_errors(path):
        check_size(path, MOST_JOURNAL)
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            left = bound(database, path, MOST_ROW)
            database.execute("BEGIN")
            check_schema(path, database, table)
            last = -math.inf
            for row in database.execute(query, values):
                if not all(map(isinstance, row, kinds)) or row[0] <= last:
                    raise CorruptStorage(f"{path}: {table}: what follows {last} is not what was written")
                last = row[0]
                left -= sum(len(value) for value in row if isinstance(value, str | bytes))
                if left < 0:
                    raise CorruptStorage(f"{path}: {table}: holds more than a file of its size can")
                yield row


@contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Tell a file that is damaged from one that could not be read this time; the latter may be read another time.

    A query that was stopped by `bound` has its reason in the file.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        if str(error) == "interrupted":
            words = "takes more steps to read than a journal of its size can need: it is damaged"
            raise CorruptStorage(f"{path}: {words}") from error
        raise StorageError(f"{path}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise CorruptStorage(f"{path}: {error}") from error
    except OSError as error:
        raise StorageError(f"{error.filename or path}: {error.strerror or error}") from error


def database_files(path: Path) -> list[Path]:
    """A database, and what SQLite keeps beside it."""
    return [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))]


def bound(database: sqlite3.Connection, path: Path, longest: int = MOST_VALUE) -> int:
    """Let no query take more steps, and no value more bytes, than a file of this size could need; gives its size."""
    size = sum(file.stat().st_size for file in database_files(path) if file.exists())
    left = [(FREE_STEPS + size) // STEPS]

    def step() -> int:
        left[0] -= 1
        return left[0] < 0

    database.set_progress_handler(step, STEPS)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
    database.execute("PRAGMA trusted_schema=OFF")
    return size


@functools.cache
def _schema() -> dict[str, tuple[str, str, str | None]]:
    """Kind, table and definition of everything in a journal, by name."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(SCHEMA)
        return _definitions(database)


def _definitions(database: sqlite3.Connection) -> dict[str, tuple[str, str, str | None]]:
    return {name: rest for name, *rest in database.execute("SELECT name, type, tbl_name, sql FROM sqlite_master")}


def check_schema(path: Path, database: sqlite3.Connection, table: str | None = None) -> None:
    """Check that a journal's tables are what they should be; of one of them, if only that is read."""
    found = _definitions(database)
    wanted = _schema()
    names = found.keys() | wanted.keys() if table is None else {table}
    wrong = sorted(name for name in names if found.get(name) != wanted.get(name))
    if wrong:
        raise CorruptStorage(f"{path}: is not the journal of a run: {', '.join(wrong)} is missing, or something else")


def check_format(path: Path, database: sqlite3.Connection) -> None:
    """Check that this version wrote it, or could have."""
    check_schema(path, database, "meta")
    found = database.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
    if found is None or found[0] != str(JOURNAL_FORMAT):
        given = "none" if found is None else found[0]
        raise RunMismatch(
            f"{path}: format {given}, this version goes on with {JOURNAL_FORMAT} only, whose journals say which "
            "posteriors a run went through: go on with the version that wrote it, or begin again in another folder"
        )
