"""Compiled programs that are kept between processes: where, for whom, and how many.

What lies in such a folder is run by whoever finds it there. So nobody else may be able to put anything into it.
"""

import errno
import os
import stat
import warnings
from contextlib import suppress
from pathlib import Path

from partita.foundation.files import FILE, FOLDER, StrPath, make_folder

# What turns the cache off, and what says so.
VARIABLE, OFF = "PARTITA_COMPILATION_CACHE", ("0", "no", "off", "false")
# Bytes that are kept; beyond, what was used least lately is deleted when a process begins.
MOST_KEPT = 1_000_000_000


def cache_compilations(folder: StrPath | None = None) -> Path | None:
    """Keep compiled programs between processes; call it before anything is computed.

    They are kept in `folder`; else where JAX_COMPILATION_CACHE_DIR says, which is used as it is; else in the user's own
    cache folder, `partita/jax` in XDG_CACHE_HOME or `~/.cache`, which is made for its owner alone. A folder that is
    another user's, or that others could write to, is left alone with a warning. PARTITA_COMPILATION_CACHE=off turns
    all of this off.

    Returns:
        The folder; None, if nothing is kept.
    """
    if os.environ.get(VARIABLE, "").lower() in OFF:
        return None
    # XLA reports every program that it takes from a cache on standard error, and on some processors calls it a danger
    # at the length of a page (openxla/xla#44565). It reads this when it is loaded.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import jax

    # However quickly a program was compiled: reading it takes a hundredth of that.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    chosen = jax.config.values["jax_compilation_cache_dir"]
    if folder is None and chosen is not None:
        return Path(chosen)
    try:
        place = _prepare(default_folder() if folder is None else Path(folder), is_own=folder is None)
    except OSError as error:
        warnings.warn(
            f"compiled programs are not kept: {error.filename or folder or default_folder()}: {error.strerror}. Give a "
            f"folder that is yours alone, or set {VARIABLE}=off",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    jax.config.update("jax_compilation_cache_dir", str(place))
    return place


def default_folder() -> Path:
    """The user's own folder for compiled programs."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "partita" / "jax"


def _prepare(folder: Path, is_own: bool) -> Path:
    """A folder that nobody else can write to, with no more in it than is kept; an error, if it is not such a folder."""
    place = make_folder(folder).resolve(strict=True)
    check_unshared(place)
    if is_own:
        os.chmod(place, FOLDER)
    trim(place, MOST_KEPT)
    return place


def check_unshared(folder: Path) -> None:
    """Check that nobody else can put files into a folder, or another folder in its place: not in any that it is in."""
    for place in (folder, *folder.parents):
        status = os.stat(place)
        owners = (os.geteuid(),) if place == folder else (os.geteuid(), 0)
        if status.st_uid not in owners:
            raise OSError(errno.EPERM, "belongs to another user", str(place))
        # Whoever may write to a folder with this bit, such as /tmp, can still not rename what others have in it.
        is_sticky = place != folder and status.st_mode & stat.S_ISVTX
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_sticky:
            raise OSError(errno.EPERM, "can be written to by other users (chmod go-w)", str(place))


def trim(folder: Path, most: int) -> None:
    """Delete what was used least lately until no more than so many bytes are left, and what is not our own file."""
    kept: list[tuple[float, int, str]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            # Another process may delete it at the same time.
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    continue
                if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                    os.unlink(entry.path)
                    continue
                if stat.S_IMODE(status.st_mode) != FILE:
                    os.chmod(entry.path, FILE)
                kept.append((max(status.st_atime, status.st_mtime), status.st_size, entry.path))
    total = sum(size for _, size, _ in kept)
    for _, size, path in sorted(kept):
        if total <= most:
            break
        with suppress(FileNotFoundError):
            os.unlink(path)
        total -= size
