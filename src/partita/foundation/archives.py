"""Arrays and plain words about them in one file, complete or not there at all: saved results. Never pickle."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from partita.errors import CorruptStorage, PartitaError, RunMismatch, StorageError, reason
from partita.foundation.digests import content_digest
from partita.foundation.files import StrPath, check_size, replace_file
from partita.foundation.foreign import parse_object
from partita.foundation.plain import Row
from partita.foundation.text import clean

FORMAT = 1
# Bytes of a saved result, which has to fit into memory too. Arrays are as large as the file says that it is, so there
# is no bomb in it.
MOST_RESULT = 100_000_000_000
MOST_ARRAYS = 20_000


def write_text(path: StrPath, text: str) -> Path:
    """A file that can be written again at any time: it has this text, or what it had before."""
    try:
        return replace_file(path, text.encode())
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error


def write_arrays(path: StrPath, arrays: dict[str, np.ndarray], about: Row, durable: bool = True) -> None:
    """One safetensors file, complete or not there at all; `durable`, if it has to be there after a power failure."""
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    text = json.dumps({"format": FORMAT, **about}, sort_keys=True, allow_nan=False)
    metadata = {"partita": text, "sha256": content_digest(contiguous, text)}
    try:
        replace_file(path, safetensors.save(contiguous, metadata), durable)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error


def read_arrays(path: StrPath) -> tuple[dict[str, np.ndarray], Row]:
    """What `write_arrays` wrote, or an error that says what is wrong with it."""
    from safetensors import safe_open

    if os.path.isdir(path):
        raise StorageError(f"{path}: is a folder; a run's result is {Path(path) / 'result.safetensors'}")
    try:
        check_size(path, min(MOST_RESULT, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
        with safe_open(os.fspath(path), framework="numpy") as stream:
            metadata, names = stream.metadata() or {}, list(stream.keys())
            if len(names) > MOST_ARRAYS:
                raise ValueError(f"has {len(names)} arrays, at most {MOST_ARRAYS} are read")
            arrays = {name: stream.get_tensor(name) for name in names}
    except FileNotFoundError:
        raise StorageError(f"{path}: no such file") from None
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptStorage(f"{path}: not a readable result ({clean(error)})") from error
    if "partita" not in metadata:
        raise CorruptStorage(f"{path}: was not written by Partita")
    if metadata.get("sha256") != content_digest(arrays, metadata["partita"]):
        raise CorruptStorage(f"{path}: its contents are not what was written")
    about = _read_about(path, metadata["partita"])
    if about.get("format") != FORMAT:
        raise RunMismatch(
            f"{path}: format {about.get('format')}, this version reads {FORMAT}: use the version that wrote it"
        )
    return arrays, about


def check_finite(path: StrPath, arrays: dict[str, np.ndarray]) -> None:
    """Check that no number of a density is missing or beyond all."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise CorruptStorage(f"{path}: {name}: has numbers that are not finite")


def _read_about(path: StrPath, text: str) -> Row:
    try:
        return parse_object(text)
    except ValueError as error:
        raise CorruptStorage(f"{path}: not a readable result ({clean(error)})") from error


@contextmanager
def doubted(path: StrPath) -> Iterator[None]:
    """Whatever goes wrong while a file is made sense of is said of the file: it may be anybody's."""
    try:
        yield
    except PartitaError:
        raise
    except Exception as error:
        # What it says goes through much code, of others too.
        raise CorruptStorage(f"{path}: is no result that Partita writes ({reason(error)})") from error
