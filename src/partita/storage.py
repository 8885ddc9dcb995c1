"""What survives a crash: the journal of a run, and saved results. SQLite and safetensors; never pickle.

The journal holds every update in the order in which it was folded, committed before anybody hears of it. All else
(ledger, damping, schedule, clock) is a deterministic function of the updates, so a run is resumed by folding them
again.
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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from partita.errors import CorruptStorage, RunMismatch, StorageError
from partita.families import Family
from partita.ledger import Update
from partita.telemetry import Row, to_json

FORMAT = 1
NUMBERS = (
    "expected_log_prob", "expected_log_factor", "expected_log_change", "steps", "outcome", "seconds", "finished_at",
)  # fmt: skip
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE updates (
    number INTEGER PRIMARY KEY, fold INTEGER NOT NULL, site INTEGER NOT NULL, version INTEGER NOT NULL,
    payload BLOB NOT NULL, digest BLOB NOT NULL
) STRICT;
CREATE TABLE history (fold INTEGER PRIMARY KEY, row TEXT NOT NULL) STRICT;
"""


class Journal:
    """The write-ahead log of one run, in `run_dir/journal.sqlite`. A context manager."""

    def __init__(self, run_dir: str | os.PathLike, description: Row, like: Family, resume: bool):
        self.folder = Path(run_dir)
        self.path = self.folder / "journal.sqlite"
        self._like = like
        with ExitStack() as opened:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                opened.callback(os.close, _locked(self.folder / "lock"))
                if self.path.exists() and not resume:
                    raise RunMismatch(
                        f"{self.folder} holds a run already: resume it (resume=True, --resume), or use another folder"
                    )
                if not self.path.exists():
                    _create(self.path, description)
                self._database = _connected(self.path)
                opened.callback(self._database.close)
                self._check(description)
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
        if not {"meta", "updates", "history"} <= tables:
            raise CorruptStorage(f"{self.path}: is not the journal of a run")
        stored = dict(self._database.execute("SELECT key, value FROM meta"))
        wanted = _meta(description)
        different = sorted(key for key in wanted.keys() | stored.keys() if wanted.get(key) != stored.get(key))
        if different:
            raise RunMismatch(
                f"{self.path}: this is another run; {', '.join(different)} differ: use the same, or another folder"
            )

    def folds(self) -> Iterator[list[Update]]:
        """The updates of each fold, in order, as they are on disk now."""
        query = "SELECT number, fold, site, version, payload, digest FROM updates ORDER BY number"
        last, current = 0, 0
        batch: list[Update] = []
        try:
            for number, fold, site, version, payload, digest in self._database.execute(query):
                if _digest(number, fold, site, version, payload) != digest:
                    raise CorruptStorage(f"{self.path}: update {number} (site {site}) is not what was written")
                if number != last + 1 or fold not in (current, current + 1):
                    raise CorruptStorage(f"{self.path}: something is missing before update {number} (site {site})")
                if fold != current and batch:
                    yield batch
                    batch = []
                last, current = number, fold
                batch.append(_decoded(site, version, payload, self._like))
        except sqlite3.DatabaseError as error:
            raise CorruptStorage(f"{self.path}: {error}") from error
        if batch:
            yield batch

    def append(self, fold: int, updates: Sequence[Update]) -> None:
        """Commit a fold's updates; when this returns they are on disk."""
        try:
            with self._database:
                last = self._database.execute("SELECT coalesce(max(number), 0) FROM updates").fetchone()[0]
                rows = []
                for number, update in enumerate(updates, last + 1):
                    payload = _encoded(update)
                    key = (number, fold, update.site, update.version)
                    rows.append((*key, payload, _digest(*key, payload)))
                self._database.executemany("INSERT INTO updates VALUES (?, ?, ?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise StorageError(f"{self.path}: could not write fold {fold}: {error}; it was not acknowledged") from error

    def add_row(self, fold: int, row: Row) -> None:
        """A row of history, for reports; written again on resume if it was lost."""
        if fold in self._rows:
            return
        self._rows.add(fold)
        try:
            with self._database:
                self._database.execute("INSERT INTO history VALUES (?, ?)", (fold, to_json(row)))
        except sqlite3.Error as error:
            raise StorageError(f"{self.path}: {error}") from error


def read_history(run_dir: str | os.PathLike) -> list[Row]:
    """The history of a run, finished or not."""
    path = Path(run_dir) / "journal.sqlite"
    if not path.exists():
        raise StorageError(f"{path}: no such run")
    try:
        database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        rows = [json.loads(row) for (row,) in database.execute("SELECT row FROM history ORDER BY fold")]
        database.close()
    except (sqlite3.DatabaseError, json.JSONDecodeError) as error:
        raise CorruptStorage(f"{path}: {error}") from error
    return rows


def _meta(description: Row) -> dict[str, str]:
    return {"format": str(FORMAT), **{key: to_json({key: value}) for key, value in description.items()}}


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
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _connected(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=10)
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


def _digest(number: Any, fold: Any, site: Any, version: Any, payload: Any) -> bytes:
    return hashlib.sha256(f"{number},{fold},{site},{version},".encode() + bytes(payload or b"")).digest()


def _encoded(update: Update) -> bytes:
    names = sorted(update.hyper_gradient)
    numbers = [getattr(update, name) for name in NUMBERS]
    arrays = {f"change.{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(update.change))}
    arrays["numbers"] = np.asarray(numbers, np.float64)
    arrays.update({f"hyper.{name}": np.asarray(update.hyper_gradient[name], np.float64) for name in names})
    return safetensors.save({name: np.asarray(array, order="C") for name, array in arrays.items()})


def _decoded(site: int, version: int, payload: bytes, like: Family) -> Update:
    try:
        arrays = safetensors.load(payload)
        leaves = [arrays[f"change.{i}"].reshape(a.shape) for i, a in enumerate(jax.tree.leaves(like))]
        numbers = dict(zip(NUMBERS, arrays["numbers"].tolist(), strict=True))
    except (SafetensorError, KeyError, ValueError) as error:
        raise CorruptStorage(f"update of site {site}, version {version}: {error}") from error
    change = jax.tree.unflatten(jax.tree.structure(like), leaves)
    hyper = {name[6:]: float(array.item()) for name, array in arrays.items() if name.startswith("hyper.")}
    steps, outcome = int(numbers.pop("steps")), int(numbers.pop("outcome"))
    return Update(site, version, change, steps=steps, outcome=outcome, hyper_gradient=hyper, **numbers)


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


def write_arrays(path: str | os.PathLike, arrays: dict[str, np.ndarray], about: Row) -> None:
    """One safetensors file, complete or not there at all."""
    target = Path(path)
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    text = json.dumps({"format": FORMAT, **about}, sort_keys=True, allow_nan=False)
    metadata = {"partita": text, "sha256": _content_digest(contiguous, text)}
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
    if metadata.get("sha256") != _content_digest(arrays, metadata["partita"]):
        raise CorruptStorage(f"{path}: its contents are not what was written")
    about = json.loads(metadata["partita"])
    if about["format"] != FORMAT:
        raise RunMismatch(
            f"{path}: format {about['format']}, this version reads {FORMAT}: use the version that wrote it"
        )
    return arrays, about


def _content_digest(arrays: dict[str, np.ndarray], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name}{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
