"""Arrays by name from an .npz file that nobody vouches for: plain numbers only, and no more than a limit."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from partita.errors import InputError
from partita.foundation.files import check_size


def read_arrays(path: Path, names: Sequence[str], largest: int, advice: str = "") -> dict[str, np.ndarray]:
    """These arrays of a file of at most so many bytes, unpacked; `advice` says what to do if it is no such file."""
    try:
        check_size(path, largest)
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            if sum(part.file_size for part in archive.zip.infolist()) > largest:
                raise ValueError(f"more than {largest} bytes when unpacked")
            arrays = {name: np.asarray(archive[name]) for name in archive.files if name in names}
            known = ", ".join(archive.files) or "none"
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (ValueError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: not an .npz file of plain arrays ({error}){advice}") from None
    for name in names:
        if name not in arrays:
            raise InputError(f"{path}: no array {name!r}; it has {known}")
    return {name: arrays[name] for name in names}
