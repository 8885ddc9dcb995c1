"""What survives a crash: the journal of a run. SQLite and safetensors; never pickle.

The journal holds everything that came from sites, in the order in which it was taken, committed before anybody hears of
it. All else (ledger, damping, schedule, clock) is a deterministic function of that, so a run is resumed by going
through it again. Whether it was the same function is seen from the posteriors, whose digests are in the journal too.
"""

import hashlib
import json
import os
import platform
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np

from partita._version import __version__
from partita.errors import CorruptStorage, MalformedUpdate, RunMismatch, StorageError
from partita.families import Family
from partita.foundation.archives import read_arrays as read_arrays
from partita.foundation.archives import write_text
from partita.foundation.descriptions import differences
from partita.foundation.files import check_private, make_folder, open_private, read_json, sync_folder
from partita.foundation.foreign import parse_json
from partita.foundation.locks import try_lock
from partita.foundation.plain import Row, to_json
from partita.foundation.text import clean
from partita.server.journals import (
    FINISHED,
    JOURNAL_FORMAT,
    MOST_ROW,
    PAYLOADS,
    SCHEMA,
    bound,
    check_format,
    check_schema,
    database_files,
    explain_errors,
)
from partita.server.journals import read_finished as read_finished
from partita.server.journals import read_history as read_history
from partita.server.journals import read_updates as read_updates
from partita.wire.messages import Arrival, Notice, NoticeKind, decode_update, largest, update_parts
from partita.wire.tasks import Update

# Updates of more bytes are kept beside the database, which would write them twice.
INLINE = 32_768
# A payload in parts that follow each other; and what a row begins with: number, kind, site and version.
Parts = Sequence[bytes | memoryview]
Key = tuple[int, str, int, int]
# What sites are called, beside a journal.
NAMES_FILE = "sites.json"


class Journal:
    """The write-ahead log of one run, in `run_dir/journal.sqlite`. A context manager.

    Large updates are in `run_dir/payloads`, which is only appended to: on disk before the row that says where they are.
    """

    def __init__(self, run_dir: str | os.PathLike[str], description: Row, like: Family, resume: bool):
        self.folder = Path(run_dir)
        self.path = self.folder / "journal.sqlite"
        self._like = like
        self._sites = len(description["shards"]) if "shards" in description else None
        with ExitStack() as opened, explain_errors(self.path):
            make_folder(self.folder)
            self._lock = _open_locked(self.folder / "lock")
            opened.callback(os.close, self._lock)
            self._database = self._open(description, resume)
            opened.callback(self._database.close)
            self._payloads = open_private(self.folder / PAYLOADS)
            opened.callback(os.close, self._payloads)
            # Waits for the disk, where there is something else to do meanwhile.
            self._disk = ThreadPoolExecutor(1)
            opened.callback(self._disk.shutdown)
            self._check(description)
            if resume:
                # Whoever follows a run that goes on must not take its earlier end for the end.
                self.finish(0)
            self._check_mark()
            self._end = self._check_payloads()
            sync_folder(self.folder)
            self._rows = {fold for (fold,) in self._database.execute("SELECT fold FROM history")}
            self._digests = dict(self._database.execute("SELECT fold, digest FROM posteriors"))
            self._database.set_progress_handler(None, 0)
            self._opened = opened.pop_all()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._opened.close()

    def _open(self, description: Row, resume: bool) -> sqlite3.Connection:
        for path in database_files(self.path):
            check_private(path)
        if self.path.exists() and not resume:
            raise RunMismatch(
                f"{self.folder} holds a run already: resume it (resume=True, --resume), or use another folder"
            )
        if not self.path.exists():
            _create(self.path, description)
        return _connected(self.path)

    def _check(self, description: Row) -> None:
        check_format(self.path, self._database)
        check_schema(self.path, self._database)
        stored = dict(self._database.execute("SELECT key, value FROM meta"))
        self._made_with = _read_value(stored.pop("made_with", "{}"))
        stored.pop(FINISHED, None)
        wanted = _meta(description)
        if stored != wanted:
            there, here = ({key: _read_value(text) for key, text in meta.items()} for meta in (stored, wanted))
            raise RunMismatch(
                f"{self.path}: this is another run; it differs in {differences(there, here)}: "
                "use the same, or another folder"
            )

    def _check_mark(self) -> None:
        """Check that everything is there that was ever acknowledged, as far as the lock file knows."""
        mark = os.pread(self._lock, 20, 0).decode("ascii", "replace").strip()
        (last,) = self._database.execute("SELECT coalesce(max(number), 0) FROM arrivals").fetchone()
        if mark.isdigit() and int(mark) > last:
            raise CorruptStorage(f"{self.path}: update {mark} was acknowledged, and only {last} are there")

    def _check_payloads(self) -> int:
        """Where the next payload goes. What is behind the last row's was never acknowledged."""
        (end,) = self._database.execute("SELECT coalesce(max(place + size), 0) FROM arrivals").fetchone()
        size = os.fstat(self._payloads).st_size
        if not isinstance(end, int) or size < end:
            raise CorruptStorage(f"{self.folder / PAYLOADS}: has {size} bytes, and {end} were acknowledged")
        os.ftruncate(self._payloads, end)
        return end

    def recorded(self) -> Iterator[Arrival]:
        """What was taken, in order, as it is on disk now."""
        query = "SELECT number, kind, site, version, payload, place, size, digest FROM arrivals ORDER BY number"
        last, sites = 0, self._sites
        with explain_errors(self.path):
            for number, kind, site, version, payload, place, size, digest in self._database.execute(query):
                if place is not None:
                    payload = self._read(place, size)
                if not isinstance(payload, bytes) or _digest(number, kind, site, version, payload) != digest:
                    where = self.path if place is None else self.folder / PAYLOADS
                    raise CorruptStorage(
                        f"{where}: update {number} (site {site}) is not what was written: the file is damaged, or was "
                        "changed; restore a copy of the folder, or begin again in another one"
                    )
                if number != last + 1:
                    raise CorruptStorage(f"{self.path}: something is missing before update {number} (site {site})")
                last = number
                if kind == "joined" and sites is not None:
                    sites += 1
                yield self._arrival(number, kind, site, version, payload, sites)

    def _read(self, place: Any, size: Any) -> bytes:
        """A payload; nothing, where no payload can be."""
        if not (isinstance(place, int) and isinstance(size, int) and place >= 0 and 0 <= size <= largest(self._like)):
            return b""
        try:
            return os.pread(self._payloads, size, place)
        except OSError as error:
            raise StorageError(f"{self.folder / PAYLOADS}: could not be read: {error.strerror or error}") from error

    def _arrival(self, number: int, kind: Any, site: Any, version: Any, payload: bytes, sites: int | None) -> Arrival:
        try:
            if not isinstance(site, int) or site < 0 or (sites is not None and site >= sites):
                raise ValueError(f"there is no site {site}")
            if kind == "update":
                return decode_update(site, version, payload, self._like)
            if kind not in get_args(NoticeKind):
                raise ValueError(f"{kind!r}: is not what a run can be told of a site")
            return Notice(site, kind, payload.decode())
        except (MalformedUpdate, ValueError) as error:
            raise CorruptStorage(f"{self.path}: update {number}: {error}") from error

    def append(self, arrivals: Sequence[Arrival]) -> None:
        """Commit what came; when this returns it is on disk."""
        try:
            reached("before write")
            with self._database:
                last = self._database.execute("SELECT coalesce(max(number), 0) FROM arrivals").fetchone()[0]
                written = []
                for number, arrival in enumerate(arrivals, last + 1):
                    kind, version, parts = _read_arrival(arrival)
                    written.append(((number, kind, arrival.site, version), parts, self._keep(parts)))
                rows = self._seal(written)
                self._database.executemany("INSERT INTO arrivals VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
                reached("before commit")
            os.pwrite(self._lock, b"%20d" % rows[-1][0], 0)
            reached("after commit")
        except (sqlite3.Error, OSError) as error:
            raise StorageError(f"{self.path}: could not write: {error}; it was not acknowledged") from error

    def _keep(self, parts: Parts) -> tuple[bytes, int | None, int | None]:
        """What the row holds: a payload, or where a large one was written."""
        size = sum(map(len, parts))
        if size <= INLINE:
            return b"".join(parts), None, None
        place = end = self._end
        for part in parts:
            left = memoryview(part)
            while left:
                reached("before payload write")
                written = os.pwrite(self._payloads, left, end)
                left, end = left[written:], end + written
        self._end = end
        return b"", place, size

    def _seal(
        self, written: Sequence[tuple[Key, Parts, tuple[bytes, int | None, int | None]]]
    ) -> list[tuple[Any, ...]]:
        """Rows with their digests. Large payloads are on disk then, which works while digests are computed."""
        synced = None
        if any(place is not None for _, _, (_, place, _) in written):
            reached("before payload sync")
            synced = self._disk.submit(os.fdatasync, self._payloads)
        rows = [(*key, *kept, _digest(*key, *parts)) for key, parts, kept in written]
        if synced is not None:
            synced.result()
            reached("after payload sync")
        return rows

    def receipt(self, site: int, version: int) -> int | None:
        """The number of the update that answered a task, if there is one."""
        query = "SELECT number FROM arrivals WHERE site = ? AND version = ?"
        found = self._database.execute(query, (site, version)).fetchone()
        return None if found is None else found[0]

    def digest_of(self, posterior: Family) -> bytes:
        """What is written down of a posterior."""
        return posterior_digest(posterior)

    def add_posterior(self, fold: int, digest: bytes) -> None:
        """What a fold has led to; on resume, that it leads there again."""
        if fold not in self._digests:
            self._digests[fold] = digest
            self._write_soon("INSERT INTO posteriors VALUES (?, ?)", fold, digest)
        elif self._digests[fold] != digest:
            changed = differences(self._made_with, made_with()) or "code: of Partita, a model or a rule"
            raise RunMismatch(
                f"{self.path}: fold {fold} leads to another posterior than when the run was made; what differs is "
                f"{changed}: resume with what it was made with, or begin again in another folder"
            )

    def add_row(self, fold: int, row: Row) -> None:
        """A row of history, for reports."""
        if fold in self._rows:
            return
        self._rows.add(fold)
        text = to_json(row)
        if len(text) > MOST_ROW:
            raise StorageError(f"{self.path}: a row of history has {len(text)} characters: callbacks return too much")
        self._write_soon("INSERT INTO history VALUES (?, ?)", fold, text)

    def finish(self, fold: int) -> None:
        """The run has come to its end, with this fold; whoever follows it need not guess from numbers of updates.

        Zero says that it has not.
        """
        self._write_soon("INSERT OR REPLACE INTO meta VALUES (?, ?)", FINISHED, str(fold))

    def _write_soon(self, query: str, *values: Any) -> None:
        """What is written again on resume if it was lost, so that nobody waits for the disk."""
        try:
            self._database.execute("PRAGMA synchronous=NORMAL")
            try:
                with self._database:
                    self._database.execute(query, values)
            finally:
                self._database.execute("PRAGMA synchronous=FULL")
        except sqlite3.Error as error:
            raise StorageError(f"{self.path}: {error}") from error


def posterior_digest(posterior: Family) -> bytes:
    """SHA-256 of a density's numbers, bit by bit."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(posterior):
        digest.update(np.ascontiguousarray(leaf).data)
    return digest.digest()


def made_with() -> Row:
    """What numbers may depend on, beside settings and data: told where they have changed."""
    versions = {"python": platform.python_version(), "numpy": np.__version__, "jax": jax.__version__}
    return {**versions, "machine": platform.machine()}


def _meta(description: Row) -> dict[str, str]:
    known = {"format": JOURNAL_FORMAT, "version": __version__, **description}
    return {key: str(value) if key == "format" else to_json({key: value}) for key, value in known.items()}


def _read_value(text: str) -> Any:
    """What stands under a key of the table `meta`."""
    try:
        value = parse_json(text)
    except ValueError:
        return text
    return next(iter(value.values())) if isinstance(value, dict) and len(value) == 1 else value


def _create(path: Path, description: Row) -> None:
    """An empty journal, under its name only when it is complete."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    os.close(open_private(new, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    database = sqlite3.connect(new)
    try:
        database.executescript(SCHEMA)
        meta = {**_meta(description), "made_with": to_json({"made_with": made_with()})}
        with database:
            database.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
    finally:
        database.close()
    os.replace(new, path)
    sync_folder(path.parent)


def _connected(path: Path) -> sqlite3.Connection:
    # Ours have a log instead. SQLite would roll one back as soon as it looks at the database, and delete whatever file
    # it names as the one above it.
    rollback = path.with_name(f"{path.name}-journal")
    if os.path.lexists(rollback):
        raise CorruptStorage(f"{rollback}: does not belong to a run: delete it, if you know where it comes from")
    # Written to by the inbox's thread, and by nobody else meanwhile.
    database = sqlite3.connect(path, timeout=10, check_same_thread=False)
    bound(database, path)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    return database


def _open_locked(path: Path) -> int:
    """The lock file of a run, which nobody else holds."""
    handle = open_private(path)
    if not try_lock(handle):
        os.close(handle)
        raise StorageError(f"{path.parent}: another process is working on this run")
    return handle


def _read_arrival(arrival: Arrival) -> tuple[str, int, Parts]:
    """Kind, task's version, and what is kept of something that came, in parts."""
    if isinstance(arrival, Update):
        return "update", arrival.version, update_parts(arrival)
    return arrival.kind, -1, [arrival.reason.encode()]


def _digest(number: Any, kind: Any, site: Any, version: Any, *parts: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(f"{number},{kind},{site},{version},".encode())
    for part in parts:
        digest.update(part)
    return digest.digest()


def reached(place: str) -> None:
    """Called at places where a crash must do no harm: `failpoint` may be put there to make one."""
    if failpoint is not None:
        failpoint(place)


failpoint: Callable[[str], None] | None = None


def write_names(folder: str | os.PathLike[str], names: Sequence[str]) -> None:
    """What sites are called, for those who watch a run; not into the folder of one that has begun."""
    if names and not (Path(folder) / "journal.sqlite").exists():
        write_text(Path(folder) / NAMES_FILE, json.dumps({"names": list(names)}))


def read_names(folder: Path) -> list[str]:
    """What `write_names` wrote; nothing, if there is nothing of the kind."""
    try:
        names = read_json(folder / NAMES_FILE).get("names")
    except (OSError, ValueError, RecursionError):
        return []
    return [clean(name) for name in names] if isinstance(names, list) else []
