"""Places that one process at a time may hold, by a lock on a file; and folders that are their owner's alone."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from partita.errors import StorageError
from partita.foundation.files import FOLDER, make_folder, open_private


@contextmanager
def private_folder(folder: Path) -> Iterator[None]:
    """Make a folder that is its owner's alone, as is what this process, and those it starts, write meanwhile."""
    before = os.umask(0o077)
    try:
        make_folder(folder)
        # One that an earlier version has made may be open to everybody.
        folder.chmod(FOLDER)
        yield
    finally:
        os.umask(before)


@contextmanager
def hold_lock(path: Path, patience: float = 1.0) -> Iterator[None]:
    """Hold a place for this process, whose number is in the file; whoever comes second waits a while, and is told."""
    make_folder(path.parent)
    until = time.monotonic() + patience
    # Whoever can open the file can hold it.
    handle = _open(path, os.O_RDWR | os.O_CREAT)
    try:
        while not try_lock(handle):
            if time.monotonic() > until:
                number = _read_number(handle)
                raise StorageError(f"{path.parent}: process {number} is at work here: stop it first")
            time.sleep(0.2)
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def lock_holder(path: Path) -> int | None:
    """The number of the process that holds a place, if one does."""
    try:
        handle = _open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        # Shared: those who only look do not take each other for holders.
        return None if try_lock(handle, shared=True) else _read_number(handle)
    finally:
        os.close(handle)


def try_lock(handle: int, shared: bool = False) -> bool:
    """Lock an open file for as long as it is open, without waiting; whether nobody else has locked it."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _open(path: Path, flags: int) -> int:
    try:
        return open_private(path, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from None


def _read_number(handle: int) -> int:
    """The number in a file that a process holds; 0, if there is none."""
    digits = os.pread(handle, 20, 0)
    return int(digits) if digits.isdigit() else 0
