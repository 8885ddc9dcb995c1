"""Files that are for their owner alone, and reads that end: no link is followed, no size is taken on trust.

What goes wrong is an `OSError` whose `strerror` says what, so that callers report it as they report a full disk.
"""

import errno
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from partita.foundation.foreign import parse_object

StrPath = str | os.PathLike[str]
# Permissions for the owner alone, whatever the umask.
FOLDER, FILE = 0o700, 0o600
# Bytes of what people write by hand, of what a run writes about itself, and of a table.
MOST_SETTINGS, MOST_NOTES, MOST_TABLE = 1_000_000, 20_000_000, 10_000_000_000
# Bytes of a line of a table.
MOST_LINE = 16_000_000
# Bytes of a journal's database; large updates are beside it.
MOST_JOURNAL = 1_000_000_000_000


def make_folder(path: StrPath) -> Path:
    """A folder that only its owner can look into, with all that it lies in; one that is there stays as it is."""
    folder = Path(path)
    missing = []
    while not folder.is_dir() and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir(FOLDER, exist_ok=True)
    return Path(path)


def open_private(path: StrPath, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """A file of our own, for its owner alone; refused, if it is a link, somebody else's, or has other names."""
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, FILE)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _no_file(path) from None
        raise
    try:
        if not _is_private(os.fstat(handle), path):
            os.fchmod(handle, FILE)
    except BaseException:
        os.close(handle)
        raise
    return handle


def check_private(path: StrPath) -> None:
    """The same of a file that somebody else's code will open by its name, if it is there."""
    with suppress(FileNotFoundError):
        if not _is_private(os.lstat(path), path):
            os.chmod(path, FILE)


def _is_private(status: os.stat_result, path: StrPath) -> bool:
    """Whether a file of our own is for its owner alone; an error, if it is not our own."""
    if not stat.S_ISREG(status.st_mode):
        raise _no_file(path)
    if status.st_uid != os.geteuid() or status.st_nlink > 1:
        raise OSError(errno.EPERM, "belongs to another user, or has another name: delete it", str(path))
    return stat.S_IMODE(status.st_mode) == FILE


def _no_file(path: StrPath) -> OSError:
    return OSError(errno.EINVAL, "is a link, or something else that is no file: delete it", str(path))


def replace_file(path: StrPath, data: bytes, durable: bool = False) -> Path:
    """The file has these bytes, or what it had before. A link is replaced, not followed.

    Args:
        path: of the file; its folder is made, if it is not there.
        data: all that the file is to hold.
        durable: wait until file and name are on disk.
    """
    target = Path(path)
    make_folder(target.parent)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    if durable:
        sync_folder(target.parent)
    return target


def sync_folder(folder: StrPath) -> None:
    """Wait until the names of the files in a folder are on disk, as their contents may be."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_size(path: StrPath, most: int) -> None:
    """Check that a file is one, and not larger than this: before somebody else's reader is let at it."""
    _check_status(os.stat(path), most)


def read_file(path: StrPath, most: int) -> bytes:
    """All of a file that has at most so many bytes; never of a pipe or a device, where reading may not end."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        size = _check_status(os.fstat(handle), most)
        with os.fdopen(handle, "rb", closefd=False) as stream:
            return stream.read(size)
    finally:
        os.close(handle)


def check_lines(path: StrPath, most: int = MOST_LINE) -> None:
    """Check that a text has lines, which a reader takes into memory whole: every part of this size has to end one."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        while len(part := os.read(handle, most)) == most:
            if b"\n" not in part:
                raise OSError(errno.EFBIG, f"has a line of more than {most} bytes")
    finally:
        os.close(handle)


def read_json(path: StrPath, most: int = MOST_NOTES) -> dict[str, Any]:
    """A JSON object from a file that has at most so many bytes; a ValueError, if there is something else in it."""
    return parse_object(read_file(path, most))


def is_file(path: StrPath) -> bool:
    """Whether there is one; a name that none can have is no error."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _check_status(status: os.stat_result, most: int) -> int:
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file")
    if status.st_size > most:
        raise OSError(errno.EFBIG, f"is too large: {status.st_size} bytes, at most {most} are read")
    return status.st_size
