"""What survives a crash: the journal of a run, and saved results. SQLite and safetensors; never pickle.

The journal holds everything that came from sites, in the order in which it was taken, committed before anybody hears of
it. All else (ledger, damping, schedule, clock) is a deterministic function of that, so a run is resumed by going
through it again.
"""

import dataclasses
import fcntl
import functools
import hashlib
import inspect
import json
import os
import sqlite3
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from partita.errors import CorruptStorage, MalformedUpdate, RunMismatch, StorageError
from partita.families import Family
from partita.ledger import Update
from partita.messages import Arrival, Notice, content_digest, decoded_update, encoded_update, largest
from partita.telemetry import Row, to_json

# Of saved results, and of journals.
FORMAT, JOURNAL_FORMAT = 1, 2
# Updates of more bytes are kept beside the database, which would write them twice.
INLINE = 32_768
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE arrivals (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, site INTEGER NOT NULL, version INTEGER NOT NULL,
    payload BLOB NOT NULL, place INTEGER, size INTEGER, digest BLOB NOT NULL
) STRICT;
CREATE INDEX by_site ON arrivals (site, version);
CREATE TABLE history (fold INTEGER PRIMARY KEY, row TEXT NOT NULL) STRICT;
"""


class Journal:
    """The write-ahead log of one run, in `run_dir/journal.sqlite`. A context manager.

    Large updates are in `run_dir/payloads`, which is only appended to: on disk before the row that says where they are.
    """

    def __init__(self, run_dir: str | os.PathLike, description: Row, like: Family, resume: bool):
        self.folder = Path(run_dir)
        self.path = self.folder / "journal.sqlite"
        self._like = like
        with ExitStack() as opened:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._lock = _locked(self.folder / "lock")
                opened.callback(os.close, self._lock)
                if self.path.exists() and not resume:
                    raise RunMismatch(
                        f"{self.folder} holds a run already: resume it (resume=True, --resume), or use another folder"
                    )
                if not self.path.exists():
                    _create(self.path, description)
                self._database = _connected(self.path)
                opened.callback(self._database.close)
                self._payloads = os.open(self.folder / "payloads", os.O_RDWR | os.O_CREAT, 0o644)
                opened.callback(os.close, self._payloads)
                self._check(description)
                self._check_mark()
                self._end = self._check_payloads()
                _synchronised(self.folder)
                self._rows = {fold for (fold,) in self._database.execute("SELECT fold FROM history")}
            except sqlite3.OperationalError as error:
                raise StorageError(f"{self.path}: {error}") from error
            except sqlite3.DatabaseError as error:
                raise CorruptStorage(f"{self.path}: {error}") from error
            except OSError as error:
                raise StorageError(f"{self.folder}: {error.strerror or error}") from error
            self._opened = opened.pop_all()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._opened.close()

    def _check(self, description: Row) -> None:
        tables = {name for (name,) in self._database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"meta", "arrivals", "history"} <= tables:
            raise CorruptStorage(f"{self.path}: is not the journal of a run")
        stored = dict(self._database.execute("SELECT key, value FROM meta"))
        wanted = _meta(description)
        different = sorted(key for key in wanted.keys() | stored.keys() if wanted.get(key) != stored.get(key))
        if different:
            raise RunMismatch(
                f"{self.path}: this is another run; {', '.join(different)} differ: use the same, or another folder"
            )

    def _check_mark(self) -> None:
        """That everything is there that was ever acknowledged, as far as the lock file knows."""
        mark = os.pread(self._lock, 20, 0).decode("ascii", "replace").strip()
        (last,) = self._database.execute("SELECT coalesce(max(number), 0) FROM arrivals").fetchone()
        if mark.isdigit() and int(mark) > last:
            raise CorruptStorage(f"{self.path}: update {mark} was acknowledged, and only {last} are there")

    def _check_payloads(self) -> int:
        """Where the next payload goes. What is behind the last row's was never acknowledged."""
        (end,) = self._database.execute("SELECT coalesce(max(place + size), 0) FROM arrivals").fetchone()
        size = os.fstat(self._payloads).st_size
        if size < end:
            raise CorruptStorage(f"{self.folder / 'payloads'}: has {size} bytes, and {end} were acknowledged")
        os.ftruncate(self._payloads, end)
        return end

    def recorded(self) -> Iterator[Arrival]:
        """What was taken, in order, as it is on disk now."""
        query = "SELECT number, kind, site, version, payload, place, size, digest FROM arrivals ORDER BY number"
        last = 0
        try:
            for number, kind, site, version, payload, place, size, digest in self._database.execute(query):
                if place is not None:
                    payload = self._read(place, size)
                if _digest(number, kind, site, version, payload) != digest:
                    where = self.path if place is None else self.folder / "payloads"
                    raise CorruptStorage(f"{where}: update {number} (site {site}) is not what was written")
                if number != last + 1:
                    raise CorruptStorage(f"{self.path}: something is missing before update {number} (site {site})")
                last = number
                yield self._arrival(number, kind, site, version, payload)
        except sqlite3.DatabaseError as error:
            raise CorruptStorage(f"{self.path}: {error}") from error

    def _read(self, place: int, size: int) -> bytes:
        """A payload; nothing, where no payload can be."""
        if not (place >= 0 and 0 <= size <= largest(self._like)):
            return b""
        return os.pread(self._payloads, size, place)

    def _arrival(self, number: int, kind: Any, site: int, version: int, payload: bytes) -> Arrival:
        try:
            if kind != "update":
                return Notice(site, kind, payload.decode())
            return decoded_update(site, version, payload, self._like)
        except (MalformedUpdate, UnicodeDecodeError) as error:
            raise CorruptStorage(f"{self.path}: update {number}: {error}") from error

    def append(self, arrivals: Sequence[Arrival]) -> None:
        """Commit what came; when this returns it is on disk."""
        try:
            reached("before write")
            with self._database:
                last = self._database.execute("SELECT coalesce(max(number), 0) FROM arrivals").fetchone()[0]
                rows = []
                for number, arrival in enumerate(arrivals, last + 1):
                    if isinstance(arrival, Update):
                        kind, version, payload = "update", arrival.version, encoded_update(arrival)
                    else:
                        kind, version, payload = arrival.kind, -1, arrival.reason.encode()
                    key = (number, kind, arrival.site, version)
                    rows.append((*key, *self._kept(payload), _digest(*key, payload)))
                if any(row[5] is not None for row in rows):
                    os.fdatasync(self._payloads)
                self._database.executemany("INSERT INTO arrivals VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
                reached("before commit")
            os.pwrite(self._lock, b"%20d" % rows[-1][0], 0)
            reached("after commit")
        except (sqlite3.Error, OSError) as error:
            raise StorageError(f"{self.path}: could not write: {error}; it was not acknowledged") from error

    def _kept(self, payload: bytes) -> tuple[bytes, int | None, int | None]:
        """What the row holds: a payload, or where a large one was written."""
        if len(payload) <= INLINE:
            return payload, None, None
        place, written = self._end, 0
        while written < len(payload):
            written += os.pwrite(self._payloads, memoryview(payload)[written:], place + written)
        self._end += len(payload)
        return b"", place, len(payload)

    def receipt(self, site: int, version: int) -> int | None:
        """The number of the update that answered a task, if there is one."""
        query = "SELECT number FROM arrivals WHERE site = ? AND version = ?"
        found = self._database.execute(query, (site, version)).fetchone()
        return None if found is None else found[0]

    def add_row(self, fold: int, row: Row) -> None:
        """A row of history, for reports; written again on resume if it was lost, so nobody waits for the disk."""
        if fold in self._rows:
            return
        self._rows.add(fold)
        try:
            self._database.execute("PRAGMA synchronous=NORMAL")
            try:
                with self._database:
                    self._database.execute("INSERT INTO history VALUES (?, ?)", (fold, to_json(row)))
            finally:
                self._database.execute("PRAGMA synchronous=FULL")
        except sqlite3.Error as error:
            raise StorageError(f"{self.path}: {error}") from error


def read_history(run_dir: str | os.PathLike, after: int = 0, most: int | None = None) -> list[Row]:
    """The history of a run, finished or not; only what came after a fold, and so many rows of it, if asked."""
    query = "SELECT row FROM history WHERE fold > ? ORDER BY fold LIMIT ?"
    return [json.loads(row) for (row,) in _selected(run_dir, query, after, -1 if most is None else most)]


def read_updates(run_dir: str | os.PathLike, after: int = 0) -> list[tuple[int, int, int]]:
    """Number, site and task's version of every update after a number: who answered what."""
    query = "SELECT number, site, version FROM arrivals WHERE number > ? AND kind = 'update' ORDER BY number"
    return _selected(run_dir, query, after)


def read_notices(run_dir: str | os.PathLike) -> list[Notice]:
    """What a run was told of its sites, beside updates."""
    query = "SELECT site, kind, payload FROM arrivals WHERE kind != 'update' ORDER BY number"
    return [Notice(site, kind, payload.decode(errors="replace")) for site, kind, payload in _selected(run_dir, query)]


def _selected(run_dir: str | os.PathLike, query: str, *values: int) -> list[tuple]:
    """What a query finds, whoever is writing meanwhile."""
    path = Path(run_dir) / "journal.sqlite"
    if not path.exists():
        raise StorageError(f"{path}: no such run")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return database.execute(query, values).fetchall()
    except sqlite3.OperationalError as error:
        raise StorageError(f"{path}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise CorruptStorage(f"{path}: {error}") from error


def _meta(description: Row) -> dict[str, str]:
    return {"format": str(JOURNAL_FORMAT), **{key: to_json({key: value}) for key, value in description.items()}}


def _create(path: Path, description: Row) -> None:
    """An empty journal, under its name only when it is complete."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    database = sqlite3.connect(new)
    try:
        database.executescript(SCHEMA)
        with database:
            database.executemany("INSERT INTO meta VALUES (?, ?)", _meta(description).items())
    finally:
        database.close()
    os.replace(new, path)
    _synchronised(path.parent)


def _synchronised(folder: Path) -> None:
    """The names of files in a folder are on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _connected(path: Path) -> sqlite3.Connection:
    # Written to by the inbox's thread, and by nobody else meanwhile.
    database = sqlite3.connect(path, timeout=10, check_same_thread=False)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    return database


def _locked(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise StorageError(f"{path.parent}: another process is working on this run") from None
    return handle


def _digest(number: Any, kind: Any, site: Any, version: Any, payload: Any) -> bytes:
    digest = hashlib.sha256(f"{number},{kind},{site},{version},".encode())
    digest.update(payload or b"")
    return digest.digest()


def reached(place: str) -> None:
    """Called at places where a crash must do no harm: `failpoint` may be put there to make one."""
    if failpoint is not None:
        failpoint(place)


failpoint: Callable[[str], None] | None = None


def describe(value: Any, seen: frozenset[int] = frozenset()) -> Any:
    """A plain description of settings, to tell one run from another: arrays by digest, functions by what they do.

    Two functions are told apart by their code, constants, defaults, closures and the globals that they use; not by
    what the functions that they call do, if those are not Python's own.
    """
    if id(value) in seen:
        return "…"
    if isinstance(value, str | int | float | bool | None):
        return value
    inside = seen | {id(value)}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        return f"{array.dtype}{list(array.shape)}:{hashlib.sha256(array.tobytes()).hexdigest()[:16]}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: describe(getattr(value, field.name), inside) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, dict):
        return {str(key): describe(item, inside) for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, tuple | list):
        return [describe(item, inside) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(str(describe(item, inside)) for item in value)
    if isinstance(value, types.CodeType):
        constants = [describe(constant, inside) for constant in value.co_consts]
        return [hashlib.sha256(value.co_code).hexdigest()[:16], constants, list(value.co_names)]
    if isinstance(value, functools.partial):
        return ["partial", *(describe(part, inside) for part in (value.func, value.args, value.keywords))]
    return _describe_callable(value, inside) if callable(value) else type(value).__name__


def _describe_callable(value: Any, seen: frozenset[int]) -> Any:
    value = inspect.unwrap(value)
    if not isinstance(value, types.FunctionType):
        return getattr(value, "__qualname__", type(value).__name__)
    used = {name: value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__}
    plain = {name: item for name, item in used.items() if not isinstance(item, types.ModuleType | type)}
    closure = [cell.cell_contents for cell in value.__closure__ or ()]
    parts = (value.__code__, closure, value.__defaults__, value.__kwdefaults__, plain)
    return [value.__qualname__, *(describe(part, seen) for part in parts)]


def write_text(path: str | os.PathLike, text: str) -> Path:
    """A file that can be written again at any time: it has this text, or what it had before."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise StorageError(f"{target}: {error.strerror or error}") from error
    return target


def write_arrays(path: str | os.PathLike, arrays: dict[str, np.ndarray], about: Row) -> None:
    """One safetensors file, complete or not there at all."""
    target = Path(path)
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    text = json.dumps({"format": FORMAT, **about}, sort_keys=True, allow_nan=False)
    metadata = {"partita": text, "sha256": content_digest(contiguous, text)}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(safetensors.save(contiguous, metadata))
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise StorageError(f"{target}: {error.strerror or error}") from error


def read_arrays(path: str | os.PathLike) -> tuple[dict[str, np.ndarray], Row]:
    """What `write_arrays` wrote, or an error that says what is wrong with it."""
    from safetensors import safe_open

    if os.path.isdir(path):
        raise StorageError(f"{path}: is a folder; a run's result is {Path(path) / 'result.safetensors'}")
    try:
        with safe_open(os.fspath(path), framework="numpy") as stream:
            metadata = stream.metadata() or {}
            arrays = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise StorageError(f"{path}: no such file") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise CorruptStorage(f"{path}: not a readable result ({error})") from error
    if "partita" not in metadata:
        raise CorruptStorage(f"{path}: was not written by Partita")
    if metadata.get("sha256") != content_digest(arrays, metadata["partita"]):
        raise CorruptStorage(f"{path}: its contents are not what was written")
    about = json.loads(metadata["partita"])
    if about["format"] != FORMAT:
        raise RunMismatch(
            f"{path}: format {about['format']}, this version reads {FORMAT}: use the version that wrote it"
        )
    return arrays, about
