"""Where data files are looked for."""

import os
from pathlib import Path

from partita.errors import MissingData


def cache() -> Path:
    """The user's own folder, where downloads go."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "partita" / "data"


def found(name: str, folder: str | os.PathLike[str] | None) -> Path | None:
    """A file or folder of that name: in `folder`, in the one that PARTITA_DATA names, or in the user's cache."""
    for place in (folder, os.environ.get("PARTITA_DATA"), cache()):
        if place and os.path.exists(path := Path(place) / name):
            return path
    return None


def needed(name: str, folder: str | os.PathLike[str] | None, source: str) -> Path:
    """The same for data that are not downloaded, because their licence or their host does not allow it."""
    path = found(name, folder)
    if path is None:
        raise MissingData(
            f"{name} is not here: get it from {source}, put it into {cache()} or another folder, and set PARTITA_DATA "
            "to that folder"
        )
    return path
