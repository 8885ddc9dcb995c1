"""Collections of documents as counts of words."""

from pathlib import Path
from typing import Any

import numpy as np

from partita.datasets.places import Folder, find_needed
from partita.errors import InputError
from partita.foundation.files import read_file

# More words than any vocabulary has.
MOST_WORDS = 10_000_000
# Bytes of a collection.
MOST_TEXT = 1_000_000_000


def load_documents(name: str = "ap", folder: Folder = None) -> tuple[Any, list[str]]:
    """Counts, a sparse matrix of documents by words, and the words.

    "ap" is 2,246 articles of the Associated Press with 10,473 words (Blei, Ng and Jordan, 2003): the files ap.dat, in
    the format of LDA-C, and vocab.txt in a folder ap/, which is looked for as `load` looks for files.
    """
    import scipy.sparse

    if name != "ap":
        raise InputError(f'documents: expected "ap", got {name!r}')
    place = find_needed(name, folder, "the home page of LDA-C")
    words = _lines(place / "vocab.txt")
    if not 0 < len(words) <= MOST_WORDS:
        raise InputError(f"{place / 'vocab.txt'}: expected 1 to {MOST_WORDS} words, got {len(words)}")
    lines = _lines(place / "ap.dat")
    if not lines:
        raise InputError(f"{place / 'ap.dat'}: has no documents")
    starts, columns, counts = [0], [], []
    for number, line in enumerate(lines, start=1):
        try:
            size, *pairs = line.split()
            values = np.array([pair.split(":") for pair in pairs], dtype=np.int64).reshape(-1, 2)
            if int(size) != len(values):
                raise ValueError(f"says {size} words, has {len(values)}")
            if len(values) and (values.min() < 0 or values[:, 0].max() >= len(words)):
                raise ValueError("a word or a count is out of range")
        except ValueError as error:
            raise InputError(f"{place / 'ap.dat'}:{number}: not a document of LDA-C ({error})") from None
        columns.append(values[:, 0])
        counts.append(values[:, 1])
        starts.append(starts[-1] + len(values))
    data = np.concatenate(counts).astype(float), np.concatenate(columns), np.array(starts)
    return scipy.sparse.csr_array(data, shape=(len(starts) - 1, len(words))), words


def _lines(path: Path) -> list[str]:
    try:
        return read_file(path, MOST_TEXT).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error})") from None
