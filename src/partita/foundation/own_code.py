"""Somebody's own Python code, by the name of an installed package's part, or from a file with a known digest."""

import hashlib
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from partita.errors import InputError, reason
from partita.foundation.files import read_file

MOST_CODE = 1_000_000
ENTRY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
FILE = re.compile(r"[A-Za-z_][\w-]*\.py", re.ASCII)
DIGEST = re.compile(r"[0-9a-f]{64}")


def load_entry(entry: str) -> Any:
    """What an installed package calls `package.module:name`. Its code is run."""
    module, _, name = entry.partition(":")
    try:
        return _take(import_module(module), name, entry)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{entry}: cannot be imported here: {reason(error)}") from error


def load_file(path: Path, digest: str, name: str) -> Any:
    """What a file with this SHA-256 calls so. Its code is run: the bytes that were looked at, and no others."""
    content = _read(path)
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise InputError(f"{path}: its SHA-256 is {found}, and not {digest}: it is not the file that was agreed on")
    # By its content, so that it can be told from another with the same name. Once: what is compiled of it is kept.
    known = f"partita_own_{digest}"
    return _take(sys.modules.get(known) or _run(known, content, path), name, str(path))


def _run(known: str, content: bytes, path: Path) -> ModuleType:
    module = ModuleType(known)
    module.__file__ = str(path)
    sys.modules[known] = module
    try:
        exec(compile(content, str(path), "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[known]
        raise InputError(f"{path}: fails when it is run: {reason(error)}") from error
    return module


def digest_file(path: Path) -> str:
    """The SHA-256 of a file with code."""
    return hashlib.sha256(_read(path)).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return read_file(path, MOST_CODE)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}: put the file with the model there") from None


def _take(module: ModuleType, name: str, place: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        raise InputError(f"{place}: has nothing called {name!r}") from None
