"""Where data files are looked for."""

import os
from pathlib import Path

import numpy as np

from partita.errors import MissingData

Folder = str | os.PathLike[str] | None
Data = tuple[np.ndarray, np.ndarray]
Split = tuple[Data, Data]


def cache_folder() -> Path:
    """The user's own folder, where downloads go."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "partita" / "data"


def find_file(name: str, folder: Folder) -> Path | None:
    """Find a file or folder of that name: in `folder`, in the one that PARTITA_DATA names, or in the user's cache."""
    for place in (folder, os.environ.get("PARTITA_DATA"), cache_folder()):
        if place and os.path.exists(path := Path(place) / name):
            return path
    return None


def find_needed(name: str, folder: Folder, source: str) -> Path:
    """The same for data that are not downloaded, because their licence or their host does not allow it."""
    path = find_file(name, folder)
    if path is None:
        raise MissingData(
            f"{name} is not here: get it from {source}, put it into {cache_folder()} or another folder, and set "
            "PARTITA_DATA to that folder"
        )
    return path
