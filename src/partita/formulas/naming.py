"""Sites by their names where a run, which counts them, speaks of them."""

import json
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from partita.errors import PartitaError
from partita.files import read_json
from partita.result import Result
from partita.storage import write_text
from partita.text import clean

NUMBERED = re.compile(r"\bsite (\d{1,9})\b")
LAST_PROBLEM = "the last round had a problem: "
FILE = "sites.json"


def name_sites(text: str, names: Sequence[str]) -> str:
    """The same words, with names for numbers.

    >>> name_sites("site 1: solver stopped; site 7", ["north", "south"])
    'site south: solver stopped; site 7'
    """
    return NUMBERED.sub(lambda found: f"site {names[int(found[1])]}" if int(found[1]) < len(names) else found[0], text)


@contextmanager
def sites_named(names: Sequence[str]) -> Iterator[None]:
    """Errors from here speak of sites by name; what is wrong with the last round is for `named_result` to say."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", LAST_PROBLEM, RuntimeWarning)
        try:
            yield
        except PartitaError as error:
            error.args = (name_sites(str(error), names),)
            raise


def named_result(result: Result, names: Sequence[str]) -> Result:
    """With a history that speaks of sites by name; warns, if something is wrong with its last round."""

    def named(row: dict[str, Any]) -> dict[str, Any]:
        problem = row.get("problem")
        return row if problem is None else {**row, "problem": name_sites(problem, names)}

    history = [named(row) for row in result.history]
    if history and history[-1].get("problem") is not None:
        warnings.warn(f"{LAST_PROBLEM}{history[-1]['problem']}", RuntimeWarning, stacklevel=3)
    return replace(result, history=history)


def write_names(folder: str | os.PathLike, names: Sequence[str]) -> None:
    """Beside a run's journal, for those who watch it; not into the folder of a run that has begun."""
    if not (Path(folder) / "journal.sqlite").exists():
        write_text(Path(folder) / FILE, json.dumps({"names": list(names)}))


def read_names(folder: Path) -> list[str]:
    """What `write_names` wrote; nothing, if there is nothing of the kind."""
    try:
        names = read_json(folder / FILE).get("names")
    except (OSError, ValueError, RecursionError):
        return []
    return [clean(name) for name in names] if isinstance(names, list) else []
