"""`partita summary` of a federation: its server asks all sites once, and what they say is kept and shown."""

from collections.abc import Callable
from pathlib import Path

from partita.errors import EngineError, InputError
from partita.federation.folders import read_server
from partita.federation.serving import describe_end, run_server
from partita.foundation.archives import write_text
from partita.foundation.plain import Row
from partita.report.summaries import FORMATS, render
from partita.summaries import Summary
from partita.summaries.saving import read_summary
from partita.wire.summary_recipe import SummaryRecipe

# What files of each format end in.
ENDINGS = {"text": "txt", "html": "html", "csv": "csv", "latex": "tex"}


def sum_up_federation(path: Path, again: bool, watch: Callable[[Row], None]) -> Summary:
    """The summary that was made in a server's folder; or a new one, for which all sites have to be there.

    Args:
        path: of the folder.
        again: whether sites are asked, though there is a summary.
        watch: is given the server's state as it changes.
    """
    folder = read_server(path)
    if not isinstance(folder.recipe, SummaryRecipe):
        raise InputError(f"{path}: its federation.toml has no [summary]: partita new-federation --summary makes one")
    if again or not folder.result.exists():
        state = run_server(folder, watch)
        if state["state"] != "finished":
            raise EngineError(describe_end(folder, state))
    return read_summary(folder.result)


def write_formats(path: Path, summary: Summary) -> list[Path]:
    """Write a summary into a folder in every format."""
    return [write_text(path / f"summary.{ENDINGS[how]}", render(summary, how)) for how in FORMATS]
